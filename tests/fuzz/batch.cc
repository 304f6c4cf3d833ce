// Lines of a batch.
#include "apps/batch/batch_line.h"
#include "fuzz.h"

using namespace volley;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  if (!apps::read_custom_id(line).ok()) return 0;
  (void)apps::read_batch_request(line);
  (void)apps::is_failure(line);
  return 0;
}
