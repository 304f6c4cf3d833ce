// Protects: sums have the bits of fp64's, rounded once.
#include "ops/add/add_testing.h"

namespace volley::ops {
namespace {

TEST(Add, RoundsOnce) {
  const auto device = *make_cpu_device(3);
  check_sums(*device);
}

}  // namespace
}  // namespace volley::ops
