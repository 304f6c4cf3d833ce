#include "decode/pass.h"

#include <gtest/gtest.h>

namespace volley::decode {
namespace {

TEST(BlockVisibility, FollowsTheLayers) {
  const auto layer = [](int32_t window, bool causal) {
    model::Attention attention;
    attention.window = window;
    attention.causal = causal;
    return model::Layer{attention, model::Dense{}};
  };
  model::Decoder spec;
  spec.layers = {layer(0, false), layer(32, true), layer(0, false)};
  const ops::Visibility v = visibility_of(spec, 100);
  EXPECT_EQ(v.mask, ops::Mask::kBidirectional);
  EXPECT_EQ(v.window_mask, ops::Mask::kCausal);
  EXPECT_EQ(v.layer_window, 32);
  EXPECT_EQ(v.context_window, 100);
  spec.layers[2] = layer(64, true);
  EXPECT_DEATH(visibility_of(spec, 0), "CHECK failed");
}

}  // namespace
}  // namespace volley::decode
