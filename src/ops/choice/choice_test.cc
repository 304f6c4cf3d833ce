// Each step of the sampling rule against the oracle, and edge cases.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/choice/choice_testing.h"

namespace volley::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Choice : public ChoiceTest {};

struct Tally {
  int cases = 0;
  int decided = 0;
};

// Rounding may turn a decision that is closer than this, relative to its numbers' size around 1 to 100.
constexpr double kDecisive = 5e-5;

void expect_like_oracle(Chooser& choose_on, const OracleInput& in, size_t drafted, Tally& tally) {
  const OracleChoice expected = oracle_choose(in);
  ++tally.cases;
  if (expected.margin < kDecisive) return;
  ++tally.decided;
  const Choices got = choose_on.one(in, drafted);
  const SamplingParams& p = in.sampling.params;
  ASSERT_EQ(got.tokens[0], expected.token)
      << "T " << p.temperature << " min_p " << p.min_p << " top_k " << p.top_k << " top_p " << p.top_p << " vocab "
      << in.logits.size() << " margin " << expected.margin;
  ASSERT_NEAR(got.probability[0], expected.probability, 1e-5 * expected.probability + 1e-7);
  ASSERT_EQ(got.finite[0], 1);
}

OracleInput random_case(std::mt19937& rng, int32_t vocab, float spread) {
  OracleInput in;
  in.logits = random_logits(rng, vocab, spread);
  in.sampling.seed = (uint64_t{rng()} << 32) | rng();
  in.sampling.params.choice_index = rng() % 4;
  in.index = static_cast<int32_t>(rng() % 5000);
  return in;
}

// Protects the order of the filters and their thresholds, over all combinations of their parameters.
TEST_F(Choice, FiltersMatchTheOracle) {
  std::mt19937 rng(3);
  Chooser choose_on(1);
  Tally tally;
  for (const int32_t vocab : {1, 7, 64, 1000, 5000}) {
    for (const float spread : {0.05f, 1.0f, 4.0f, 15.0f}) {
      for (const float temperature : {0.0f, 0.3f, 1.0f, 1.7f}) {
        for (const float min_p : {0.0f, 0.01f, 0.3f}) {
          for (const int32_t top_k : {-1, 1, 5, 40}) {
            for (const float top_p : {1.0f, 0.95f, 0.4f}) {
              OracleInput in = random_case(rng, vocab, spread);
              in.sampling.params.temperature = temperature;
              in.sampling.params.min_p = min_p;
              in.sampling.params.top_k = top_k;
              in.sampling.params.top_p = top_p;
              ASSERT_NO_FATAL_FAILURE(expect_like_oracle(choose_on, in, 0, tally));
            }
          }
        }
      }
    }
  }
  EXPECT_GT(tally.decided, tally.cases * 8 / 10);  // the rest were too close to call
}

std::vector<TokenId> random_tokens(std::mt19937& rng, size_t n, int32_t vocab) {
  std::vector<TokenId> tokens(n);
  for (TokenId& t : tokens) t = static_cast<TokenId>(rng() % vocab);
  return tokens;
}

