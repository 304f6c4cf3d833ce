// The GPU's bfloat16 against the CPU's. Both round at the same places and add in orders of their own, so neither is the
// other's reference: each is held against float32, and the GPU may not be further away from it than the CPU is.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "model_runner.h"

namespace volley::testing {
namespace {

using Rows = std::vector<std::vector<float>>;

// ||a - b|| / ||b|| over all rows.
double distance(const Rows& a, const Rows& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      difference += std::pow(double{a[i][j]} - double{b[i][j]}, 2);
      norm += std::pow(double{b[i][j]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

Rows logits(const std::string& dir, ComputeType type, const std::string& device, std::optional<uint64_t> dummy) {
  ModelRunner model(dir, "", type, 256, dummy, device);
  std::vector<TokenId> ids;
  for (int i = 0; i < 200; ++i) ids.push_back((i * 37 + 11) % std::min(model.spec().vocab, 2000));
  return model.logits(ids, 67);
}

TEST(DeviceParity, BFloat16IsAsNearToFloat32OnTheGpuAsOnTheCpu) {
  const std::vector<std::pair<std::string, std::optional<uint64_t>>> models = {
      {"models/pocket", std::nullopt},       {"tests/data/targets/plain", 3},
      {"tests/data/targets/mha_llama3", 4},  {"tests/data/targets/wide_heads_yarn", 5},
      {"tests/data/targets/hybrid_wide", 6}, {"tests/data/targets/next_mixed", 7}};
  for (const auto& [dir, dummy] : models) {
    const Rows exact = logits(dir, ComputeType::kFloat32, "cpu", dummy);
    const double cpu = distance(logits(dir, ComputeType::kBFloat16, "cpu", dummy), exact);
    const double gpu = distance(logits(dir, ComputeType::kBFloat16, kTestDevice, dummy), exact);
    std::printf("%-36s bfloat16 from float32: CPU %.4f, GPU %.4f\n", dir.c_str(), cpu, gpu);
    EXPECT_GT(gpu, 0) << dir << ": nothing was rounded";
    EXPECT_LT(gpu, 1.25 * cpu) << dir;
  }
}

}  // namespace
}  // namespace volley::testing
