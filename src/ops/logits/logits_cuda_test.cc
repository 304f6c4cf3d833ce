// Protects, on a GPU: the same as logits_test.cc, against the same oracles.
#include "ops/logits/logits_testing.h"

namespace volley::ops {
namespace {

TEST(LogitsCuda, SoftcapIsTheFormula) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  expect_softcap(device);
}

TEST(LogitsCuda, SpreadPutsEachLogitAtItsTokenAndNothingElsewhere) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  expect_spread(device);
}

}  // namespace
}  // namespace volley::ops