// Protects penalties, bias, min_tokens and grammar masks, alone and together, with part of the output still inside the
// block.
TEST_F(Choice, AdjustmentsMatchTheOracle) {
  std::mt19937 rng(4);
  Chooser choose_on(1);
  Tally tally;
  for (int i = 0; i < 3000; ++i) {
    const int32_t vocab = pick(rng, std::vector<int32_t>{5, 40, 300});
    OracleInput in = random_case(rng, vocab, 2.0f);
    SamplingParams& p = in.sampling.params;
    p.temperature = pick(rng, std::vector<float>{0.0f, 0.8f, 1.0f});
    p.top_p = pick(rng, std::vector<float>{1.0f, 0.9f});
    p.repetition_penalty = pick(rng, std::vector<float>{1.0f, 1.3f, 0.8f});
    p.presence_penalty = pick(rng, std::vector<float>{0.0f, 0.7f, -0.5f});
    p.frequency_penalty = pick(rng, std::vector<float>{0.0f, 0.4f, -0.2f});
    if (rng() % 2 == 0) p.logit_bias = {{static_cast<TokenId>(rng() % vocab), 2.5f}, {0, -1.5f}};
    in.prompt = random_tokens(rng, rng() % 20, vocab);
    in.output = random_tokens(rng, rng() % 12, vocab);
    in.sampling.prompt_length = static_cast<int32_t>(in.prompt.size());
    in.index = static_cast<int32_t>(in.prompt.size() + in.output.size());
    in.sampling.min_tokens = static_cast<int32_t>(rng() % 12);
    in.sampling.end_ids = {1, 3};
    if (rng() % 2 == 0) {
      // The vocabulary's end may lie beyond the mask; one token at least stays, whatever min_tokens takes.
      in.mask.assign(std::max(1, vocab / 32), 0);
      for (uint32_t& word : in.mask) word = pick(rng, std::vector<uint32_t>{0, ~0u, static_cast<uint32_t>(rng())});
      in.mask[0] |= 1u;
    }
    const size_t drafted = in.output.empty() ? 0 : rng() % (in.output.size() + 1);
    ASSERT_NO_FATAL_FAILURE(expect_like_oracle(choose_on, in, drafted, tally)) << "case " << i;
  }
  EXPECT_GT(tally.decided, tally.cases * 95 / 100);
}

TEST_F(Choice, TiesGoToTheLowestId) {
  Chooser choose_on(1);
  OracleInput in;
  in.logits.assign(9000, 1.0f);
  for (const size_t v : {4500, 130, 8999}) in.logits[v] = 2.0f;
  in.sampling.params.temperature = 0.0f;
  EXPECT_EQ(choose_on.one(in).tokens[0], 130);
  // One token is left by top-k 1, and by a top-p that the first of three equal tokens reaches.
  for (SamplingParams p : {filtering(1.0f, 1), filtering(1.0f, 0, 1e-6f)}) {
    in.sampling.params = p;
    for (in.index = 0; in.index < 50; ++in.index) ASSERT_EQ(choose_on.one(in).tokens[0], 130);
  }
  // top-k 2 leaves two of the three: the lower ids.
  in.sampling.params = filtering(1.0f, 2);
  std::array<int, 2> drawn{};
  for (in.index = 0; in.index < 50; ++in.index) {
    const TokenId token = choose_on.one(in).tokens[0];
    ASSERT_TRUE(token == 130 || token == 4500) << token;
    ++drawn[token == 4500];
  }
  EXPECT_GT(drawn[0], 0);
  EXPECT_GT(drawn[1], 0);
}

// Many equal values at every threshold: the sets must still be those of the order (value, id).
TEST_F(Choice, FiltersDecideTiesById) {
  std::mt19937 rng(5);
  Chooser choose_on(1);
  Tally tally;
  for (int i = 0; i < 600; ++i) {
    OracleInput in = random_case(rng, 200, 1.0f);
    for (float& x : in.logits) x = std::round(2.0f * x) / 2.0f;
    in.sampling.params.top_k = pick(rng, std::vector<int32_t>{0, 3, 17, 90});
    in.sampling.params.top_p = pick(rng, std::vector<float>{1.0f, 0.7f, 0.3f});
    in.sampling.params.min_p = pick(rng, std::vector<float>{0.0f, 0.1f});
    ASSERT_NO_FATAL_FAILURE(expect_like_oracle(choose_on, in, 0, tally));
  }
  EXPECT_GT(tally.decided, 500);
}

TEST_F(Choice, MasksLeaveOnlyWhatTheyAllow) {
  std::mt19937 rng(6);
  Chooser choose_on(1);
  for (const float temperature : {0.0f, 1.0f}) {
    OracleInput in = random_case(rng, 100, 3.0f);
    in.sampling.params.temperature = temperature;
    in.mask = {0, 0, 1u << 5, 0};
    Choices got = choose_on.one(in);
    EXPECT_EQ(got.tokens[0], 69);
    EXPECT_EQ(got.probability[0], 1.0f);
    EXPECT_EQ(got.finite[0], 1);

    in.mask = {0, 0, 0};  // tokens 96 to 99 lie beyond it
    got = choose_on.one(in);
    EXPECT_EQ(got.tokens[0], 0);
    EXPECT_EQ(got.finite[0], 0);
  }
}

