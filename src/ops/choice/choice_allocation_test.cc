// Counts allocations: choosing must make none once it runs, for it is on the decode path.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "ops/choice/choice_testing.h"

static std::atomic<int64_t> allocations{0};

// Not inlined, or the compiler would see free() beside new and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  std::abort();
}
// AddressSanitizer has one of its own, whose memory the deletes below must not free.
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
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

}  // namespace
}  // namespace volley::ops
