// Protects, on a GPU: the choices equal the CPU's, to the bit; rows of many equal values and of vocabularies that
// exceed shared memory; summaries of rows give the same choices; recorded graphs use the current contents of device
// memory; and counts of committed tokens.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/choice/choice_testing.h"

namespace volley::ops {
namespace {

class ChoiceCuda : public ChoiceTest {};

SamplingParams random_params(std::mt19937& rng) {
  SamplingParams p;
  p.temperature = pick(rng, std::vector<float>{0.0f, 0.3f, 0.6f, 1.0f, 1.7f});
  p.top_p = pick(rng, std::vector<float>{1.0f, 1.0f, 0.95f, 0.5f});
  p.top_k = pick(rng, std::vector<int32_t>{0, 0, 1, 20, 32, 33, 400});
  p.min_p = pick(rng, std::vector<float>{0.0f, 0.0f, 0.02f});
  p.repetition_penalty = pick(rng, std::vector<float>{1.0f, 1.0f, 1.2f});
  p.frequency_penalty = pick(rng, std::vector<float>{0.0f, 0.0f, 0.5f});
  p.presence_penalty = pick(rng, std::vector<float>{0.0f, 0.0f, 1.5f});
  p.logprobs = pick(rng, std::vector<int32_t>{-1, 0, 3, 20});
  p.choice_index = rng() % 3;
  return p;
}

std::vector<TokenId> random_tokens(std::mt19937& rng, size_t n, int32_t vocab) {
  std::vector<TokenId> tokens(n);
  for (TokenId& t : tokens) t = static_cast<TokenId>(rng() % vocab);
  return tokens;
}

// The same random requests and blocks on both devices.
class Pair {
 public:
  Pair(std::mt19937& rng, int32_t slots, int32_t vocab) : vocab_(vocab) {
    cpu_state_ = cpu_.state(slots, vocab);
    gpu_state_ = gpu_.state(slots, vocab);
    for (int32_t slot = 0; slot < slots; ++slot) {
      SlotSampling s;
      s.params = random_params(rng);
      s.seed = (uint64_t{rng()} << 32) | rng();
      s.prompt_length = 30;
      s.min_tokens = static_cast<int32_t>(rng() % 14);
      s.end_ids = {1, 3, 1};
      if (rng() % 3 == 0) {
        for (int i = 0; i < 300; ++i) {  // tokens that occur several times among them
          const auto bias = static_cast<float>(static_cast<int>(rng() % 41) - 20) * 0.37f;
          s.params.logit_bias.emplace_back(static_cast<TokenId>(rng() % std::min(vocab, 700)), bias);
        }
      }
      const auto prompt = random_tokens(rng, 30, std::min(vocab, 2000)), output = random_tokens(rng, 9, vocab);
      EXPECT_TRUE(cpu_state_->start(slot, s, prompt, output).ok());
      EXPECT_TRUE(gpu_state_->start(slot, s, prompt, output).ok());
      ChoiceSegment segment = {.slot = slot, .row_begin = rows_, .rows = 1 + slot % 5, .first_index = 39};
      if (slot % 2 == 0) segment.prefix = keep(prefixes_, random_tokens(rng, segment.rows, std::min(vocab, 9)));
      if (rng() % 4 == 0) {
        segment.mask_words = std::max(1, vocab / 32);
        std::vector<uint32_t> mask(static_cast<size_t>(segment.rows) * segment.mask_words);
        for (uint32_t& word : mask) word = rng() | 1u;
        segment.mask = keep(masks_, std::move(mask));
      }
      segments_.push_back(segment);
      rows_ += segment.rows;
      segments_.push_back({.slot = slot, .row_begin = rows_, .rows = 0});
      if (slot % 3 == 0) ++rows_;  // a row that no segment covers
    }
  }

  int32_t rows() const { return rows_; }

  void expect_equal(const std::vector<float>& logits) {
    const Choices cpu = cpu_(logits, vocab_, segments_, *cpu_state_),
                  gpu = gpu_(logits, vocab_, segments_, *gpu_state_);
    ASSERT_EQ(gpu.tokens, cpu.tokens) << "vocabulary " << vocab_;
    ASSERT_EQ(gpu.finite, cpu.finite);
    for (int32_t row = 0; row < rows_; ++row) {
      // Sums of the devices' own exponentials.
      ASSERT_NEAR(gpu.probability[row], cpu.probability[row], 1e-5 * std::abs(cpu.probability[row]) + 1e-7);
      const PositionLogprobs &a = gpu.logprobs[row], &b = cpu.logprobs[row];
      ASSERT_EQ(a.top.size(), b.top.size());
      ASSERT_NO_FATAL_FAILURE(expect_equal(a.chosen, b.chosen));
      for (size_t i = 0; i < a.top.size(); ++i) ASSERT_NO_FATAL_FAILURE(expect_equal(a.top[i], b.top[i]));
    }
  }

