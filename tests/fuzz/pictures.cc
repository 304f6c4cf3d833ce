// Pictures of prompts: PNG, JPEG, WebP and GIF files through the library's C interface.
#include <textkit.h>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Small results, so that time goes into decoding.
  const textkit_picture_rules rules{32, 1024, 4096};
  const textkit_view file{reinterpret_cast<const char*>(data), size};
  textkit_picture_size measured{}, read{};
  textkit_bytes rgb{}, error{};
  const bool opens = textkit_picture_measure(file, &rules, &measured, &error) == TEXTKIT_OK;
  textkit_bytes_free(error);
  error = {};
  const textkit_status status = textkit_picture_read(file, &rules, {nullptr, nullptr}, &read, &rgb, &error);
  volley::fuzz::require(status != TEXTKIT_INTERNAL);
  if (status == TEXTKIT_OK) {
    volley::fuzz::require(opens && read.width == measured.width && read.height == measured.height);
    volley::fuzz::require(rgb.size == size_t{read.width} * read.height * 3);
  }
  textkit_bytes_free(rgb);
  textkit_bytes_free(error);
  return 0;
}
