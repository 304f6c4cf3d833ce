// Logprobs of prompts and answers: the same numbers whatever the chunks, the drafter and the cache, and those of
// transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/temp_folder_for_test.h"
#include "fixtures.h"
#include "harness.h"

namespace volley::testing {
namespace {

struct Scored {
  Output output;
  std::vector<PositionLogprobs> prompt;
  int events_with_prompt = 0;
  size_t tokens = 0;
};

// Runs the requests together.
std::vector<Scored> run_scored(Engine& engine, const std::vector<GenerateRequest>& requests) {
  std::vector<Scored> scored(requests.size());
  const auto outputs = run_all(engine, requests, static_cast<int>(requests.size()), [&](size_t i, const Event& event) {
    const size_t before = std::exchange(scored[i].tokens, scored[i].tokens + event.tokens.size());
    if (event.prompt_logprobs.empty()) return;
    EXPECT_TRUE(before == 0 && !event.tokens.empty()) << "they go with the first token";
    ++scored[i].events_with_prompt;
    scored[i].prompt = event.prompt_logprobs;
  });
  for (size_t i = 0; i < outputs.size(); ++i) scored[i].output = outputs[i];
  return scored;
}

void expect_equal(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].chosen.token, b[i].chosen.token) << what << " at " << i;
    ASSERT_EQ(a[i].chosen.logprob, b[i].chosen.logprob) << what << " at " << i;
    ASSERT_EQ(a[i].top.size(), b[i].top.size()) << what << " at " << i;
    for (size_t k = 0; k < a[i].top.size(); ++k) {
      ASSERT_EQ(a[i].top[k].token, b[i].top[k].token) << what << " at " << i;
      ASSERT_EQ(a[i].top[k].logprob, b[i].top[k].logprob) << what << " at " << i;
    }
  }
}

GenerateRequest story(const Engine& engine, int top) {
  GenerateRequest request =
      chat_request(engine, "Tell me a story about a dog and a ladder.", 40, /*after_a_turn=*/true);
  request.prompt_logprobs = top;
  request.sampling.logprobs = top;
  request.min_tokens = 4;  // end ids, which a chat's prompt holds, are not masked in it
  return request;
}

// A prompt scored by decoding: as an answer it got the same logprobs that it gets as a prompt.
TEST(PromptLogprobs, AreThoseOfTheSameTokensAsAnAnswer) {
  EngineOptions options = pocket_options();
  options.speculation = Speculation::kOff;
  options.draft_dir.clear();
  const auto engine = make_engine(options);
  GenerateRequest first = story(*engine, 5);
  first.ignore_eos = true;
  const size_t prompt_length = first.prompt.size();
  const Scored answer = run_scored(*engine, {first})[0];
  ASSERT_EQ(answer.events_with_prompt, 1);
  ASSERT_EQ(answer.prompt.size(), prompt_length - 1);
  for (size_t i = 0; i + 1 < prompt_length; ++i) ASSERT_EQ(answer.prompt[i].chosen.token, first.prompt[i + 1]);

  GenerateRequest second = first;
  second.prompt.insert(second.prompt.end(), answer.output.tokens.begin(), answer.output.tokens.end());
  second.max_tokens = 4;
  const Scored whole = run_scored(*engine, {second})[0];
  ASSERT_EQ(whole.prompt.size(), second.prompt.size() - 1);
  std::vector<PositionLogprobs> expected = answer.prompt;
  expected.insert(expected.end(), answer.output.logprobs.begin(), answer.output.logprobs.end());
  expect_equal(whole.prompt, expected, "prompt against answer");
}

