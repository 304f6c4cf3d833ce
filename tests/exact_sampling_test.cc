// Invariant 1 above temperature 0, as statistics: with speculation on, the frequencies of sampled tokens follow the
// exact filtered distribution. A model of random weights over 16 tokens; the test computes the exact distribution after
// every history from the same model's logits, by the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include <unistd.h>

#include "harness.h"
#include "model_runner.h"

namespace volley::testing {
namespace {

constexpr int kVocab = 16;

// Folders with nothing but config.json, for dummy weights.
std::pair<std::string, std::string> write_configs() {
  const auto root = std::filesystem::temp_directory_path() / ("volley-exact-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "target");
  std::filesystem::create_directories(root / "draft");
  const std::string common =
      R"("hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
         "vocab_size": 16, "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
         "attention_bias": false, "torch_dtype": "bfloat16")";
  std::ofstream(root / "target/config.json")
      << R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 4, "tie_word_embeddings": false, )"
      << common << "}";
  std::ofstream(root / "draft/config.json")
      << R"({"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 1, "block_size": 8,
             "num_target_layers": 4, "dflash_config": {"mask_token_id": 15, "target_layer_ids": [1]}, )"
      << common << "}";
  return {(root / "target").string(), (root / "draft").string()};
}

// The distribution of the token after `history` (prompt, then output), from the model's logits, by the definition.
std::vector<double> exact_distribution(const std::vector<float>& raw, const SamplingParams& p,
                                       const std::vector<TokenId>& prompt, const std::vector<TokenId>& output) {
  std::vector<double> logits(raw.begin(), raw.end());
  for (int v = 0; v < kVocab; ++v) {
    const auto in_output = std::count(output.begin(), output.end(), v);
    const bool seen = in_output > 0 || std::count(prompt.begin(), prompt.end(), v) > 0;
    if (seen) logits[v] = logits[v] > 0 ? logits[v] / p.repetition_penalty : logits[v] * p.repetition_penalty;
    logits[v] -= p.frequency_penalty * static_cast<double>(in_output) + (in_output > 0 ? p.presence_penalty : 0.0f);
    logits[v] /= p.temperature;
  }
  for (const auto& [token, bias] : p.logit_bias) logits[token] += bias / p.temperature;
  std::vector<double> probability(kVocab);
  const double top = *std::max_element(logits.begin(), logits.end());
  for (int v = 0; v < kVocab; ++v) probability[v] = std::exp(logits[v] - top);
  for (int v = 0; v < kVocab; ++v) {
    if (probability[v] < p.min_p) probability[v] = 0;
  }
  std::vector<int> order(kVocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return probability[a] > probability[b]; });
  if (p.top_k > 0) {
    for (int i = p.top_k; i < kVocab; ++i) probability[order[i]] = 0;
  }
  const auto normalise = [&] {
    const double sum = std::accumulate(probability.begin(), probability.end(), 0.0);
    for (double& x : probability) x /= sum;
  };
  normalise();
  double cumulative = 0;
  for (int v : order) {
    if (cumulative >= p.top_p) probability[v] = 0;
    cumulative += probability[v];
  }
  normalise();
  return probability;
}

// Upper tail of the chi-square distribution: regularised incomplete gamma Q(k/2, x/2) by its series and continued
// fraction.
double chi_square_p(double statistic, int degrees) {
  const double a = degrees / 2.0, x = statistic / 2.0;
  if (x <= 0) return 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < 1000; ++n) sum += term *= x / (a + n);
    return 1 - front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 1000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
  }
  return front * h;
}

struct Case {
  std::string name;
  SamplingParams params;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  const auto add = [&](std::string name, auto&& change) {
    Case c{std::move(name), {}};
    c.params.temperature = 1.0f;
    change(c.params);
    list.push_back(std::move(c));
  };
  add("temperature 1", [](auto&) {});
  add("temperature 0.6", [](auto& p) { p.temperature = 0.6f; });
  add("top-k 5", [](auto& p) { p.top_k = 5; });
  add("top-p 0.7", [](auto& p) { p.top_p = 0.7f; });
  add("min-p 0.2", [](auto& p) { p.min_p = 0.2f; });
  add("penalties", [](auto& p) { p.repetition_penalty = 1.3f, p.presence_penalty = 0.5f, p.frequency_penalty = 0.4f; });
  add("all of them", [](auto& p) {
    p.temperature = 0.8f, p.top_k = 9, p.top_p = 0.85f, p.min_p = 0.05f, p.repetition_penalty = 1.2f;
    p.presence_penalty = 0.3f, p.frequency_penalty = 0.2f, p.logit_bias = {{3, 0.7f}, {5, -0.4f}};
  });
  return list;
}

