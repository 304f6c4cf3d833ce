// Protects, on a GPU: the tests of router_test.cc, which is built into the same program; a recorded routing uses the
// logits present when it runs; the values equal the CPU's.
#include "ops/router/router_kernels.h"

#include <algorithm>

#include "ops/router/router_testing.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

RouterRule rule_of(int32_t experts, int32_t top_k) {
  RouterRule rule;
  rule.experts = experts;
  rule.top_k = top_k;
  return rule;
}

TEST(RouterCuda, GraphServesWhatTheLogitsAre) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const RouterRule rule = rule_of(128, 8);
  for (int64_t rows : {int64_t{16}, kRowsInOneKernel + 1}) {
    RouterWorld world(device, rule, rows, {.logits = normal_values(rows * 128, 1)});
    const auto graph = device.record([&] { world.run(); });
    for (uint32_t seed : {1, 2}) {
      const std::vector<float> logits = normal_values(rows * 128, seed);
      device.upload(world.call().logits.data, logits.data(), logits.size() * sizeof(float));
      graph->launch();
      const Routed want = route_for_test(device, rule, rows, {.logits = logits});
      const Routed got = world.read();
      EXPECT_EQ(got.experts, want.experts);
      EXPECT_EQ(got.weights, want.weights);
      EXPECT_EQ(got.entries, want.entries);
      EXPECT_EQ(got.offsets, want.offsets);
    }
  }
}

TEST(RouterCuda, ChoosesAsTheCpuDoes) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  const auto cpu = *make_cpu_device(1);
  const int64_t rows = 500;
  RouterInputs in;
  in.logits = normal_values(rows * 128, 4);
  const Routed want = route_for_test(*cpu, rule_of(128, 8), rows, in),
               got = route_for_test(device, rule_of(128, 8), rows, in);
  EXPECT_EQ(got.experts, want.experts);
  EXPECT_EQ(got.entries, want.entries);
  for (size_t i = 0; i < want.weights.size(); ++i) ASSERT_NEAR(got.weights[i], want.weights[i], 1e-6f);
  in.positions.assign(rows, 0);
  for (int64_t r = 0; r < rows; ++r) in.row_slots.push_back(static_cast<int32_t>(r));
  EXPECT_EQ(route_for_test(device, rule_of(128, 8), rows, in).experts,
            route_for_test(*cpu, rule_of(128, 8), rows, in).experts);
}

}  // namespace
}  // namespace volley::ops
