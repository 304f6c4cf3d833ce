// Counts and refuses allocations: choosing must make none once it runs, for it is on the decode path, and what there is
// no memory for ends one request alone.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "base/operator_new_for_test-inl.h"
#include "ops/choice/choice_testing.h"

static std::atomic<int64_t> allocations{0};
static std::atomic<size_t> refused_from{SIZE_MAX};  // bytes

static bool refuses_allocation(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return size >= refused_from.load(std::memory_order_relaxed);
}

namespace volley::ops {
namespace {

TEST(ChoiceAllocation, ChoicesWithoutLogprobsAllocateNothing) {
  std::mt19937 rng(12);
  constexpr int32_t kVocab = 40009;
  constexpr int32_t kRows = 5;
  auto device = *make_cpu_device(2);
  const std::unique_ptr<SamplerState> state = std::move(SamplerState::create(*device, 1, kVocab)).value();
  const int64_t scratch = scratch_of_choices(device->stream(), *state, kRows, kVocab);
  Arena arena(std::move(device->allocate(static_cast<size_t>(scratch))).value());
  SlotSampling sampling;
  sampling.params = filtering(1.0f, 100, 0.9f);
  sampling.params.repetition_penalty = 1.1f;
  ASSERT_TRUE(state->start(0, sampling, {}, {}).ok());
  std::vector<float> logits = random_logits(rng, size_t{kRows} * kVocab, 2.0f);
  std::vector<TokenId> tokens(kRows);
  std::vector<float> probability(kRows);
  const ChoiceSegment segment = {.slot = 0, .row_begin = 0, .rows = kRows, .first_index = 0};
  const ChoiceOutput out = {.tokens = tokens.data(), .probability = probability.data()};
  const TensorView view(logits.data(), DType::kF32, {kRows, kVocab});
  choose(device->stream(), view, {&segment, 1}, *state, out, arena);
  const int64_t before = allocations.load();
  for (int i = 0; i < 3; ++i) choose(device->stream(), view, {&segment, 1}, *state, out, arena);
  EXPECT_EQ(allocations.load(), before);
  EXPECT_GT(before, 0);  // the counter counts
}

TEST(ChoiceAllocation, WithoutMemoryForItsCountsARequestIsRefused) {
  constexpr int32_t kVocab = 40009;
  auto device = *make_cpu_device(1);
  const std::unique_ptr<SamplerState> state = std::move(SamplerState::create(*device, 1, kVocab)).value();
  SlotSampling plain, penalised;
  penalised.params.presence_penalty = 1;
  const std::vector<TokenId> prompt = {1, 2}, output = {3};
  ASSERT_TRUE(state->start(0, penalised, prompt, output).ok());
  state->clear(0);
  refused_from = kVocab;
  const Status refused = state->start(0, penalised, prompt, output);
  const Status without = state->start(0, plain, prompt, output);  // it needs no counts
  refused_from = SIZE_MAX;
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(without.ok());
  EXPECT_TRUE(state->start(0, penalised, prompt, output).ok());
}

}  // namespace
}  // namespace volley::ops
