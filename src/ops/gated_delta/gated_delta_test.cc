// Protects: values against an fp64 oracle; outputs and states have the same bits however a sequence's rows are divided
// into calls and however many drafted rows were wrong; a slot's old contents reach no other sequence. The same for the
// CUDA kernel's threads, over blocks that are simulated here.
#include "ops/gated_delta/gated_delta_simulated_for_test.h"
#include "ops/gated_delta/gated_delta_testing.h"
#include "ops/instruction_sets_for_test.h"

namespace volley::ops {
namespace {

std::unique_ptr<Device> cpu(int threads) {
  return *make_cpu_device(threads);
}

TEST(GatedDelta, MatchesOracleOnEveryInstructionSet) {
  const auto device = cpu(2);
  for_each_instruction_set([&] {
    for (const DeltaShape& shape : kShapes) check_values(*device, gated_delta, shape);
  });
}

TEST(GatedDelta, BitsDoNotDependOnHowRowsFallIntoCalls) {
  uint32_t seed = 0;
  for (const DeltaShape& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int tape_rows : {0, 1, 3, 15}) {
        ++seed;
        check_invariance(*cpu(seed % 2 == 0 ? 1 : 3), gated_delta, shape, dtype, tape_rows, seed);
      }
    }
  }
}

TEST(GatedDelta, ASlotBeginsAnewAtPositionZero) {
  check_slot_begins_anew(*cpu(2), gated_delta);
}

TEST(GatedDelta, ASlotWithoutRowsStaysAsItIs) {
  check_slot_without_rows_stays(*cpu(2), gated_delta);
}

TEST(GatedDeltaDeathTest, ARowThatTheSlotIsNotReadyForIsNoText) {
  const auto device = cpu(1);
  const Weights w(kShapes[0]);
  const Sequence sequence(w, 20, 70);
  World world(*device, w, 1, 3, DType::kF32);
  world.run({{0, 0, 8, 0, &sequence}});  // the state is at 5, the tape reaches to 8
  EXPECT_DEATH(world.run({{0, 9, 1, 0, &sequence}}), "CHECK");
  EXPECT_DEATH(world.run({{0, 4, 1, 0, &sequence}}), "CHECK") << "the state's last row, once more";
}

TEST(GatedDeltaSimulated, MatchesOracle) {
  const auto device = cpu(1);
  for (const DeltaShape& shape : kShapes) check_values(*device, delta::simulate_gated_delta, shape);
  for (const DeltaShape& shape : {DeltaShape{1, 1, 48, 144, 8}, {1, 1, 256, 16, 4}}) {
    check_values(*device, delta::simulate_gated_delta, shape);
  }
}

TEST(GatedDeltaSimulated, BitsDoNotDependOnHowRowsFallIntoCalls) {
  const auto device = cpu(1);
  uint32_t seed = 100;
  for (const DeltaShape& shape : kShapes) {
    for (const int tape_rows : {0, 3, 15}) {
      check_invariance(*device, delta::simulate_gated_delta, shape, seed % 2 == 0 ? DType::kF32 : DType::kBF16,
                       tape_rows, seed);
      ++seed;
    }
  }
}

TEST(GatedDeltaSimulated, SlotsBeginAnewAndEnd) {
  const auto device = cpu(1);
  check_slot_begins_anew(*device, delta::simulate_gated_delta);
  check_slot_without_rows_stays(*device, delta::simulate_gated_delta);
}

// A round plans its memory by steps of up to eight segments, each with the longest that fits beside the others
// (decode/round_memory.cc), and by those of all slots.
TEST(GatedDeltaLong, NoStepTakesMoreMemoryThanThoseOfFewSegments) {
  const auto floats = [](int32_t rows, int32_t segments, int32_t longest, int32_t tape_rows) {
    delta::Call call;
    call.k_heads = 2;
    call.v_heads = 4;
    call.v_width = 4 * 128;
    call.rows = rows;
    call.n_segments = segments;
    call.tape_rows = tape_rows;
    delta::Slabs slabs = delta::plan_slabs(call, longest);
    slabs.padded = 128;
    return delta::slab_floats(call, slabs);
  };
  for (const int32_t tape_rows : {0, 3, 15}) {
    for (const int32_t most : {64, 65, 200, 256, 300, 455, 512, 1024, 8192}) {
      for (const int32_t slots : {1, 2, 3, 5, 8, 64, 256}) {
        int64_t planned = 0;
        for (int32_t n = 1; n <= std::min({8, slots, most}); ++n) {
          planned = std::max(planned, floats(most, n, most - n + 1, tape_rows));
        }
        for (int32_t rows = most; rows > 0; rows -= 1 + rows / 100) {
          for (int32_t n = 1; n <= std::min(slots, rows); n += 1 + n / 16) {
            ASSERT_LE(floats(rows, n, rows - n + 1, tape_rows), planned) << rows << " rows, " << n << " segments";
          }
        }
      }
    }
  }
}

TEST(GatedDelta, ShapesWithoutKernelsAreNamed) {
  EXPECT_TRUE(check_delta_shape({16, 48, 128, 128, 4}).ok());
  EXPECT_EQ(check_delta_shape({3, 4, 128, 128, 4}).error().code, ErrorCode::kInvalidArgument);
  for (const DeltaShape& shape : {DeltaShape{1, 1, 24, 16, 4}, {1, 1, 16, 512, 4}, {1, 1, 16, 16, 9}}) {
    EXPECT_EQ(check_delta_shape(shape).error().code, ErrorCode::kUnimplemented);
  }
}

}  // namespace
}  // namespace volley::ops
