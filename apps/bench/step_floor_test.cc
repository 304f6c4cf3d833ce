// Checks the floors of a step against sums done by hand.
#include "apps/bench/step_floor.h"

#include <gtest/gtest.h>

#include "decode/proposers.h"
#include "families/family.h"

namespace volley::apps {
namespace {

// With Qwen3-8B's shapes and its five-layer drafter, a step with blocks of 16 reads about 18.5 GB in bf16.
TEST(StepFloor, ShapesOfAnEightBillionPair) {
  const auto target = families::read_target("models/shapes/qwen3-8b");
  const auto draft = decode::read_proposer("models/shapes/qwen3-8b-dflash");
  ASSERT_TRUE(target.ok() && draft.ok());
  const double layer = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 12288;  // matrices
  const double head = 151936.0 * 4096;
  const decode::StepWeights alone = decode::step_weights(target->decoder, nullptr);
  const decode::StepWeights both = decode::step_weights(target->decoder, &(*draft)->facts());
  const StepFloor plain = step_floor(alone, {1, 1, 0}, {}, {});
  EXPECT_NEAR(plain.weight_bytes, 2 * (36 * layer + head), 1e-3 * plain.weight_bytes);
  const StepFloor drafted = step_floor(both, {1, 16, 0}, {}, {});
  EXPECT_NEAR(drafted.weight_bytes, 2 * (41 * layer + 2 * head + 5 * 4096.0 * 4096), 1e-3 * drafted.weight_bytes);
  const StepFloor quantised = step_floor(both, {1, 16, 0}, {2, 1}, {});
  EXPECT_NEAR(drafted.weight_bytes - quantised.weight_bytes, 5 * layer + 5 * 4096.0 * 4096,
              1e-3 * quantised.weight_bytes);
  const StepFloor both_quantised = step_floor(both, {1, 16, 0}, {1, 1, 0, 2}, {});
  EXPECT_NEAR(both_quantised.weight_bytes, 41 * layer + 2 * 2 * head + 5 * 4096.0 * 4096,
              1e-3 * quantised.weight_bytes);
  EXPECT_NEAR(drafted.flops / 16, drafted.weight_bytes, 1) << "two flops a weight of two bytes, for each row";
}

// A mixture reads the experts of its step, and computes top_k experts a row.
TEST(StepFloor, CountsTheExpertsThatWereTouched) {
  const decode::StepWeights weights = {1000, 0, 0, 50, 8};
  const StepFloor floor = step_floor(weights, {1, 4, 0, 20}, {}, {});
  EXPECT_DOUBLE_EQ(floor.weight_bytes, 2 * (1000 + 20 * 50));
  EXPECT_DOUBLE_EQ(floor.flops, 2 * 4 * (1000 + 8 * 50));
  const StepFloor quantised = step_floor(weights, {1, 4, 0, 20}, {2, 2, 0.5}, {});
  EXPECT_DOUBLE_EQ(quantised.weight_bytes, 2 * 1000 + 20 * 50 / 2);
}

TEST(StepFloor, KvGrowsWithRequestsAndContext) {
  const StepFloor floor = step_floor({40, 0}, {3, 1, 100}, {}, {8, 0});
  EXPECT_DOUBLE_EQ(floor.kv_bytes, 3 * 100 * 8);
  EXPECT_DOUBLE_EQ(floor.bytes(), floor.weight_bytes + floor.kv_bytes);
  MachineSpeed speed;
  speed.read_bytes_per_s = 1e3;
  EXPECT_DOUBLE_EQ(floor.read_ms(speed), floor.bytes());
}

// Qwen3.5-27B's shapes have 48 recurrent layers. A step reads and writes their states and the tape of a block once.
TEST(StepFloor, StatesOfRecurrentLayersDoNotGrowWithContext) {
  const auto target = families::read_target("models/shapes/qwen3.5-27b");
  ASSERT_TRUE(target.ok());
  const double state = 48 * (48.0 * 128 * 128 * 4), row = 48 * (2 * 16 + 48) * 128 * 2.0;
  const int64_t plain = request_state_bytes(target->decoder, 1, DType::kBF16);
  const int64_t drafted = request_state_bytes(target->decoder, 16, DType::kBF16);
  EXPECT_NEAR(static_cast<double>(plain), state + 3 * row, 1e-3 * state);
  EXPECT_NEAR(static_cast<double>(drafted - plain), 15 * (row + 48 * 2 * 48 * 4.0), 1e-3 * state);
  const StepFloor floor = step_floor({40, 0}, {3, 16, 100}, {}, {8, drafted});
  EXPECT_DOUBLE_EQ(floor.state_bytes, 2 * 3 * static_cast<double>(drafted));
  EXPECT_DOUBLE_EQ(floor.bytes(), 2 * 40 + 3 * 100 * 8 + floor.state_bytes);
  EXPECT_DOUBLE_EQ(step_floor({40, 0}, {3, 16, 9000}, {}, {8, drafted}).state_bytes, floor.state_bytes);
  const auto dense = families::read_target("models/shapes/qwen3-8b");
  ASSERT_TRUE(dense.ok());
  EXPECT_EQ(request_state_bytes(dense->decoder, 16, DType::kBF16), 0);
}

}  // namespace
}  // namespace volley::apps
