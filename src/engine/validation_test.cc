// Protects that a request which would fail later, or never end, is refused with its reason before it waits.
#include "engine/validation.h"

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

// Each end would be a begin, too.
TEST(Validation, AThinkingBudgetNeedsTwoTokens) {
  GenerateRequest request = plain();
  request.thinking = ThinkingBudget{.tokens = 2, .begin = 10, .end = 11};
  EXPECT_EQ(refusal(request), "");
  request.thinking->end = 10;
  EXPECT_EQ(refusal(request),
            "The thinking budget has token id 10 for both the begin and the end of thinking: it needs two.");
}

}  // namespace
}  // namespace volley::engine
