// The parts of a step add up to it: kernels that overlap, waits, draft and target, and steps that are left out.
#include "apps/bench/step_account.h"

#include <gmock/gmock.h>

namespace volley::apps {
namespace {

// From `at`: 2 ms of the draft, a wait of 1 ms, attention that overlaps a product by half a millisecond, the end.
std::vector<KernelRun> step(uint64_t at) {
  const auto ns = [&](double ms) { return at + static_cast<uint64_t>(ms * 1e6); };
  return {{"_ZN23linear_tiles_kernelI", ns(0), ns(2), 5},
          {"_ZN22attention_hopper_kernelI", ns(3), ns(4.5), 7},
          {"_ZN23linear_tiles_kernelI", ns(3.5), ns(5), 7},
          {"_ZN12_step_cuda_cu_13accept_kernelE", ns(5), ns(5.25), 7}};
}

TEST(StepAccount, PartsAddUpToTheStep) {
  std::vector<KernelRun> runs = {{"a prompt", 0, 100, 0}, {"accept_kernel", 100, 200, 0}};
  for (int i = 0; i < 3; ++i) {
    for (const KernelRun& run : step(1'000'000 + i * uint64_t{5'250'000})) runs.push_back(run);
  }
  const std::string text = step_account(runs);
  EXPECT_THAT(text, testing::HasSubstr("a step of 5.250 ms, mean of 2"));
  EXPECT_THAT(text, testing::ContainsRegex("attention +1\\.500 +0\\.000 +28\\.6% +1\\.0\n"));
  EXPECT_THAT(text, testing::ContainsRegex("products +0\\.500 +2\\.000 +47\\.6% +2\\.0\n"));
  EXPECT_THAT(text, testing::ContainsRegex("choice +0\\.250 +0\\.000 +4\\.8% +1\\.0\n"));
  EXPECT_THAT(text, testing::ContainsRegex("waits between kernels +1\\.000 "));
  EXPECT_EQ(step_account({}), "--kernel-times saw no steps of a GPU.\n");
}

}  // namespace
}  // namespace volley::apps
