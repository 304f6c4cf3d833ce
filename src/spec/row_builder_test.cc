#include "spec/row_builder.h"

#include <gtest/gtest.h>

namespace volley::spec {
namespace {

class RowBuilder : public ::testing::Test {
 protected:
  model::RowBatch build(const std::vector<RowRun>& runs, const Visibility& visibility) {
    return build_rows(runs, visibility, {table_, DType::kI32, {2, 4}}, segments_, arena_);
  }
  static std::vector<int32_t> list(const TensorView& t) { return {t.as<int32_t>(), t.as<int32_t>() + t.count()}; }

  std::unique_ptr<Device> device_ = *make_cpu_device(1);
  Arena arena_{std::move(device_->allocate(1 << 16)).value()};
  std::vector<ops::RowSegment> segments_;
  int32_t table_[8] = {};
};

using Ints = std::vector<int32_t>;

// Verification and prefill: a row sees itself and what came before it in its own sequence.
TEST_F(RowBuilder, CausalRowsSeeUpToThemselves) {
  const auto batch = build({{1, SequenceIndex(5), 3}, {0, SequenceIndex(0), 2}}, {});
  EXPECT_EQ(list(batch.cache_positions), (Ints{5, 6, 7, 0, 1}));
  EXPECT_EQ(list(batch.rope_positions), (Ints{5, 6, 7, 0, 1}));
  EXPECT_EQ(list(batch.visible_begin), (Ints{0, 0, 0, 0, 0}));
  EXPECT_EQ(list(batch.visible_end), (Ints{6, 7, 8, 1, 2}));
  EXPECT_EQ(batch.window_begin.data, nullptr);
  ASSERT_EQ(batch.segments.size(), 2u);
  EXPECT_EQ(batch.segments[1].row_begin, 3);
  EXPECT_EQ(batch.segments[1].slot, 0);
}

// Drafting: every row of a block sees the context and the whole block, and nothing past it.
TEST_F(RowBuilder, BlockRowsSeeTheirWholeBlock) {
  const auto batch = build({{0, SequenceIndex(10), 4}}, {Mask::kBidirectional});
  EXPECT_EQ(list(batch.visible_begin), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(list(batch.visible_end), (Ints{14, 14, 14, 14}));
}

// --draft-window counts context positions before the block.
TEST_F(RowBuilder, ContextWindowKeepsTheLastPositions) {
  const auto batch =
      build({{0, SequenceIndex(10), 2}, {1, SequenceIndex(3), 2}}, {Mask::kBidirectional, Mask::kCausal, 0, 6});
  EXPECT_EQ(list(batch.visible_begin), (Ints{4, 4, 0, 0}));
}

// A sliding-window layer: |query - key| < window, on both sides within the block.
TEST_F(RowBuilder, LayerWindowIsSymmetricInABlock) {
  const auto batch = build({{0, SequenceIndex(10), 4}}, {Mask::kBidirectional, Mask::kBidirectional, 3});
  EXPECT_EQ(list(batch.window_begin), (Ints{8, 9, 10, 11}));
  EXPECT_EQ(list(batch.window_end), (Ints{13, 14, 14, 14}));
  EXPECT_EQ(list(batch.visible_begin), (Ints{0, 0, 0, 0})) << "full-attention layers of the same network";
}

// A drafter whose sliding layers are causal inside the block while its full layers are not.
TEST_F(RowBuilder, KindsOfLayersMayDifferInTheirMask) {
  const auto batch = build({{0, SequenceIndex(10), 3}}, {Mask::kBidirectional, Mask::kCausal, 8});
  EXPECT_EQ(list(batch.visible_end), (Ints{13, 13, 13}));
  EXPECT_EQ(list(batch.window_end), (Ints{11, 12, 13}));
  EXPECT_EQ(list(batch.window_begin), (Ints{3, 4, 5}));
}

TEST(BlockVisibility, FollowsTheLayers) {
  model::DecoderSpec spec;
  spec.layers.resize(3);
  for (auto& layer : spec.layers) layer.causal = false;
  spec.layers[1] = {model::LayerSpec::Attention::kSlidingWindow, 32, true};
  const Visibility v = block_visibility(spec, 100);
  EXPECT_EQ(v.mask, Mask::kBidirectional);
  EXPECT_EQ(v.window_mask, Mask::kCausal);
  EXPECT_EQ(v.layer_window, 32);
  EXPECT_EQ(v.context_window, 100);
  spec.layers[2] = {model::LayerSpec::Attention::kSlidingWindow, 64, true};
  EXPECT_DEATH(block_visibility(spec, 0), "CHECK failed");
}

TEST_F(RowBuilder, LayerWindowOfCausalRowsEndsAtTheRow) {
  const auto batch = build({{0, SequenceIndex(10), 2}}, {Mask::kCausal, Mask::kCausal, 4});
  EXPECT_EQ(list(batch.window_begin), (Ints{7, 8}));
  EXPECT_EQ(list(batch.window_end), (Ints{11, 12}));
}

}  // namespace
}  // namespace volley::spec
