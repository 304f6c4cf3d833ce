// The noise: the generator bit for bit, the transform to Gumbel, and the distribution of the drawn tokens.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "ops/choice/choice_testing.h"
#include "ops/choice/kernels.h"

namespace volley::ops {
namespace {

class ChoiceGumbel : public ChoiceTest {};
class ChoiceChiSquare : public ChoiceTest {};

struct KnownAnswer {
  std::array<uint32_t, 4> counter;
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 4> words;
};

// Published with the Random123 library for philox4x32, 10 rounds.
const KnownAnswer kKnownAnswers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

// Protects the promise that noise is a published function of seed and position, on every instruction set.
TEST(Philox, MatchesThePublishedVectors) {
  for_each_target([](const char* target) {
    SCOPED_TRACE(target);
    for (const KnownAnswer& known : kKnownAnswers) {
      const choice::PhiloxKey key = {.key = {known.key[0], known.key[1]},
                                     .counter = {known.counter[1], known.counter[2], known.counter[3]}};
      std::array<uint32_t, 4> words;
      choice::philox(key, known.counter[0], 1, words.data());
      EXPECT_EQ(words, known.words);
      EXPECT_EQ(oracle_philox(known.counter, known.key), known.words);  // the oracle must be right as well
    }
  });
}

TEST(Philox, EveryBlockOfABatchMatchesTheScalarOne) {
  for_each_target([](const char* target) {
    SCOPED_TRACE(target);
    const choice::PhiloxKey key = {.key = {0x12345678, 0x9abcdef0}, .counter = {77, 3, 0}};
    for (const uint32_t first : {0u, 5u, 0xfffffff0u}) {
      std::vector<uint32_t> words(4 * 37);
      choice::philox(key, first, 37, words.data());
      for (uint32_t b = 0; b < 37; ++b) {
        const auto expected = oracle_philox({first + b, 77, 3, 0}, {key.key[0], key.key[1]});
        for (int lane = 0; lane < 4; ++lane) ASSERT_EQ(words[4 * b + lane], expected[lane]) << b;
      }
    }
  });
}

std::vector<uint32_t> interesting_words() {
  std::vector<uint32_t> words;
  const uint32_t half = 0x80000000u, root = 0xb504f333u;  // u = 1/2 and u = sqrt(1/2), where the formula changes
  for (uint32_t i = 0; i < 64; ++i) {
    for (const uint32_t x : {i, ~i, half + i, half - i, root + i, root - i, uint32_t{1} << (i % 32)})
      words.push_back(x);
  }
  std::mt19937 rng(1);
  for (int i = 0; i < 200000; ++i) words.push_back(rng());
  return words;
}

// Protects the precision of both tails (large noise comes from u next to 1) and the bounds that skipping relies on.
TEST(Gumbel, IsPreciseAndBoundedOverTheWholeRange) {
  const std::vector<uint32_t> words = interesting_words();
  std::vector<float> first;
  for_each_target([&](const char* target) {
    SCOPED_TRACE(target);
    std::vector<float> noise(words.size());
    choice::gumbel(words.data(), static_cast<int32_t>(words.size()), noise.data());
    for (size_t i = 0; i < words.size(); ++i) {
      const double exact = oracle_gumbel_of(words[i]);
      // A rounding of -log u moves g by 2^-24; those of g itself are relative.
      ASSERT_NEAR(noise[i], exact, 4e-7 + 2e-7 * std::abs(exact)) << std::hex << words[i];
      ASSERT_GE(noise[i], choice::kGumbelMin);
      ASSERT_LE(noise[i], choice::kGumbelMax);
    }
    if (first.empty()) first = noise;
    EXPECT_EQ(noise, first) << "bits differ between instruction sets";
  });
}

// Protects the skipping of tokens that cannot win: the drawn token is the argmax over all of them, to the bit.
TEST_F(ChoiceGumbel, SkippingNeverChangesTheChoice) {
  std::mt19937 rng(2);
  Chooser choose_on(1);
  for (const int32_t vocab : {1, 3, 31, 32, 33, 4096, 4099, 20000}) {
    for (const float spread : {0.01f, 1.0f, 8.0f, 100.0f, 1e6f}) {
      OracleInput in;
      in.logits = random_logits(rng, vocab, spread);
      in.sampling.seed = rng();
      in.index = static_cast<int32_t>(rng() % 100000);
      in.sampling.params.choice_index = rng() % 3;
      std::vector<uint32_t> words((vocab + 3) / 4 * 4);
      const choice::PhiloxKey key = {
          .key = {static_cast<uint32_t>(in.sampling.seed), static_cast<uint32_t>(in.sampling.seed >> 32)},
          .counter = {static_cast<uint32_t>(in.index), in.sampling.params.choice_index, 0}};
      choice::philox(key, 0, static_cast<int32_t>(words.size() / 4), words.data());
      std::vector<float> score(words.size());
      choice::gumbel(words.data(), static_cast<int32_t>(words.size()), score.data());
      for (int32_t v = 0; v < vocab; ++v) score[v] += in.logits[v];
      const auto best = std::max_element(score.begin(), score.begin() + vocab) - score.begin();
      for_each_target([&](const char* target) {
        ASSERT_EQ(choose_on.one(in).tokens[0], best) << target << " vocab " << vocab << " spread " << spread;
      });
    }
  }
}

// 1 - P(a, x) by the series of the regularised lower incomplete gamma function.
double upper_gamma(double a, double x) {
  double term = 1.0 / a;
  double sum = term;
  for (double n = a + 1.0; term > 1e-17 * sum; n += 1.0) sum += term *= x / n;
  return 1.0 - sum * std::exp(-x + a * std::log(x) - std::lgamma(a));
}

// p-value of `counts` under `expected` probabilities; what has probability 0 must not occur.
double chi_square_p(const std::vector<int64_t>& counts, const std::vector<double>& expected) {
  const double n = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  double statistic = 0.0;
  int classes = 0;
  for (size_t v = 0; v < counts.size(); ++v) {
    if (expected[v] == 0.0) {
      EXPECT_EQ(counts[v], 0) << "token " << v << " was filtered out";
      continue;
    }
    const double e = n * expected[v];
    statistic += (static_cast<double>(counts[v]) - e) * (static_cast<double>(counts[v]) - e) / e;
    ++classes;
  }
  return classes < 2 ? 1.0 : upper_gamma(0.5 * (classes - 1), 0.5 * statistic);
}

TEST(ChiSquare, TheTestStatisticKnowsItsOwnQuantiles) {
  EXPECT_NEAR(upper_gamma(0.5, 0.5 * 3.841459), 0.05, 1e-6);   // 1 degree of freedom
  EXPECT_NEAR(upper_gamma(5.0, 0.5 * 18.307038), 0.05, 1e-6);  // 10 degrees of freedom
}

// Protects the purpose of Gumbel-max: tokens are drawn with the probabilities of the filtered softmax, along positions
// of one request as well as across seeds and choices of one position. Seeds are fixed, so the outcome is too; each of
// the 15 p-values would be below 1e-3 by bad luck alone once in 67 sets of seeds.
TEST_F(ChoiceChiSquare, FrequenciesFollowTheFilteredDistribution) {
  const std::vector<float> row = {1.0f, 0.5f, 2.0f, -1.0f, 0.0f, 1.5f, -3.0f, 0.75f, 1.25f};
  const auto vocab = static_cast<int32_t>(row.size());
  constexpr int32_t kRows = 2000;
  constexpr int32_t kCalls = 20;
  Chooser choose_on(2);
  std::vector<float> logits;
  for (int32_t i = 0; i < kRows; ++i) logits.insert(logits.end(), row.begin(), row.end());

  const std::vector<SamplingParams> all = {filtering(1.0f), filtering(0.6f), filtering(1.0f, 4),
                                           filtering(1.0f, 0, 0.8f), filtering(1.0f, 0, 1.0f, 0.2f)};
  for (size_t p = 0; p < all.size(); ++p) {
    OracleInput in;
    in.logits = row;
    in.sampling.params = all[p];
    const std::vector<double> expected = oracle_choose(in).distribution;
    for (const char* varied : {"index", "seed", "choice"}) {
      std::vector<int64_t> counts(vocab);
      for (int32_t call = 0; call < kCalls; ++call) {
        const auto state = choose_on.state(kRows, vocab);
        std::vector<ChoiceSegment> segments;
        for (int32_t i = 0; i < kRows; ++i) {
          const int32_t n = call * kRows + i;
          SlotSampling s = {.params = all[p], .seed = 99 + p, .prompt_length = 0, .min_tokens = 0, .end_ids = {}};
          ChoiceSegment segment = {.slot = i, .row_begin = i, .rows = 1, .first_index = 5};
          if (varied[0] == 'i') segment.first_index = n;
          if (varied[0] == 's') s.seed = 1000 + static_cast<uint64_t>(n) * 0x100000001;  // both halves of the key
          if (varied[0] == 'c') s.params.choice_index = static_cast<uint32_t>(n);
          ASSERT_TRUE(state->start(i, s, {}, {}).ok());
          segments.push_back(segment);
        }
        for (const TokenId token : choose_on(logits, vocab, segments, *state).tokens) ++counts[token];
      }
      EXPECT_GT(chi_square_p(counts, expected), 1e-3) << "parameters " << p << ", varied " << varied;
    }
  }
}

}  // namespace
}  // namespace volley::ops
