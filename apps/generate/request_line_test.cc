// The input format: every field lands where it belongs, and an error names its field.
#include "apps/generate/request_line.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

TEST(RequestLine, ReadsEveryField) {
  const RequestLine line = parse_request_line(
      R"({"id": "a\"b", "prompt_ids": [1, 2], "max_tokens": 5, "min_tokens": 1, "temperature": 0.5, "top_p": 1,
          "top_k": -1, "min_p": 0, "repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2,
          "seed": 18446744073709551615, "stop": ["x", "y"], "stop_token_ids": [3], "ignore_eos": true, "logprobs": 2,
          "logit_bias": {"7": -1.5}})");
  ASSERT_TRUE(line.prompt.ok()) << line.prompt.error().message;
  EXPECT_EQ(line.id_json, "\"a\\\"b\"");
  EXPECT_EQ(std::get<std::vector<TokenId>>(*line.prompt), (std::vector<TokenId>{1, 2}));
  GenerateRequest request;
  apply_settings(line.settings, &request);
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.min_tokens, 1);
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, -1);
  EXPECT_EQ(request.sampling.min_p, 0.0f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request.sampling.presence_penalty, -2.0f);
  EXPECT_EQ(request.sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(request.sampling.seed, 18446744073709551615u);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(request.stop_token_ids, (std::vector<TokenId>{3}));
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.sampling.logprobs, 2);
  EXPECT_EQ(request.sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{7, -1.5f}}));
}

TEST(RequestLine, ReadsTheThreeKindsOfPrompt) {
  EXPECT_EQ(std::get<PromptText>(*parse_request_line(R"({"prompt": "h\u00e9"})").prompt).text, "h\xc3\xa9");
  EXPECT_EQ(std::get<PromptMessages>(
                *parse_request_line(R"({"messages": [{"role": "user", "content": "hi"}], "id": 7})").prompt)
                .json,
            R"([{"content":"hi","role":"user"}])");
}

TEST(RequestLine, NullIsAFieldNotGiven) {
  const RequestLine line = parse_request_line(R"({"prompt": "a", "seed": null, "messages": null, "id": null})");
  ASSERT_TRUE(line.prompt.ok()) << line.prompt.error().message;
  EXPECT_FALSE(line.id_json || line.settings.seed);
}

TEST(RequestLine, SaysWhatIsWrong) {
  const std::string deep = R"({"prompt": "a", "id": )" + std::string(100000, '[') + "}";
  const struct {
    std::string text, expected;
  } cases[] = {
      {"", "byte"},
      {"{", "byte"},
      {"nonsense", "byte 2"},
      {"{\"prompt\": \"\xff\"}", "UTF-8"},
      {R"({"prompt": "\ud800"})", "byte"},
      {R"({"prompt": "a"} {"prompt": "b"})", "byte"},
      {"[1]", "object"},
      {deep, "nested"},
      {"{}", "None of"},
      {R"({"prompt": 5})", "prompt must"},
      {R"({"prompt_ids": "a"})", "prompt_ids must"},
      {R"({"prompt_ids": [1, -2]})", "prompt_ids[1]"},
      {R"({"prompt_ids": [1, 2147483648]})", "prompt_ids[1]"},
      {R"({"prompt_ids": [1.5]})", "prompt_ids[0]"},
      {R"({"messages": []})", "messages must"},
      {R"({"messages": ["a"]})", "messages must"},
      {R"({"prompt": "a", "id": [1]})", "id must"},
      {R"({"prompt": "a", "max_tokens": "5"})", "max_tokens must"},
      {R"({"prompt": "a", "max_tokens": 1e3})", "max_tokens must"},
      {R"({"prompt": "a", "max_tokens": 99999999999})", "max_tokens is out"},
      {R"({"prompt": "a", "max_tokens": -1})", "max_tokens must"},
      {R"({"prompt": "a", "logprobs": -1})", "logprobs must"},
      {R"({"prompt": "a", "temperature": true})", "temperature must"},
      {R"({"prompt": "a", "temperature": 1e39})", "temperature is out"},
      {R"({"prompt": "a", "temperature": 1e999})", "out of range"},
      {R"({"prompt": "a", "seed": -1})", "seed is out"},
      {R"({"prompt": "a", "ignore_eos": 1})", "ignore_eos must"},
      {R"({"prompt": "a", "stop": [1]})", "stop must"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias must"},
      {R"({"prompt": "a", "logit_bias": {"1": "x"}})", "logit_bias[1] must"},
  };
  for (const auto& [text, expected] : cases) {
    const RequestLine line = parse_request_line(text);
    ASSERT_FALSE(line.prompt.ok()) << text.substr(0, 80);
    EXPECT_EQ(line.prompt.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(line.prompt.error().message.find(expected), std::string::npos)
        << text.substr(0, 80) << " gave: " << line.prompt.error().message;
  }
}

TEST(RequestLine, ABadFieldStillLeavesTheId) {
  const RequestLine line = parse_request_line(R"({"id": 42, "prompt": "a", "top_k": "x"})");
  EXPECT_FALSE(line.prompt.ok());
  EXPECT_EQ(line.id_json, "42");
}

// The reference file's lines work unchanged: text and ids of one prompt, the right answer, other tags.
TEST(RequestLine, DataSetFieldsAreIgnoredByNameAndTheMostExactPromptCounts) {
  const RequestLine line = parse_request_line(
      R"({"task": "word", "prompt": "a", "prompt_ids": [1, 2], "messages": null, "temprature": 1, "expected": null})");
  ASSERT_TRUE(line.prompt.ok());
  EXPECT_EQ(std::get<std::vector<TokenId>>(*line.prompt), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(line.ignored, (std::vector<std::string>{"task", "temprature", "prompt"}));
}

// A field that would change the answer is applied or refused, never ignored with a good exit status.
TEST(RequestLine, StructuredOutputHasTheServersNames) {
  const auto grammar_of = [](const std::string& fields) {
    const RequestLine line = parse_request_line(R"({"prompt": "a", )" + fields + "}");
    EXPECT_TRUE(line.prompt.ok()) << line.prompt.error().message;
    EXPECT_TRUE(line.ignored.empty());
    GenerateRequest request;
    apply_settings(line.settings, &request);
    return request.grammar.value_or(GrammarSpec{GrammarSpec::Kind::kLark, "none", {}});
  };
  EXPECT_EQ(grammar_of(R"("response_format": {"type": "json_object"})").kind, GrammarSpec::Kind::kJsonObject);
  EXPECT_EQ(grammar_of(R"("structured_outputs": {"json": {"z": 1, "a": 1.0}})").text, R"({"z": 1, "a": 1.0})");
  EXPECT_EQ(grammar_of(R"("guided_regex": "a+")").text, "a+");
  EXPECT_EQ(grammar_of(R"("response_format": {"type": "text"}, "n": 1)").text, "none");
  for (const char* wrong : {R"("response_format": {"type": "xml"})", R"("guided_regex": "a", "regex": "b")",
                            R"("structured_outputs": 5)", R"("n": 2)", R"("bad_words": ["a"])", R"("tools": [])"}) {
    EXPECT_FALSE(parse_request_line(std::string(R"({"prompt": "a", )") + wrong + "}").prompt.ok()) << wrong;
  }
}

}  // namespace
}  // namespace volley::apps
