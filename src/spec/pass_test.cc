#include "spec/pass.h"

#include <gtest/gtest.h>

namespace volley::spec {
namespace {

TEST(BlockVisibility, FollowsTheLayers) {
  model::DecoderSpec spec;
  spec.layers.resize(3);
  for (auto& layer : spec.layers) layer.causal = false;
  spec.layers[1] = {model::LayerSpec::Attention::kSlidingWindow, 32, true};
  const ops::Visibility v = block_visibility(spec, 100);
  EXPECT_EQ(v.mask, ops::Mask::kBidirectional);
  EXPECT_EQ(v.window_mask, ops::Mask::kCausal);
  EXPECT_EQ(v.layer_window, 32);
  EXPECT_EQ(v.context_window, 100);
  spec.layers[2] = {model::LayerSpec::Attention::kSlidingWindow, 64, true};
  EXPECT_DEATH(block_visibility(spec, 0), "CHECK failed");
}

}  // namespace
}  // namespace volley::spec
