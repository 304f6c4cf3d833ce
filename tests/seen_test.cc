// Prompts that bring vectors and positions of three axes, as pictures do: a tiny Qwen3-VL's decoder against
// transformers (tests/data/README.md), and invariant 1: nothing but the prompt shows in the answer.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/temp_folder_for_test.h"
#include "fixtures.h"
#include "model_runner.h"

namespace volley::testing {
namespace {

constexpr const char* kSeen = "tests/data/seen/qwen3_vl";
constexpr int32_t kPrompt = 40, kHidden = 48, kVocab = 90, kVectors = 3;

struct Picture {
  int32_t begin, rows, columns;
  int32_t tokens() const { return rows * columns; }
};
constexpr Picture kPictures[] = {{5, 3, 4}, {19, 2, 5}};  // as in make_fixtures.py

// The prompt of the fixture, both ways.
class SeenPrompt {
 public:
  SeenPrompt() : expected_(std::string(kSeen) + "/expected") {
    for (const auto& row : expected_.matrix("axes", kPrompt, 3)) {
      brought.axes.push_back(
          {static_cast<int32_t>(row[0]), static_cast<int32_t>(row[1]), static_cast<int32_t>(row[2])});
    }
    int32_t tokens = 0;
    for (const Picture& picture : kPictures) {
      for (int32_t i = 0; i < picture.tokens(); ++i) brought.places.push_back(picture.begin + i);
      tokens += picture.tokens();
    }
    const auto all = expected_.matrix("vectors", int64_t{kVectors} * tokens, kHidden);
    for (int32_t i = 0; i < kVectors; ++i)
      brought.vectors.emplace_back(all.begin() + i * tokens, all.begin() + (i + 1) * tokens);
  }

  const Fixture& expected() const { return expected_; }
  std::vector<TokenId> ids() const { return expected_.ids("prompt_ids", kPrompt); }
  GenerateRequest request() const {
    GenerateRequest request;
    request.prompt = request.prompt_keys = ids();
    size_t first = 0;
    for (const Picture& picture : kPictures) {
      PromptSpan& span = request.prompt_spans.emplace_back();
      span.begin = picture.begin;
      span.end = picture.begin + picture.tokens();
      std::vector<float> vectors;
      for (const auto& kind : brought.vectors) {
        for (int32_t i = 0; i < picture.tokens(); ++i) {
          const std::vector<float>& row = kind[first + static_cast<size_t>(i)];
          vectors.insert(vectors.end(), row.begin(), row.end());
        }
      }
      span.vectors = std::make_shared<const std::vector<float>>(std::move(vectors));
      span.positions.assign(brought.axes.begin() + span.begin, brought.axes.begin() + span.end);
      for (int32_t i = span.begin; i < span.end; ++i) request.prompt_keys[i] = -1000 - i;
      first += static_cast<size_t>(picture.tokens());
    }
    return request;
  }

  ModelRunner::Brought brought;

