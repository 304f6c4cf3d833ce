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