 private:
  // Logarithms are rounded by each device's own library.
  static void expect_equal(const TokenLogprob& a, const TokenLogprob& b) {
    ASSERT_EQ(a.token, b.token);
    if (a.logprob == b.logprob) return;  // -inf too
    ASSERT_NEAR(a.logprob, b.logprob, 1.2e-7 * std::abs(b.logprob));
  }
  template <typename T>
  static const T* keep(std::vector<std::vector<T>>& held, std::vector<T> values) {
    held.push_back(std::move(values));
    return held.back().data();
  }

  int32_t vocab_;
  int32_t rows_ = 0;
  Chooser cpu_{std::move(make_cpu_device(1)).value(), 1};
  Chooser gpu_{0};
  std::unique_ptr<SamplerState> cpu_state_, gpu_state_;
  std::vector<std::vector<TokenId>> prefixes_;
  std::vector<std::vector<uint32_t>> masks_;
  std::vector<ChoiceSegment> segments_;
};

TEST_F(ChoiceCuda, EqualsTheCpuBitForBit) {
  std::mt19937 rng(21);
  for (const int32_t vocab : {4, 33, 700, 5003, 40009, 151936}) {
    for (int round = 0; round < (vocab > 10000 ? 2 : 12); ++round) {
      Pair pair(rng, vocab > 10000 ? 12 : 40, vocab);
      const float spread = pick(rng, std::vector<float>{0.2f, 2.0f, 9.0f});
      std::vector<float> logits = random_logits(rng, static_cast<size_t>(pair.rows()) * vocab, spread);
      if (round % 3 == 2) logits[rng() % logits.size()] = std::nanf("");
      if (round % 3 == 1) logits[rng() % logits.size()] = -std::numeric_limits<float>::infinity();
      ASSERT_NO_FATAL_FAILURE(pair.expect_equal(logits));
    }
  }
}

// More equal tokens than any list of candidates holds, at every cut.
TEST_F(ChoiceCuda, EqualsTheCpuWhereManyValuesAreEqual) {
  std::mt19937 rng(22);
  for (const int32_t vocab : {3000, 30000}) {
    for (const float step : {100.0f, 4.0f, 0.5f}) {
      Pair pair(rng, 14, vocab);
      std::vector<float> logits = random_logits(rng, static_cast<size_t>(pair.rows()) * vocab, 2.0f);
      for (float& x : logits) x = std::round(x / step) * step;
      ASSERT_NO_FATAL_FAILURE(pair.expect_equal(logits));
    }
  }
}

TEST_F(ChoiceCuda, EqualsTheCpuOnTheLargestVocabulary) {
  std::mt19937 rng(23);
  Pair pair(rng, 4, kMaxVocab);
  ASSERT_NO_FATAL_FAILURE(pair.expect_equal(random_logits(rng, static_cast<size_t>(pair.rows()) * kMaxVocab, 2.0f)));
}

// A graph is recorded once: its slots, rows and positions are those in memory when it runs.
TEST_F(ChoiceCuda, RecordedGraphsFollowTheSegments) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  std::mt19937 rng(24);
  constexpr int32_t kVocab = 9001, kRows = 6, kSegments = 3;
  const auto state = std::move(SamplerState::create(device, 2, kVocab)).value();
  const std::vector<float> values = random_logits(rng, size_t{kRows} * kVocab, 2.0f);
  const DeviceTensor logits(device, values), segments(device, std::vector<ChoiceSegment>(kSegments));
  const DeviceTensor tokens(device, kRows * sizeof(TokenId));
  Arena arena(std::move(device.allocate(scratch_of_choices(device.stream(), *state, kRows, kVocab))).value());
  ChoiceSegment* on_device =
      segments.view(DType::kU8, {kSegments * int64_t{sizeof(ChoiceSegment)}}).as<ChoiceSegment>();
  const ChoiceOutput out = {.tokens = tokens.view(DType::kI32, {kRows}).as<TokenId>()};
  const auto graph = device.record([&] {
    choose(device.stream(), logits.view(DType::kF32, {kRows, kVocab}), {on_device, kSegments}, *state, out, arena);
  });
  Chooser direct(0);
  for (int round = 0; round < 8; ++round) {
    const auto fresh = direct.state(2, kVocab);
    for (int32_t slot = 0; slot < 2; ++slot) {
      SlotSampling s;
      s.params = random_params(rng);
      s.seed = rng();
      for (SamplerState* each : {state.get(), fresh.get()}) ASSERT_TRUE(each->start(slot, s, {}, {}).ok());
    }
    const int32_t first = static_cast<int32_t>(rng() % 3), second = static_cast<int32_t>(rng() % 3) + 1;
    const std::vector<ChoiceSegment> now = {
        {.slot = 1, .row_begin = 0, .rows = first, .first_index = round},
        {.slot = 0, .row_begin = 2, .rows = second, .first_index = 3 * round},
        {.slot = 0, .row_begin = 0, .rows = 0},
    };
    device.upload(on_device, now.data(), now.size() * sizeof(ChoiceSegment));
    const std::vector<TokenId> untouched(kRows, -7);
    device.upload(out.tokens, untouched.data(), kRows * sizeof(TokenId));
    graph->launch();
    EXPECT_EQ(tokens.read<TokenId>(), direct(values, kVocab, now, *fresh).tokens) << round;
  }
}

// Requests of a `kind`: three plain greedy ones, and all kinds that need their logits.
constexpr int kKinds = 10;
SlotSampling request_of(int kind) {
  SlotSampling s;
  s.seed = 5 + static_cast<uint64_t>(kind);
  s.params.temperature = 0.0f;
  s.prompt_length = 4;
  s.end_ids = {1, 2};
  switch (kind) {
    case 3:
      s.params.temperature = 0.8f;
      break;
    case 4:
      s.params = filtering(0.7f, 3, 0.9f);
      break;
    case 5:
      s.params.frequency_penalty = 0.5f;
      break;
    case 6:
      s.params.logit_bias = {{3, 4.0f}, {1, -100.0f}};
      break;
    case 7:
      s.min_tokens = 3;  // the first rows of its block
      break;
    case 8:
      s.params.logprobs = 2;
      break;
    default:  // 9 has a mask
      break;
  }
  return s;
}

// Which rows are summarised depends on the request, the row's index and the requested outputs; the choices are the
// same.
TEST_F(ChoiceCuda, SummariesGiveTheSameChoices) {
  std::mt19937 rng(26);
  Chooser choose_on(0);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int32_t vocab : {4, 64, 68, 700, 40008, 151936}) {
    const auto state = choose_on.state(kKinds, vocab);
    std::vector<ChoiceSegment> segments;
    const std::vector<uint32_t> mask(5 * ((vocab + 31) / 32), 0x5a5a5a5au);
    int32_t rows = 0;
    for (int32_t slot = 0; slot < kKinds; ++slot) {
      ASSERT_TRUE(state->start(slot, request_of(slot), {}, {}).ok());
      segments.push_back({.slot = slot, .row_begin = rows, .rows = 1 + slot % 5, .first_index = 5});
      if (slot == 9) segments.back().mask = mask.data(), segments.back().mask_words = (vocab + 31) / 32;
      rows += segments.back().rows + slot % 2;  // sometimes a row that no segment covers
    }
    for (int round = 0; round < 6; ++round) {
      std::vector<float> logits = random_logits(rng, static_cast<size_t>(rows) * vocab, 2.0f);
      const auto any = [&]() -> float& { return logits[rng() % logits.size()]; };
      if (round == 1)
        std::transform(logits.begin(), logits.end(), logits.begin(), [](float x) { return std::round(x); });
      if (round == 2) std::fill(logits.begin(), logits.end(), -0.0f), any() = 0.0f;
      if (round == 3) any() = std::nanf(""), any() = std::nanf("");
      if (round == 4) any() = kInfinity, any() = -kInfinity;
      if (round == 5) std::fill(logits.begin(), logits.begin() + int64_t{rows / 2} * vocab, -kInfinity);
      const Choices want = choose_on(logits, vocab, segments, *state),
                    got = choose_on(logits, vocab, segments, *state, true);
      ASSERT_EQ(got.tokens, want.tokens) << "vocabulary " << vocab << " round " << round;
      ASSERT_EQ(got.finite, want.finite);
      for (int32_t row = 0; row < rows; ++row) {
        ASSERT_NEAR(got.probability[row], want.probability[row], 1e-5 * std::abs(want.probability[row]) + 1e-7);
        ASSERT_EQ(got.logprobs[row].top.size(), want.logprobs[row].top.size());
        ASSERT_EQ(got.logprobs[row].chosen.token, want.logprobs[row].chosen.token);
      }
    }
  }
}