 private:
  Fixture expected_;
};

TEST(SeenParity, LogitsAreThoseOfTransformers) {
  const SeenPrompt prompt;
  ModelRunner model(kSeen, "", ComputeType::kFloat32, 64);
  const auto ids = prompt.ids();
  const auto reference = prompt.expected().matrix("logits", kPrompt, kVocab);
  const auto logits = model.logits(ids, kPrompt, prompt.brought);
  const double error = relative_error(logits, reference);
  std::printf("relative error %.1e\n", error);
  EXPECT_LT(error, kTolerance);
  EXPECT_EQ(model.logits(ids, 7, prompt.brought), logits) << "chunks that cut through pictures";
  for (int without = 0; without < 3; ++without) {  // each part of what is brought shows
    ModelRunner::Brought less = prompt.brought;
    if (without == 0) less.axes.clear();
    if (without == 1) less.places.clear();
    if (without == 2) std::swap(less.vectors[1], less.vectors[2]);
    EXPECT_GT(relative_error(model.logits(ids, kPrompt, less), reference), 1e-3) << without;
  }
}

EngineOptions options_for(const std::string& model) {
  EngineOptions options = pocket_options();
  options.model_dir = model;
  options.draft_dir = "";
  options.speculation = Speculation::kOff;
  options.skip_tokenizer = true;
  options.max_model_len = 160;
  options.max_num_seqs = 1;
  options.threads = 1;
  options.kv_pages = 4096;
  return options;
}

// Tokens after the pictures have fewer positions behind them than tokens, in every step.
TEST(SeenParity, AnswersAreThoseOfTransformers) {
  const SeenPrompt prompt;
  EngineOptions options = options_for(kSeen);
  options.dtype = ComputeType::kFloat32;
  const auto engine = make_engine(options);
  EXPECT_EQ(engine->info().hidden_size, kHidden);
  EXPECT_EQ(engine->info().prompt_vectors, kVectors);
  EXPECT_TRUE(engine->info().prompt_positions);
  GenerateRequest request = prompt.request();
  request.max_tokens = 64;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  request.sampling.repetition_penalty = 1.5f;
  const Output answer = run_all(*engine, {request}, 1)[0];
  ASSERT_FALSE(answer.finish.error) << answer.finish.error->message;
  EXPECT_EQ(answer.tokens, prompt.expected().ids("greedy_ids", 64));
}

// The engine's configuration, and how often its drafts are right.
struct Row {
  const char* name;
  int block_size;  // 0: no speculation
  float accuracy;
  int concurrency, prefill_chunk, page_size;
  bool prefix_cache, tight;
};
constexpr Row kRows[] = {
    {"chunks of 5, 8 at once", 0, 0, 8, 5, 16, true, false},
    {"block 16, often right", 16, 0.95f, 8, 16, 16, true, false},
    {"block 8, chunks of 7, tight", 8, 0.8f, 8, 7, 16, true, true},
    {"block 4, alone, no cache", 4, 0.9f, 1, 512, 32, false, false},
    {"block 8, chunks of 3, tight, no cache", 8, 0.9f, 6, 3, 16, false, true},
};

// Each row of kRows against plain decoding of one request at a time; a row with a prefix cache runs twice.
void expect_invisible(const std::string& model, const std::vector<GenerateRequest>& requests,
                      const std::vector<Output>& plain) {
  const TempFolder drafter;
  std::string answers;
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_FALSE(plain[i].finish.error) << plain[i].finish.error->message;
    answers += nlohmann::json{{"seed", *requests[i].sampling.seed}, {"token_ids", plain[i].tokens}}.dump() + "\n";
  }
  drafter.write("answers.jsonl", answers);
  int64_t preemptions = 0, accepted = 0, cached = 0;
  for (const Row& row : kRows) {
    const nlohmann::json config = {
        {"architectures", {"ReplayDraftModel"}}, {"block_size", 16}, {"accuracy", row.accuracy}, {"salt", 7}};
    drafter.write("config.json", config.dump());
    EngineOptions options = options_of_row(
        [&] {
          struct Fields : Row {
            int threads = 2;
            bool graphs = true, tight_pool = false;
          } fields{row};
          fields.tight_pool = row.tight;
          return fields;
        }(),
        160);
    options.model_dir = model;
    options.skip_tokenizer = true;
    options.draft_dir = row.block_size > 0 ? drafter.path() : "";
    if (!row.tight) options.kv_pages = 4096;
    const auto engine = make_engine(options);
    for (int run = 0; run < (row.prefix_cache ? 2 : 1); ++run) {
      const auto outputs = run_all(*engine, requests, row.concurrency);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(outputs[i].tokens, plain[i].tokens) << row.name << ", run " << run << ", request " << i;
      }
    }
    const EngineStats stats = engine->stats();
    preemptions += stats.preemptions;
    accepted += stats.accepted_tokens;
    cached += stats.cached_tokens;
  }
  std::printf("%lld preemptions, %lld drafted tokens accepted, %lld tokens cached\n",
              static_cast<long long>(preemptions), static_cast<long long>(accepted), static_cast<long long>(cached));
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(accepted, 0);
  EXPECT_GT(cached, 0);
}

GenerateRequest random_prompt(std::mt19937& random, int32_t vocab, size_t i) {
  GenerateRequest request;
  const size_t length = 50 + random() % 40;
  for (size_t j = 0; j < length; ++j) request.prompt.push_back(static_cast<TokenId>(random() % vocab));
  request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.seed = 700 + i;
  request.max_tokens = 40;
  request.ignore_eos = true;
  return request;
}