// Protects min_tokens along a block: the end ids open exactly at the row whose outputs suffice, drafted ones counted.
TEST_F(Choice, MinTokensCountsTheBlock) {
  constexpr int32_t kVocab = 8;
  constexpr int32_t kRows = 6;
  Chooser choose_on(2);
  std::vector<float> logits(kRows * kVocab, 0.0f);
  for (int32_t i = 0; i < kRows; ++i) {
    logits[i * kVocab + 5] = 9.0f;  // an end id
    logits[i * kVocab + 2] = 8.0f;
  }
  SlotSampling s;
  s.params.temperature = 0.0f;
  s.prompt_length = 10;
  s.min_tokens = 4;
  s.end_ids = {5, 6};
  const auto state = choose_on.state(1, kVocab);
  ASSERT_TRUE(state->start(0, s, {}, {}).ok());
  const std::vector<TokenId> drafted(kRows, 1);
  for (const TokenId* prefix : {static_cast<const TokenId*>(nullptr), drafted.data()}) {
    const ChoiceSegment segment = {.slot = 0, .row_begin = 0, .rows = kRows, .first_index = 11, .prefix = prefix};
    // One output is committed, so rows 0 to 2 follow 1 to 3 outputs.
    EXPECT_EQ(choose_on(logits, kVocab, {segment}, *state).tokens, (std::vector<TokenId>{2, 2, 2, 5, 5, 5}));
  }
}

TEST_F(Choice, UnusableRowsAreReportedAndHarmNobodyElse) {
  constexpr int32_t kVocab = 5000;
  std::mt19937 rng(7);
  Chooser choose_on(2);
  for (const float temperature : {0.0f, 1.0f}) {
    for (const float bad : {std::nanf(""), kInfinity}) {
      for (const int32_t at : {0, 17, 4999}) {
        std::vector<float> logits = random_logits(rng, 2 * kVocab, 1.0f);
        logits[at] = bad;
        SlotSampling sampling;
        sampling.params.temperature = temperature;
        sampling.params.logprobs = 2;
        const auto state = choose_on.state(1, kVocab);
        ASSERT_TRUE(state->start(0, sampling, {}, {}).ok());
        const Choices got =
            choose_on(logits, kVocab, {{.slot = 0, .row_begin = 0, .rows = 2, .first_index = 3}}, *state);
        EXPECT_EQ(got.finite, (std::vector<uint8_t>{0, 1}));
        EXPECT_EQ(got.tokens[0], 0);
        EXPECT_EQ(got.probability[0], 0.0f);
        EXPECT_TRUE(got.logprobs[0].top.empty());
        EXPECT_EQ(got.logprobs[1].top.size(), 2u);
      }
    }
  }
}

// -inf logits are masked tokens, not errors; tiny temperatures must not overflow into one either.
TEST_F(Choice, InfinitelyLowLogitsAndTinyTemperaturesAreLegal) {
  Chooser choose_on(1);
  OracleInput in;
  in.logits.assign(100, -kInfinity);
  in.logits[42] = -3.0f;
  for (const float temperature : {0.0f, 1e-30f, 1.0f}) {
    in.sampling.params.temperature = temperature;
    const Choices got = choose_on.one(in);
    EXPECT_EQ(got.tokens[0], 42);
    EXPECT_EQ(got.finite[0], 1);
  }
  in.logits[7] = 3.0f;
  in.sampling.params.temperature = 1e-30f;
  EXPECT_EQ(choose_on.one(in).tokens[0], 7);
}