TEST_F(ChoiceCuda, PlainGreedyRowsAloneAreSummarised) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  constexpr int32_t kVocab = 700, kRows = kKinds * 5;
  const auto state = std::move(SamplerState::create(device, kKinds, kVocab)).value();
  const DeviceTensor mask(device, std::vector<uint32_t>(5 * 22, ~0u)), tokens(device, kRows * sizeof(TokenId));
  const DeviceTensor logprobs(device, kRows * sizeof(RowLogprobs));
  std::vector<ChoiceSegment> segments;
  for (int32_t slot = 0; slot < kKinds; ++slot) {
    ASSERT_TRUE(state->start(slot, request_of(slot), {}, {}).ok());
    segments.push_back({.slot = slot, .row_begin = slot * 5, .rows = 4, .first_index = 5});
  }
  segments.back().mask = mask.view(DType::kU8, {5 * 22 * 4}).as<uint32_t>();
  segments.back().mask_words = 22;
  const DeviceTensor placed(device, segments);
  const auto* const on_device = placed.view(DType::kU8, {kKinds * int64_t{sizeof(ChoiceSegment)}}).as<ChoiceSegment>();
  Arena arena(std::move(device.allocate(scratch_of_choices(device.stream(), *state, kRows, kVocab))).value());
  for (const bool wants_logprobs : {false, true}) {
    ArenaScope scope(arena);
    ChoiceTask task = {kRows, {on_device, kKinds}, state.get(), {}};
    task.out.tokens = tokens.view(DType::kI32, {kRows}).as<TokenId>();
    if (wants_logprobs) {
      task.out.logprobs = logprobs.view(DType::kU8, {kRows * int64_t{sizeof(RowLogprobs)}}).as<RowLogprobs>();
    }
    const ChoicePlan plan = plan_choices(device.stream(), task, true, arena);
    EXPECT_FALSE(plan.summaries.weights);
    std::vector<uint8_t> whole(kRows), want(kRows, 0);
    device.download(whole.data(), plan.summaries.whole, whole.size());
    for (int32_t row = 0; row < kRows; ++row) {
      const int32_t kind = row / 5, i = row % 5;
      if (i < 4) want[row] = kind == 7 ? i < 2 : kind == 8 ? wants_logprobs : kind >= 3;
    }
    EXPECT_EQ(whole, want);
  }
  EXPECT_EQ(plan_choices(
                device.stream(),
                {kRows, {on_device, kKinds}, state.get(), {.tokens = tokens.view(DType::kI32, {kRows}).as<TokenId>()}},
                false, arena)
                .summaries.whole,
            nullptr);
}

