// Protects, on a GPU: sums have the bits of fp64's, rounded once.
#include "ops/add/add_testing.h"

namespace volley::ops {
namespace {

TEST(AddCuda, RoundsOnce) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_sums(device);
}

}  // namespace
}  // namespace volley::ops