TEST_F(Choice, LogprobsAreTheRawLogSoftmax) {
  std::mt19937 rng(8);
  Chooser choose_on(1);
  for (const int32_t vocab : {3, 100, 6000}) {
    for (const int32_t top : {0, 1, 20}) {
      OracleInput in = random_case(rng, vocab, 3.0f);
      for (float& x : in.logits) x = std::round(x * 4.0f) / 4.0f;  // with ties
      in.logits[2] = -kInfinity;
      in.sampling.params.logprobs = top;
      in.sampling.params.temperature = 0.5f;  // none of these may show
      in.sampling.params.top_k = 2;
      in.sampling.params.logit_bias = {{1, 5.0f}};
      const PositionLogprobs got = choose_on.one(in).logprobs[0];

      double sum = 0.0;
      for (const float x : in.logits) sum += std::exp(static_cast<double>(x));
      std::vector<int32_t> order;
      for (int32_t v = 0; v < vocab; ++v) {
        if (std::isfinite(in.logits[v])) order.push_back(v);
      }
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return in.logits[a] > in.logits[b]; });
      ASSERT_EQ(got.top.size(), std::min(order.size(), static_cast<size_t>(top)));
      for (size_t i = 0; i < got.top.size(); ++i) {
        EXPECT_EQ(got.top[i].token, order[i]);
        EXPECT_NEAR(got.top[i].logprob, in.logits[order[i]] - std::log(sum), 1e-5);
      }
      EXPECT_NEAR(got.chosen.logprob, in.logits[got.chosen.token] - std::log(sum), 1e-5);
      EXPECT_EQ(got.chosen.token, choose_on.one(in).tokens[0]);
    }
  }
}

TEST_F(Choice, TokensWithoutALogitAreAsMaskedOnes) {
  if (kTestedDevice == DeviceKind::kCuda) GTEST_SKIP() << "rows are whole there";
  std::mt19937 rng(9);
  Chooser choose_on(1);
  for (int i = 0; i < 300; ++i) {
    OracleInput in = random_case(rng, 40, 2.0f);
    SamplingParams& p = in.sampling.params;
    p.temperature = pick(rng, std::vector<float>{0.0f, 0.8f});
    p.top_k = pick(rng, std::vector<int32_t>{0, 3, 30});
    p.repetition_penalty = pick(rng, std::vector<float>{1.0f, 1.3f});
    p.presence_penalty = pick(rng, std::vector<float>{0.0f, 0.7f});
    p.logit_bias = {{static_cast<TokenId>(rng() % 40), 2.5f}};
    in.sampling.end_ids = {1, 30};
    in.sampling.min_tokens = static_cast<int32_t>(rng() % 3);
    const auto state = choose_on.state(1, 40);
    ASSERT_TRUE(state->start(0, in.sampling, random_tokens(rng, 9, 40), random_tokens(rng, 7, 40)).ok());
    const std::vector<ChoiceSegment> segment = {{.slot = 0, .row_begin = 0, .rows = 1, .first_index = in.index}};
    const std::vector<float> first(in.logits.begin(), in.logits.begin() + 25);
    std::fill(in.logits.begin() + 25, in.logits.end(), -kInfinity);
    const Choices some = choose_on(first, 25, segment, *state), all = choose_on(in.logits, 40, segment, *state);
    ASSERT_EQ(some.tokens, all.tokens) << i;
    ASSERT_EQ(some.probability, all.probability) << i;
  }
}

TEST_F(Choice, MisuseIsCaught) {
  if (kTestedDevice == DeviceKind::kCuda) GTEST_SKIP() << "a kernel's trap ends the GPU's work for this whole program";
  Chooser choose_on(1);
  const auto state = choose_on.state(2, 10);
  const std::vector<float> logits(10);
  const auto use = [&](int32_t slot, int32_t rows) {
    choose_on(logits, 10, {{.slot = slot, .row_begin = 0, .rows = rows, .first_index = 0}}, *state);
  };
  EXPECT_DEATH(use(0, 1), "CHECK failed");  // never started
  ASSERT_TRUE(state->start(0, {}, {}, {}).ok());
  use(0, 1);
  EXPECT_DEATH(use(0, 2), "CHECK failed");  // more rows than logits
  state->clear(0);
  EXPECT_DEATH(use(0, 1), "CHECK failed");  // nothing kept
}

}  // namespace
}  // namespace volley::ops
