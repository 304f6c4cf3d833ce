#include "request_kinds.h"

#include <gtest/gtest.h>

namespace volley::testing {

std::vector<GenerateRequest> all_kinds(const Engine& engine) {
  std::vector<GenerateRequest> requests;
  const char* messages[] = {"Sort these numbers: 50, 49, 35, 79.", "Tell me a story about a dog and a ladder."};
  for (const char* message : messages) {
    for (int kind = 0; kind < 5; ++kind) {
      GenerateRequest request = chat_request(engine, message, 40, kind == 1);
      request.sampling.seed = static_cast<uint64_t>(kind) + 1;
      if (kind == 1) request.sampling.temperature = 1, request.sampling.logprobs = 3;
      if (kind == 2) {
        request.sampling.temperature = 0.8f;
        request.sampling.top_p = 0.9f;
        request.sampling.repetition_penalty = 1.2f;
        request.sampling.frequency_penalty = 0.5f;
        request.sampling.logit_bias = {{7, 3.0f}, {9, -100.0f}};
      }
      if (kind == 3) request.grammar = GrammarSpec{GrammarSpec::Kind::kRegex, "[a-z ,]{5,60}", {}};
      if (kind == 4) request.prompt_logprobs = 2, request.min_tokens = 30;
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

void expect_the_same(const std::vector<Output>& outputs, const std::vector<Output>& expected, const char* what) {
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& error = outputs[i].finish.error;
    ASSERT_FALSE(error.has_value()) << what << ", request " << i << ": " << error->message;
    EXPECT_EQ(outputs[i].tokens, expected[i].tokens) << what << ", request " << i;
    EXPECT_EQ(outputs[i].finish.tokens_per_step, expected[i].finish.tokens_per_step) << what << ", request " << i;
    ASSERT_EQ(outputs[i].logprobs.size(), expected[i].logprobs.size());
    for (size_t j = 0; j < outputs[i].logprobs.size(); ++j) {
      EXPECT_EQ(outputs[i].logprobs[j].chosen.logprob, expected[i].logprobs[j].chosen.logprob);
    }
  }
}

}  // namespace volley::testing