TEST(PromptLogprobs, DoNotDependOnChunksBatchCacheOrDrafter) {
  std::vector<PositionLogprobs> prompt, answer;
  for (const auto& [chunk, drafter, page, pages] :
       {std::tuple{512, false, 16, 0}, {512, true, 16, 0}, {16, true, 16, 0}, {7, true, 64, 0}, {33, true, 16, 14}}) {
    EngineOptions options = pocket_options();
    options.speculation = drafter ? Speculation::kOn : Speculation::kOff;
    if (!drafter) options.draft_dir.clear();
    options.prefill_chunk = chunk;
    options.page_size = page;
    options.kv_pages = pages;  // few: requests are preempted
    options.max_model_len = 192;
    options.max_num_seqs = 4;
    const auto engine = make_engine(options);
    GenerateRequest other = chat_request(*engine, "Tell me a story about a cat.", 90);
    other.ignore_eos = true;
    const std::string what = "chunk " + std::to_string(chunk) + ", drafter " + std::to_string(drafter);
    // Once on an empty cache and, its prompt being cached then, once more among others.
    for (const auto& requests :
         {std::vector{story(*engine, 3)}, std::vector{other, story(*engine, 3), story(*engine, 0), other}}) {
      const auto scored = run_scored(*engine, requests);
      const Scored& mine = scored[requests.size() > 1 ? 1 : 0];
      EXPECT_EQ(mine.output.finish.usage.cached_tokens, 0) << what;
      EXPECT_EQ(mine.events_with_prompt, 1) << what;
      if (prompt.empty()) {
        prompt = mine.prompt;
        answer = mine.output.logprobs;
      }
      ASSERT_FALSE(prompt.empty());
      expect_equal(mine.prompt, prompt, what);
      expect_equal(mine.output.logprobs, answer, what + ", answer");
      if (requests.size() == 1) continue;
      ASSERT_EQ(scored[2].prompt.size(), prompt.size());
      for (size_t i = 0; i < prompt.size(); ++i) {
        EXPECT_TRUE(scored[2].prompt[i].top.empty());
        EXPECT_EQ(scored[2].prompt[i].chosen.logprob, prompt[i].chosen.logprob);
      }
    }
    if (pages > 0) {
      EXPECT_GT(engine->stats().preemptions, 0) << "the pool was not small enough to show anything";
    }
  }
}

TEST(PromptLogprobs, OfOneTokenThereAreNone) {
  const auto engine = make_engine(pocket_options());
  GenerateRequest request = story(*engine, 2);
  request.prompt.resize(1);
  const Scored scored = run_scored(*engine, {request})[0];
  EXPECT_EQ(scored.events_with_prompt, 0);
  EXPECT_GT(scored.output.tokens.size(), 0u);
  request.prompt_logprobs = 21;
  EXPECT_EQ(run_all(*engine, {request}, 1)[0].finish.error->code, ErrorCode::kInvalidArgument);
}

// Speculation changes no logprob, not even its last bit.
TEST(Logprobs, AreThoseOfPlainDecoding) {
  std::vector<Output> outputs[2];
  for (const bool drafter : {false, true}) {
    EngineOptions options = pocket_options();
    options.speculation = drafter ? Speculation::kOn : Speculation::kOff;
    if (!drafter) options.draft_dir.clear();
    const auto engine = make_engine(options);
    std::vector<GenerateRequest> requests;
    for (const PromptCase& c : read_prompts("mixed_prompts.jsonl", 6)) {
      const auto i = requests.size();
      if (i == 40) break;
      requests.push_back(chat_request(*engine, c.prompt, 60));
      requests.back().sampling.logprobs = static_cast<int32_t>(i % 21);
      requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      requests.back().sampling.seed = i;
      if (i % 5 == 3) requests.back().sampling.frequency_penalty = 0.5f;
    }
    outputs[drafter] = run_all(*engine, std::move(requests), drafter ? 8 : 1);
  }
  ASSERT_EQ(outputs[0].size(), kSanitized ? 6u : 40u);
  for (size_t i = 0; i < outputs[0].size(); ++i) {
    const Output& plain = outputs[0][i];
    ASSERT_EQ(plain.tokens, outputs[1][i].tokens) << i;
    ASSERT_EQ(plain.logprobs.size(), plain.tokens.size()) << i;
    expect_equal(outputs[1][i].logprobs, plain.logprobs, "request " + std::to_string(i));
  }
}