// Pictures of random vectors; some requests have a common beginning that ends inside a picture or behind it.
TEST(SeenInvariance, PicturesAreComputedTheSameHoweverTheyAreCut) {
  std::mt19937 random(3);
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < 12; ++i) {
    GenerateRequest request = i % 3 == 2 ? requests[i - 1] : random_prompt(random, kVocab, i);
    request.sampling.seed = 700 + i;
    if (i % 3 == 2) {
      request.prompt.resize(45);
      request.prompt_keys.resize(45);
      request.prompt.push_back(static_cast<TokenId>(i));
      request.prompt_keys.push_back(static_cast<TokenId>(i));
      requests.push_back(std::move(request));
      continue;
    }
    request.prompt_keys = request.prompt;
    int32_t begin = static_cast<int32_t>(random() % 9), next = begin;
    for (const auto& [rows, columns] : {std::pair{3, 4}, {1, 7}, {5, 3}}) {
      PromptSpan& span = request.prompt_spans.emplace_back();
      span.begin = begin;
      span.end = begin + rows * columns;
      std::vector<float> vectors(static_cast<size_t>(rows * columns * kHidden * kVectors));
      for (float& value : vectors) value = std::normal_distribution<float>()(random);
      span.vectors = std::make_shared<const std::vector<float>>(std::move(vectors));
      for (int32_t j = 0; j < rows * columns; ++j) {
        span.positions.push_back({next, next + j / columns, next + j % columns});
        request.prompt_keys[span.begin + j] = -1 - static_cast<TokenId>(1000 * i + span.begin + j);
      }
      next += std::max(rows, columns) + 1;
      begin = span.end + 1;
    }
    requests.push_back(std::move(request));
  }
  EngineOptions options = options_for(kSeen);
  options.prefix_cache = false;
  const auto plain = run_all(*make_engine(options), requests, 1);
  EXPECT_NE(plain[0].tokens, plain[3].tokens);
  std::vector<GenerateRequest> blind = requests;
  for (GenerateRequest& request : blind) request.prompt_spans.clear();
  EXPECT_NE(run_all(*make_engine(options), {blind[0]}, 1)[0].tokens, plain[0].tokens) << "the pictures show";
  expect_invisible(kSeen, requests, plain);
}

// Vectors that are rows of the embedding, and positions that are indices, are text: also where layers keep states.
TEST(SeenInvariance, TextBroughtAsVectorsIsText) {
  const std::string model = "tests/data/targets/hybrid_wide";
  const int32_t vocab = 77;
  const auto embeddings = Fixture(model).matrix("model.embed_tokens.weight", vocab, kHidden);
  std::mt19937 random(4);
  std::vector<GenerateRequest> text, brought;
  for (size_t i = 0; i < 8; ++i) {
    text.push_back(random_prompt(random, vocab, i));
    GenerateRequest request = text.back();
    request.prompt_keys = request.prompt;
    for (int32_t begin = static_cast<int32_t>(i); begin + 12 < std::ssize(request.prompt); begin += 17) {
      PromptSpan& span = request.prompt_spans.emplace_back();
      span.begin = begin;
      span.end = begin + 9;
      std::vector<float> vectors;
      for (int32_t j = span.begin; j < span.end; ++j) {
        const std::vector<float>& row = embeddings[request.prompt[j]];
        vectors.insert(vectors.end(), row.begin(), row.end());
        if (i % 2 == 0) span.positions.push_back({j, j, j});
        request.prompt[j] = 0;  // its id says nothing
      }
      span.vectors = std::make_shared<const std::vector<float>>(std::move(vectors));
    }
    brought.push_back(std::move(request));
  }
  const auto plain = run_all(*make_engine(options_for(model)), text, 1);
  expect_invisible(model, brought, plain);
}

TEST(SeenRequests, AreRefusedWhereTheModelKnowsNoAxes) {
  const auto engine = make_engine(options_for("tests/data/targets/plain"));
  GenerateRequest request;
  request.prompt = request.prompt_keys = {1, 2};
  request.prompt_spans = {{.begin = 0, .end = 1, .vectors = {}, .positions = {{0, 0, 0}}}};
  const auto refused = run_all(*engine, {request}, 1)[0];
  ASSERT_TRUE(refused.finish.error);
  EXPECT_EQ(
      refused.finish.error->message,
      "The prompt span of tokens 0 to 1 has positions in time, height and width, which this model does not know.");
}

}  // namespace
}  // namespace volley::testing
