// Lines of a batch.
#include "fuzz.h"
#include "serve/batches/batch_line.h"

using namespace volley;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (!serve::read_custom_id(line).ok()) return 0;
  (void)serve::read_batch_request(line);
  (void)serve::is_failure(line);
  return 0;
}