TEST_F(ChoiceCuda, CommittedTokensOnTheDeviceCountLikeTheHosts) {
  std::mt19937 rng(25);
  constexpr int32_t kVocab = 50, kSlots = 3, kStride = 4;
  Chooser choose_on(0);
  const auto one = choose_on.state(kSlots, kVocab), other = choose_on.state(kSlots, kVocab);
  for (int32_t slot = 0; slot < kSlots; ++slot) {
    SlotSampling s;
    s.params.temperature = 0.0f;
    if (slot != 1) s.params.frequency_penalty = 0.7f;
    if (slot == 2) s.params.repetition_penalty = 1.3f;
    for (SamplerState* each : {one.get(), other.get()}) ASSERT_TRUE(each->start(slot, s, {}, {}).ok());
  }
  Stream& stream = choose_on.device().stream();
  for (int round = 0; round < 20; ++round) {
    const std::vector<int32_t> slots = {2, 0, 1, 0}, counts = {4, 0, 3, static_cast<int32_t>(rng() % 5)};
    const std::vector<TokenId> tokens = random_tokens(rng, slots.size() * kStride, 6);
    const DeviceTensor s(choose_on.device(), slots), c(choose_on.device(), counts), t(choose_on.device(), tokens);
    one->append_committed(stream, {.slots = s.view(DType::kI32, {4}).as<int32_t>(),
                                   .counts = c.view(DType::kI32, {4}).as<int32_t>(),
                                   .tokens = t.view(DType::kI32, {4 * kStride}).as<TokenId>(),
                                   .n = 4,
                                   .stride = kStride});
    for (size_t i = 0; i < slots.size(); ++i) {
      other->append(slots[i], std::span(tokens).subspan(i * kStride, static_cast<size_t>(counts[i])));
    }
    std::vector<float> logits = random_logits(rng, kSlots * kVocab, 1.0f);
    for (int32_t i = 0; i < kSlots; ++i) {
      for (int32_t v = 0; v < 6; ++v) logits[i * kVocab + v] += 9.0f;
    }
    std::vector<ChoiceSegment> segments;
    for (int32_t i = 0; i < kSlots; ++i) segments.push_back({.slot = i, .row_begin = i, .rows = 1, .first_index = 7});
    EXPECT_EQ(choose_on(logits, kVocab, segments, *one).tokens, choose_on(logits, kVocab, segments, *other).tokens);
  }
}

}  // namespace
}  // namespace volley::ops