TEST(ExactSampling, FrequenciesFollowTheFilteredDistributionWithSpeculationOn) {
  const auto [target, draft] = write_configs();
  EngineOptions options;
  options.device = kTestDevice;
  options.model_dir = target;
  options.draft_dir = draft;
  options.dummy_weights = 5;
  options.dtype = ComputeType::kFloat32;
  options.max_num_seqs = 32;
  options.verify = {VerifyPolicy::Kind::kFull};  // random weights agree so seldom that a policy would not draft
  const auto engine = make_engine(options);
  ModelRunner model(target, "", ComputeType::kFloat32, 64, 5);
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7};
  constexpr int kRuns = kSanitized ? 600 : 6000;
  for (const Case& c : cases()) {
    std::vector<GenerateRequest> requests(kRuns);
    for (int i = 0; i < kRuns; ++i) {
      requests[i].prompt = prompt;
      requests[i].sampling = c.params;
      requests[i].sampling.seed = 77'000 + i;
      requests[i].max_tokens = 4;
      requests[i].ignore_eos = true;
    }
    const EngineStats before = engine->stats();
    const auto outputs = run_all(*engine, std::move(requests), 64);
    // Position 0 comes from the prefill; 1 to 3 are drafted and verified. One cell for each history and next token.
    std::map<std::vector<TokenId>, std::pair<std::vector<double>, std::vector<int>>> cells;
    for (const Output& out : outputs) {
      ASSERT_EQ(out.tokens.size(), 4u);
      for (size_t t = 0; t < 3; ++t) {
        const std::vector<TokenId> history(out.tokens.begin(), out.tokens.begin() + t);
        auto& [exact, counts] = cells[history];
        if (exact.empty()) {
          std::vector<TokenId> sequence = prompt;
          sequence.insert(sequence.end(), history.begin(), history.end());
          exact = exact_distribution(model.logits(sequence).back(), c.params, prompt, history);
          counts.resize(kVocab);
        }
        ++counts[out.tokens[t]];
      }
    }
    double statistic = 0;
    int degrees = 0;
    for (const auto& [history, cell] : cells) {
      const auto& [exact, counts] = cell;
      const double n = std::accumulate(counts.begin(), counts.end(), 0.0);
      double rest_expected = 0, rest_observed = 0;
      int used = 0;
      const auto add = [&](double expected, double observed) {
        statistic += (observed - expected) * (observed - expected) / expected;
        ++used;
      };
      for (int v = 0; v < kVocab; ++v) {
        if (exact[v] == 0) {
          ASSERT_EQ(counts[v], 0) << c.name << ": token " << v << " is filtered out but was drawn";
        } else if (n * exact[v] >= 5) {
          add(n * exact[v], counts[v]);
        } else {
          rest_expected += n * exact[v];
          rest_observed += counts[v];
        }
      }
      if (rest_expected >= 5) {
        add(rest_expected, rest_observed);
        degrees += used - 1;
      } else {
        // The remaining tokens of this history are too rare to count: with this cell (and only then) the cells add up
        // to n.
        degrees += rest_expected > 0 ? used : std::max(0, used - 1);
      }
    }
    const EngineStats after = engine->stats();
    const double p = chi_square_p(statistic, degrees);
    std::printf("%-16s chi-square %.1f for %d degrees of freedom, p = %.3f, %lld drafted tokens accepted\n",
                c.name.c_str(), statistic, degrees, p,
                static_cast<long long>(after.accepted_tokens - before.accepted_tokens));
    EXPECT_GT(p, 1e-3) << c.name;
    EXPECT_GT(degrees, kSanitized ? 5 : 20) << c.name;
    EXPECT_GT(after.accepted_tokens, before.accepted_tokens) << "nothing was accepted: speculation was not tested";
  }
}

}  // namespace
}  // namespace volley::testing