// The reference, in double precision.
std::vector<double> log_softmax(const std::vector<float>& logits) {
  double sum = 0;
  const double peak = *std::max_element(logits.begin(), logits.end());
  for (const float logit : logits) sum += std::exp(logit - peak);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - peak - std::log(sum));
  return result;
}

// Compares one position: the chosen token's, and the highest in order (equal ones may change places).
void expect_near(const PositionLogprobs& actual, const std::vector<float>& logits, const std::string& what) {
  constexpr double kTolerance = 1e-3;
  std::vector<double> expected = log_softmax(logits);
  ASSERT_NEAR(actual.chosen.logprob, expected[actual.chosen.token], kTolerance) << what;
  for (const TokenLogprob& top : actual.top) ASSERT_NEAR(top.logprob, expected[top.token], kTolerance) << what;
  std::sort(expected.rbegin(), expected.rend());
  for (size_t k = 0; k < actual.top.size(); ++k) ASSERT_NEAR(actual.top[k].logprob, expected[k], kTolerance) << what;
}

// A fixture's checkpoint with a tokenizer beside it, which it lacks; prompts are token ids.
class WithTokenizer {
 public:
  explicit WithTokenizer(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator("tests/data/targets/" + name)) {
      if (entry.is_regular_file()) std::filesystem::copy(entry.path(), dir_ / entry.path().filename());
    }
    std::filesystem::copy("models/pocket/tokenizer.json", dir_ / "tokenizer.json");
  }
  std::string dir() const { return dir_.path(); }

 private:
  TempFolder dir_;
};

TEST(Logprobs, AreThoseOfTransformersOnEveryTarget) {
  constexpr int kPositions = 40;
  int targets = 0;
  for (const std::string& name : folders("targets")) {
    const WithTokenizer model(name);
    EngineOptions options;
    options.device = kTestDevice;
    options.model_dir = model.dir();
    options.speculation = Speculation::kOff;
    options.dtype = ComputeType::kFloat32;
    options.max_num_seqs = 1;
    const auto engine = make_engine(options);
    const Fixture fixture("tests/data/targets/" + name + "/expected");
    const auto logits = fixture.matrix("logits", kPositions, engine->info().vocab_size);
    GenerateRequest request;
    request.prompt = fixture.ids("prompt_ids", kPositions);
    request.prompt_logprobs = request.sampling.logprobs = 20;
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    const Scored scored = run_scored(*engine, {request})[0];
    ASSERT_EQ(scored.prompt.size(), kPositions - 1u) << name;
    for (int i = 0; i + 1 < kPositions; ++i) {
      ASSERT_EQ(scored.prompt[i].chosen.token, request.prompt[i + 1]);
      ASSERT_EQ(scored.prompt[i].top.size(), 20u);
      expect_near(scored.prompt[i], logits[i], name + " at " + std::to_string(i));
    }
    ASSERT_EQ(scored.output.logprobs.size(), 1u);
    expect_near(scored.output.logprobs[0], logits.back(), name + ", first token");
    ++targets;
  }
  EXPECT_GT(targets, 0);
}

TEST(Logprobs, AreThoseOfTransformersOnThePocketModel) {
  EngineOptions options = pocket_options();
  options.dtype = ComputeType::kFloat32;
  const auto engine = make_engine(options);
  const Fixture fixture("tests/data/pocket");
  for (const int n : {24, 48, 96}) {
    const std::string suffix = "." + std::to_string(n);
    GenerateRequest request;
    request.prompt = fixture.ids("prompt_ids" + suffix, n);
    request.sampling.logprobs = 20;
    request.sampling.temperature = 0;
    request.max_tokens = 1;
    const Output out = run_all(*engine, {request}, 1)[0];
    ASSERT_EQ(out.logprobs.size(), 1u);
    expect_near(out.logprobs[0], fixture.vector("last_logits" + suffix, 2048), suffix);
  }
}

}  // namespace
}  // namespace volley::testing
