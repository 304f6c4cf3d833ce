// Protects, on a GPU: values against an fp64 oracle; outputs and states have the same bits however a sequence's rows
// are divided into calls, including recorded calls with unused rows and segments; a slot's old contents reach no other
// sequence.
#include "ops/gated_delta/gated_delta_testing.h"

namespace volley::ops {
namespace {

TEST(GatedDeltaCuda, MatchesOracle) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (const DeltaShape& shape : kShapes) check_values(device, gated_delta, shape);
  for (const DeltaShape& shape : {DeltaShape{1, 1, 48, 144, 8}, {1, 3, 64, 256, 4}, {1, 1, 256, 256, 4}}) {
    check_values(device, gated_delta, shape);
  }
}

TEST(GatedDeltaCuda, BitsDoNotDependOnHowRowsFallIntoCalls) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  uint32_t seed = 0;
  for (const DeltaShape& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int tape_rows : {0, 1, 3, 15}) check_invariance(device, gated_delta, shape, dtype, tape_rows, ++seed);
    }
  }
}

// The head counts of published models, so that blocks of many heads run at once.
TEST(GatedDeltaCuda, BitsDoNotDependOnHowManyHeadsRunAtOnce) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_invariance(device, gated_delta, {16, 48, 128, 128, 4}, DType::kBF16, 15, 300);
  check_invariance(device, gated_delta, {16, 32, 128, 128, 4}, DType::kBF16, 7, 301);
}

TEST(GatedDeltaCuda, BitsOfLongPromptsAreThoseOfShortCalls) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_long_prompts(device, gated_delta, {4, 8, 128, 128, 4}, DType::kBF16, 15);
  check_long_prompts(device, gated_delta, {2, 4, 16, 80, 3}, DType::kF32, 0);
  check_long_prompts(device, gated_delta, {1, 2, 256, 64, 4}, DType::kF32, 3);
}

TEST(GatedDeltaCuda, RecordedCallsServeAnySegments) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  uint32_t seed = 200;
  for (const DeltaShape& shape : kShapes) {
    for (const int tape_rows : {0, 3, 15}) {
      const DType dtype = ++seed % 2 == 0 ? DType::kF32 : DType::kBF16;
      check_invariance(device, gated_delta, shape, dtype, tape_rows, seed, /*recorded=*/true);
    }
  }
}

TEST(GatedDeltaCuda, SlotsBeginAnewAndEnd) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  check_slot_begins_anew(device, gated_delta);
  check_slot_without_rows_stays(device, gated_delta);
}

}  // namespace
}  // namespace volley::ops
