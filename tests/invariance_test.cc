// Invariant 1: a request's tokens depend on weights, prompt, sampling parameters and seed alone. Every configuration
// below gives the tokens of plain decoding of one request at a time, bit for bit, greedy and sampled.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "harness.h"

namespace volley::testing {
namespace {

enum class Verify {
  kFull,
  kAuto,
  kTwo,       // two drafted tokens of each request
  kChanging,  // the policy is another one every few milliseconds
};

struct Configuration {
  std::string name;
  int block_size = 0;  // 0: speculation off
  int concurrency = 1, prefill_chunk = 512, page_size = 16, threads = 1;
  bool prefix_cache = true;
  Verify verify = Verify::kFull;
  bool graphs = true;       // recorded steps, where the device can
  bool tight_pool = false;  // so few pages that requests are preempted
  bool paced = false;       // beside requests that decode prompts come in the smallest pieces
};

// All pairs of the factor levels (block off/4/8/16, concurrency 1/8/32, chunk 16/512, page 16/64, threads 1/2, prefix
// cache on/off, verify policy, graphs on/off) occur in some row; the test below checks that they do.
const std::vector<Configuration>& configurations() {
  static const std::vector<Configuration> rows = {
      {"block 4, alone", 4, 1, 512, 16, 1, true, Verify::kFull, true, true},
      {"block 16, 8 at once, changing", 16, 8, 16, 16, 2, false, Verify::kChanging, false, true},
      {"block 8, 32 at once, two verified", 8, 32, 512, 64, 1, false, Verify::kTwo, false, true},
      {"block 4, 32 at once, changing", 4, 32, 16, 64, 2, true, Verify::kChanging, true, true},
      {"off, alone, two threads", 0, 1, 512, 64, 2, false, Verify::kFull, false, false},
      {"block 16, 8 at once, auto", 16, 8, 512, 64, 1, true, Verify::kAuto, false, true, true},
      {"block 8, alone, auto", 8, 1, 16, 16, 2, false, Verify::kAuto, true, false},
      {"off, 8 at once", 0, 8, 16, 16, 1, true, Verify::kFull, true, true},
      {"block 16, alone, two verified", 16, 1, 16, 64, 2, true, Verify::kTwo, true, false},
      {"block 4, 32 at once, auto", 4, 32, 512, 16, 2, false, Verify::kAuto, false, false},
      {"block 8, alone, changing", 8, 1, 512, 64, 1, true, Verify::kChanging, false, false},
      {"block 4, 8 at once, two verified", 4, 8, 16, 16, 1, true, Verify::kTwo, true, false},
      {"block 16, 32 at once", 16, 32, 512, 16, 1, true, Verify::kFull, true, false, true},
      {"block 8, 8 at once", 8, 8, 512, 64, 2, true, Verify::kFull, false, false},
      {"off, 32 at once", 0, 32, 16, 16, 1, false, Verify::kFull, false, true},
  };
  return rows;
}

EngineOptions options_of(const Configuration& c) {
  EngineOptions options = options_of_row(c, 384);
  if (c.verify == Verify::kAuto || c.verify == Verify::kChanging) options.verify = {};
  if (c.verify == Verify::kTwo) options.verify = {VerifyPolicy::Kind::kFixed, 2};
  options.target_step_ms = c.paced ? 1 : 0;
  return options;
}

std::vector<GenerateRequest> make_requests(const Engine& engine, float temperature) {
  std::vector<GenerateRequest> requests;
  auto cases = read_prompts("mixed_prompts.jsonl", 12);
  if (!full_matrix() && !kSanitized) cases.resize(40);
  for (size_t i = 0; i < cases.size(); ++i) {
    GenerateRequest request = chat_request(engine, cases[i].prompt, 144, /*after_a_turn=*/i % 3 == 2);
    request.sampling.temperature = temperature;
    request.sampling.seed = 1000 + i;
    // Every parameter that shapes a choice takes part in some requests.
    if (temperature > 0) {
      if (i % 5 == 1) request.sampling.top_k = 20;
      if (i % 5 == 2) request.sampling.top_p = 0.9f;
      if (i % 5 == 3) request.sampling.min_p = 0.05f;
    }
    if (i % 7 == 3) request.sampling.repetition_penalty = 1.1f;
    if (i % 7 == 5) request.sampling.frequency_penalty = 0.2f;
    if (i % 11 == 4) request.min_tokens = 30;
    requests.push_back(std::move(request));
  }
  return requests;
}

class InvarianceAt : public ::testing::TestWithParam<float> {};

TEST_P(InvarianceAt, SpeculationAndEverythingElseIsInvisible) {
  const float temperature = GetParam();
  std::vector<Output> plain;
  {
    const auto engine = make_engine(options_of({"plain", 0, 1, 512, 16, 1, false}));
    plain = run_all(*engine, make_requests(*engine, temperature), 1);
  }
  ASSERT_EQ(plain.size(), kSanitized ? 12u : full_matrix() ? 300u : 40u);
  for (const Configuration& c : configurations()) {
    const auto engine = make_engine(options_of(c));
    std::optional<ChangingVerify> changing;
    if (c.verify == Verify::kChanging) {
      using Kind = VerifyPolicy::Kind;
      changing.emplace(*engine, std::vector<VerifyPolicy>{{Kind::kFull}, {Kind::kFixed, 1}, {}, {Kind::kFixed, 0}});
    }
    const auto outputs = run_all(*engine, make_requests(*engine, temperature), c.concurrency);
    changing.reset();
    int different = 0;
    int64_t cached = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      cached += outputs[i].finish.usage.cached_tokens;
      const bool same = outputs[i].tokens == plain[i].tokens && outputs[i].text == plain[i].text &&
                        outputs[i].finish.reason == plain[i].finish.reason;
      if (!same && different++ == 0) {
        ADD_FAILURE() << c.name << ": request " << i << " differs: \"" << outputs[i].text << "\" against \""
                      << plain[i].text << "\"";
      }
    }
    const EngineStats stats = engine->stats();
    std::printf(
        "T %.1f  %-34s %d of %zu differ, acceptance length %.2f, %lld tokens cached, %lld preemptions\n", temperature,
        c.name.c_str(), different, plain.size(),
        static_cast<double>(stats.accepted_tokens + stats.verify_steps) / static_cast<double>(stats.verify_steps),
        static_cast<long long>(cached), static_cast<long long>(stats.preemptions));
    if (!c.prefix_cache) EXPECT_EQ(cached, 0) << c.name;
    // The shared first turn is shorter than a page of 64, a tight pool may have dropped it again, and requests that all
    // begin together find nothing.
    const bool finds = c.prefix_cache && c.page_size == 16 && !c.tight_pool;
    if (finds && static_cast<size_t>(c.concurrency) < plain.size()) EXPECT_GT(cached, 0) << c.name;
    EXPECT_EQ(different, 0) << c.name;
    // Pieces of prompts decide how many requests run together, so paced ones may find room on a fast device.
    if (c.tight_pool && c.concurrency > 1 && !c.paced) {
      EXPECT_GT(stats.preemptions, 0) << c.name << ": the pool was not small enough to show anything";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Temperatures, InvarianceAt, ::testing::Values(0.0f, 0.8f));

// The cache's numeric type is a parameter of its own: under any arithmetic speculation stays invisible.
TEST(Invariance, HoldsForACacheOfAnotherType) {
  for (const auto& [dtype, cache] :
       {std::pair{ComputeType::kBFloat16, KvCacheType::kFloat32},
        std::pair{ComputeType::kFloat32, KvCacheType::kBFloat16}, std::pair{ComputeType::kBFloat16, KvCacheType::kFp8},
        std::pair{ComputeType::kFloat32, KvCacheType::kFp8}}) {
    std::vector<std::vector<TokenId>> tokens[2];
    for (const int block : {0, 16}) {
      EngineOptions options = options_of({"", block, 4, 64, 16, 2, true});
      options.dtype = dtype;
      options.kv_cache_dtype = cache;
      const auto engine = make_engine(options);
      auto requests = make_requests(*engine, 0.8f);
      requests.resize(12);
      for (const Output& out : run_all(*engine, std::move(requests), 4)) tokens[block > 0].push_back(out.tokens);
    }
    EXPECT_EQ(tokens[0], tokens[1]);
    EXPECT_EQ(tokens[0].size(), 12u);
  }
}

// The list above is only as good as its coverage: every pair of levels of two factors must stand in some row.
TEST(InvarianceMatrix, CoversEveryPairOfLevels) {
  const auto levels = [](const Configuration& c) {
    return std::vector<int>{c.block_size,
                            c.concurrency,
                            c.prefill_chunk,
                            c.page_size,
                            c.threads,
                            c.prefix_cache,
                            static_cast<int>(c.verify),
                            c.graphs};
  };
  const std::vector<std::vector<int>> all = {{0, 4, 8, 16}, {1, 8, 32}, {16, 512},    {16, 64},
                                             {1, 2},        {0, 1},     {0, 1, 2, 3}, {0, 1}};
  for (size_t f = 0; f < all.size(); ++f) {
    for (size_t g = f + 1; g < all.size(); ++g) {
      for (int a : all[f]) {
        for (int b : all[g]) {
          if (f == 0 && g == 6 && a == 0 && b > 0) continue;  // nothing is drafted, so nothing is verified
          bool found = false;
          for (const Configuration& c : configurations()) found = found || (levels(c)[f] == a && levels(c)[g] == b);
          EXPECT_TRUE(found) << "factor " << f << " = " << a << " with factor " << g << " = " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace volley::testing
