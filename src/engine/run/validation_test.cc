// Protects: a request that would fail later, or never end, is refused with its reason before it waits.
#include "engine/run/validation.h"

#include <gtest/gtest.h>

namespace volley::engine {
namespace {

std::string refusal(const GenerateRequest& request) {
  EngineInfo info;
  info.vocab_size = 50;
  info.max_model_len = 100;
  const Status checked = check_request(request, info);
  return checked.ok() ? "" : checked.error().message;
}

GenerateRequest plain() {
  GenerateRequest request;
  request.prompt = {1, 2};
  return request;
}

TEST(Validation, ARepetitionPenaltyKeepsLogitsFinite) {
  GenerateRequest request = plain();
  for (const float fits : {0.01f, 1.0f, 100.0f}) {
    request.sampling.repetition_penalty = fits;
    EXPECT_EQ(refusal(request), "") << fits;
  }
  for (const float tiny : {0.0f, 1e-38f, 1e-33f, 0.0099f}) {
    request.sampling.repetition_penalty = tiny;
    EXPECT_TRUE(refusal(request).ends_with("it must be between 0.01 and 100.")) << refusal(request);
  }
}

TEST(Validation, EachTokenOfAPromptHasAKeyOrNone) {
  GenerateRequest request = plain();
  request.prompt_keys = {-1, 2};
  EXPECT_EQ(refusal(request), "") << "keys are no token ids";
  request.prompt_keys = {-1};
  EXPECT_EQ(refusal(request), "prompt_keys has 1 entries: it needs one for each of the prompt's 2 tokens, or none.");
}

TEST(Validation, SpansOfAPromptFitItAndTheModel) {
  EngineInfo info;
  info.vocab_size = 50;
  info.max_model_len = 100;
  info.hidden_size = 3;
  info.prompt_vectors = 2;
  info.prompt_positions = true;
  const auto refused = [&](std::vector<PromptSpan> spans, bool keys = true) {
    GenerateRequest request;
    request.prompt = {1, 2, 3, 4};
    if (keys) request.prompt_keys = {1, -2, -3, 4};
    request.prompt_spans = std::move(spans);
    const Status checked = check_request(request, info);
    return checked.ok() ? "" : checked.error().message;
  };
  const auto vectors = [](size_t values) { return std::make_shared<const std::vector<float>>(values); };
  EXPECT_EQ(refused({{1, 3, vectors(12), {{1, 1, 1}, {1, 0, 2}}}, {3, 4, vectors(6), {}}}), "");
  EXPECT_NE(refused({{1, 3, vectors(12), {}}}, false).find("needs prompt_keys"), std::string::npos);
  for (const auto& [begin, end] : {std::pair{-1, 2}, {2, 2}, {3, 5}, {0, 3}}) {
    EXPECT_NE(refused({{0, 1, vectors(6), {}}, {begin, end, nullptr, {}}}).find("does not lie"), std::string::npos);
  }
  EXPECT_NE(refused({{1, 3, vectors(6), {}}}).find("2 for each token, 3 wide, are 12"), std::string::npos);
  EXPECT_NE(refused({{1, 3, nullptr, {{1, 1, 1}}}}).find("one for each token"), std::string::npos);
  EXPECT_NE(refused({{1, 2, nullptr, {{1, 2, 1}}}}).find("the position 2"), std::string::npos);
  EXPECT_NE(refused({{1, 2, nullptr, {{1, 1, -1}}}}).find("the position -1"), std::string::npos);
  info.prompt_positions = false;
  EXPECT_NE(refused({{1, 2, nullptr, {{1, 1, 1}}}}).find("does not know"), std::string::npos);
  info.device = "cuda";
  info.data_parallel_size = 2;
  info.expert_parallel = true;
  EXPECT_NE(refused({{1, 3, vectors(12), {}}}).find("is not built for replicas on GPUs"), std::string::npos);
}

// Each end would be a begin, too.
TEST(Validation, AThinkingBudgetNeedsTwoTokens) {
  GenerateRequest request = plain();
  request.thinking = ThinkingBudget{.tokens = 2, .begin = 10, .end = 11};
  EXPECT_EQ(refusal(request), "");
  request.thinking->end = 10;
  EXPECT_EQ(refusal(request),
            "The thinking budget has token id 10 for both the begin and the end of thinking: it needs two.");
}

TEST(Validation, SimulatedAcceptanceHasPhasesInOrder) {
  const auto refused = [](SimulatedAcceptance simulated) {
    GenerateRequest request = plain();
    request.simulate_acceptance = std::move(simulated);
    return refusal(request);
  };
  EXPECT_EQ(refused({{{0, 0.5}, {9, 1.0}}}), "");
  EXPECT_EQ(refused({{{0, 1.5}}}), "--simulate-acceptance needs a probability between 0 and 1.");
  for (const SimulatedAcceptance& none : {SimulatedAcceptance{}, SimulatedAcceptance{{{5, 0.5}}}}) {
    EXPECT_NE(refused(none).find("from step 0"), std::string::npos) << refused(none);
  }
  EXPECT_NE(refused({{{0, 0.5}, {9, 0.4}, {9, 0.3}}}).find("9 follows 9"), std::string::npos);
  EXPECT_NE(refused({{{0, 0.5}}, 0.0}).find("odds"), std::string::npos);
}

}  // namespace
}  // namespace volley::engine
