// Protects the meaning of every request field: applied, refused with the right words, or ignored.
#include "serve/api/openai_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

namespace volley::serve {
namespace {

using nlohmann::json;

class OpenAiRequest : public ::testing::Test {
 protected:
  OpenAiRequest() {
    info_.vocab_size = 1000;
    info_.max_model_len = 4096;
    info_.default_sampling.temperature = 0.6f;
    info_.default_sampling.top_k = 20;
    info_.default_sampling.top_p = 0.95f;
  }

  RequestRules rules() const { return {info_, models_, 128, 200}; }
  ApiResult<ApiRequest> chat(const std::string& fields) const {
    return raw_chat(R"({"messages": [{"role": "user", "content": "hi"}])" + (fields.empty() ? "" : ", " + fields) +
                    "}");
  }
  ApiResult<ApiRequest> completion(const std::string& fields) const {
    return raw_completion(R"({"prompt": "hi")" + (fields.empty() ? "" : ", " + fields) + "}");
  }
  ApiResult<ApiRequest> raw_chat(const std::string& body) const { return parse_chat_request(body, rules()); }
  ApiResult<ApiRequest> raw_completion(const std::string& body) const {
    return parse_completion_request(body, rules());
  }

  using Field = std::pair<const char*, std::vector<const char*>>;  // name and values
  // By chats and completions, with this code and a message that names the field.
  void expect_refused(std::span<const Field> fields, std::string_view code) const;

  EngineInfo info_;
  std::vector<std::string> models_ = {"pocket", "org/alias"};
};

ApiRequest good(ApiResult<ApiRequest> result) {
  if (const auto* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::get<ApiRequest>(std::move(result));
}

ApiError bad(ApiResult<ApiRequest> result) {
  const auto* error = std::get_if<ApiError>(&result);
  if (!error) {
    ADD_FAILURE() << "the request was accepted";
    return {};
  }
  return *error;
}

void OpenAiRequest::expect_refused(std::span<const Field> fields, std::string_view code) const {
  for (const auto& [field, values] : fields) {
    for (const char* value : values) {
      const std::string text = "\"" + std::string(field) + "\": " + value;
      for (const ApiError& error : {bad(chat(text)), bad(completion(text))}) {
        EXPECT_EQ(error.status, 400) << text;
        EXPECT_EQ(error.param, field) << text;
        EXPECT_EQ(error.code, code) << text;
        EXPECT_NE(error.message.find(field), std::string::npos) << error.message;
      }
    }
  }
}

TEST_F(OpenAiRequest, DefaultsComeFromTheModelAndTheSchema) {
  const ApiRequest chat_request = good(chat(""));
  EXPECT_EQ(chat_request.model, "pocket");
  EXPECT_FLOAT_EQ(chat_request.generate.sampling.temperature, 0.6f);
  EXPECT_EQ(chat_request.generate.sampling.top_k, 20);
  EXPECT_FLOAT_EQ(chat_request.generate.sampling.top_p, 0.95f);
  EXPECT_EQ(chat_request.generate.sampling.logprobs, -1);
  EXPECT_EQ(chat_request.generate.max_tokens, -1);
  EXPECT_FALSE(chat_request.max_tokens_given);
  EXPECT_FALSE(chat_request.add_special_tokens) << "the template writes them";
  EXPECT_TRUE(chat_request.chat.add_generation_prompt);
  const ApiRequest completion_request = good(completion(""));
  EXPECT_EQ(completion_request.generate.max_tokens, 16);
  EXPECT_FALSE(completion_request.max_tokens_given);
  EXPECT_TRUE(completion_request.add_special_tokens);
}

TEST_F(OpenAiRequest, ReadsEveryField) {
  const ApiRequest request = good(chat(
      R"("model": "org/alias", "max_tokens": 5, "max_completion_tokens": 9, "min_tokens": 2, "temperature": 0, "top_p": 0.5,
         "top_k": -1, "min_p": 0.1, "n": 3, "seed": 7, "stop": ["a", "b"], "stop_token_ids": [7, 8], "ignore_eos": true,
         "presence_penalty": 1.5, "frequency_penalty": -2, "repetition_penalty": 1.1, "logit_bias": {"5": -100, "6": 1.5},
         "logprobs": true, "top_logprobs": 4, "stream": true, "stream_options": {"include_usage": true},
         "chat_template_kwargs": {"enable_thinking": false}, "add_generation_prompt": false,
         "continue_final_message": true, "cache_salt": "tenant", "add_special_tokens": true)"));
  const GenerateRequest& generate = request.generate;
  EXPECT_EQ(request.model, "org/alias");
  EXPECT_EQ(generate.max_tokens, 9) << "max_completion_tokens replaces max_tokens";
  EXPECT_TRUE(request.max_tokens_given);
  EXPECT_EQ(generate.min_tokens, 2);
  EXPECT_EQ(generate.sampling.temperature, 0.0f);
  EXPECT_EQ(generate.sampling.top_p, 0.5f);
  EXPECT_EQ(generate.sampling.top_k, -1);
  EXPECT_EQ(generate.sampling.min_p, 0.1f);
  EXPECT_EQ(request.n, 3);
  EXPECT_EQ(generate.sampling.seed, 7u);
  EXPECT_EQ(generate.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(generate.stop_token_ids, (std::vector<TokenId>{7, 8}));
  EXPECT_TRUE(generate.ignore_eos);
  EXPECT_EQ(generate.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(generate.sampling.frequency_penalty, -2.0f);
  EXPECT_EQ(generate.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(generate.sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{5, -100.0f}, {6, 1.5f}}));
  EXPECT_EQ(generate.sampling.logprobs, 4);
  EXPECT_TRUE(request.stream);
  EXPECT_TRUE(request.shape.include_usage);
  EXPECT_EQ(request.chat.template_kwargs_json, R"({"enable_thinking": false})");
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_TRUE(request.chat.continue_final_message);
  EXPECT_EQ(generate.cache_namespace, "tenant");
  EXPECT_TRUE(request.add_special_tokens);
  EXPECT_TRUE(request.ignored_fields.empty());
}

TEST_F(OpenAiRequest, NullIsTheSameAsNothing) {
  const ApiRequest request = good(chat(
      R"("temperature": null, "stop": null, "logit_bias": null, "seed": null, "n": null, "tools": null, "stream": null,
         "max_tokens": null, "stream_options": null, "response_format": null, "model": null, "logprobs": null)"));
  EXPECT_FLOAT_EQ(request.generate.sampling.temperature, 0.6f);
  EXPECT_EQ(request.generate.sampling.seed, std::nullopt);
  EXPECT_EQ(request.n, 1);
}

TEST_F(OpenAiRequest, ASeedOfMinusOneIsNone) {
  info_.default_sampling.seed = 3;
  EXPECT_EQ(good(chat(R"("seed": -1)")).generate.sampling.seed, std::nullopt);
  EXPECT_EQ(good(completion(R"("seed": -1.0)")).generate.sampling.seed, std::nullopt);
  EXPECT_EQ(good(chat(R"("seed": 0)")).generate.sampling.seed, 0u);
}

// vLLM and SGLang take any 64 bits.
TEST_F(OpenAiRequest, NegativeSeedsAreTheirBits) {
  EXPECT_EQ(good(chat(R"("seed": -2)")).generate.sampling.seed, ~uint64_t{1});
  EXPECT_EQ(good(chat(R"("seed": -9223372036854775808)")).generate.sampling.seed, uint64_t{1} << 63);
}

TEST_F(OpenAiRequest, LargeSeedsAndWholeFloats) {
  EXPECT_EQ(good(chat(R"("seed": 18446744073709551615)")).generate.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(good(chat(R"("seed": 9007199254740993)")).generate.sampling.seed, 9007199254740993u);
  EXPECT_EQ(good(chat(R"("n": 2.0)")).n, 2);
  EXPECT_GT(good(chat(R"("top_p": 5e-324)")).generate.sampling.top_p, 0.0f);
  EXPECT_EQ(good(chat(R"("stop": "end")")).generate.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(good(chat(R"("logprobs": true)")).generate.sampling.logprobs, 0);
}

TEST_F(OpenAiRequest, WrongValuesNameTheirField) {
  const Field cases[] = {
      {"temperature", {R"("hot")", "-0.1", "1e300", "true"}},
      {"top_p", {"0", "1.01", "-1e-320"}},
      {"top_k", {"-2", "1.5"}},
      {"min_p", {"-0.5", "2"}},
      {"n", {"0", "129", R"("2")"}},
      {"seed", {"1.5", "-1e19", R"("x")"}},
      {"max_tokens", {"0", "-1", "99999999999999999999", "1e300"}},
      {"min_tokens", {"-1"}},
      {"stop", {"5", R"([""])", R"("")", R"(["a", 1])"}},
      {"stop_token_ids", {"5", "[1000]", "[-1]", R"(["a"])"}},
      {"ignore_eos", {"1"}},
      {"presence_penalty", {"2.1"}},
      {"frequency_penalty", {"-2.1"}},
      {"repetition_penalty", {"0"}},
      {"logit_bias", {"[]", R"({"1000": 1})", R"({"1x": 1})", R"({"": 1})", R"({"1": 101})", R"({"1": "a"})"}},
      {"stream", {R"("yes")"}},
      {"stream_options", {"5"}},
      {"model", {"5"}},
      {"cache_salt", {"5"}},
      {"priority", {"1.5", "2147483648"}},
      {"timeout", {"0", "1000001", R"("5")"}},
      {"add_special_tokens", {"0"}},
  };
  expect_refused(cases, "invalid_value");
}

TEST_F(OpenAiRequest, MessagesSayWhatIsAllowed) {
  EXPECT_EQ(bad(chat(R"("top_p": 0)")).message, "\"top_p\" must be a number above 0 and at most 1, not 0.");
  EXPECT_EQ(bad(chat(R"("min_p": 2)")).message, "\"min_p\" must be a number from 0 to 1, not 2.");
  EXPECT_EQ(bad(chat(R"("seed": 0.5)")).message,
            "\"seed\" must be an integer from -9223372036854775808 to 18446744073709551615, or null or -1 for none, "
            "not 0.5.");
  EXPECT_EQ(bad(chat(R"("functions": [{"name": "f"}])")).message, "\"functions\" is not supported: use \"tools\".");
}

TEST_F(OpenAiRequest, FieldsThatNeedEachOther) {
  EXPECT_EQ(bad(chat(R"("top_logprobs": 3)")).param, "top_logprobs");
  EXPECT_EQ(bad(chat(R"("logprobs": true, "top_logprobs": 21)")).param, "top_logprobs");
  EXPECT_EQ(bad(chat(R"("logprobs": 3)")).param, "logprobs") << "chat takes a boolean";
  EXPECT_EQ(bad(completion(R"("logprobs": true)")).param, "logprobs") << "completions take a number";
  EXPECT_EQ(bad(completion(R"("logprobs": 21)")).param, "logprobs");
  EXPECT_EQ(bad(chat(R"("min_tokens": 6, "max_tokens": 5)")).param, "min_tokens");
  EXPECT_EQ(bad(chat(R"("stream_options": {"include_usage": true})")).param, "stream_options");
  EXPECT_EQ(bad(chat(R"("stream": true, "stream_options": {"include_usage": 1})")).param,
            "stream_options.include_usage");
  EXPECT_EQ(bad(chat(R"("continue_final_message": true, "add_generation_prompt": true)")).param,
            "continue_final_message");
  EXPECT_FALSE(good(chat(R"("continue_final_message": true)")).chat.add_generation_prompt);
  std::string stops = "\"x\"";
  for (int i = 0; i < 16; ++i) stops += ",\"x\"";
  EXPECT_EQ(bad(chat("\"stop\": [" + stops + "]")).param, "stop");
}

TEST_F(OpenAiRequest, UnknownModelIsOpenAisNotFound) {
  const ApiError error = bad(chat(R"("model": "gpt-4o")"));
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "model_not_found");
  EXPECT_NE(error.message.find("gpt-4o"), std::string::npos);
}

TEST_F(OpenAiRequest, RefusesWhatItCannotHonour) {
  const Field cases[] = {
      {"functions", {R"([{}])"}},
      {"function_call", {R"({"name": "f"})"}},
      {"best_of", {"2"}},
      {"audio", {"{}"}},
      {"modalities", {R"(["text", "audio"])"}},
      {"suffix", {R"("end")"}},
      {"use_beam_search", {"true"}},
      {"logprob_token_ids", {"[1]"}},
      {"chat_template", {R"("{{ x }}")"}},
  };
  expect_refused(cases, "unsupported_parameter");
}

TEST_F(OpenAiRequest, ReadsWhatMayBeChosen) {
  const ApiRequest request =
      good(chat(R"("allowed_token_ids": [9, 3, 9], "bad_words": ["a", " b c"], "thinking_token_budget": 7,
              "skip_special_tokens": false,
              "repetition_detection": {"max_pattern_size": 5, "min_pattern_size": 0, "min_count": 3})"));
  EXPECT_EQ(request.generate.allowed_tokens, (std::vector<TokenId>{3, 9}));
  EXPECT_EQ(request.bad_words, (std::vector<std::string>{"a", " b c"}));
  EXPECT_EQ(request.thinking_tokens, 7);
  EXPECT_FALSE(request.generate.skip_special_tokens);
  EXPECT_FALSE(request.shape.skip_special_tokens);
  ASSERT_TRUE(request.generate.repetition);
  EXPECT_EQ(request.generate.repetition->min_size, 1);
  EXPECT_EQ(request.generate.repetition->max_size, 5);
  EXPECT_EQ(request.generate.repetition->min_count, 3);
  const ApiRequest none = good(chat(R"("allowed_token_ids": [], "bad_words": [], "thinking_token_budget": -1,
                                       "repetition_detection": {}, "skip_special_tokens": null)"));
  EXPECT_TRUE(none.generate.allowed_tokens.empty());
  EXPECT_EQ(none.thinking_tokens, -1);
  EXPECT_FALSE(none.generate.repetition);
  EXPECT_TRUE(none.generate.skip_special_tokens);
  const std::pair<const char*, const char*> wrong[] = {
      {R"("allowed_token_ids": [1000])", "allowed_token_ids"},
      {R"("allowed_token_ids": 5)", "allowed_token_ids"},
      {R"("bad_words": "a")", "bad_words"},
      {R"("bad_words": [""])", "bad_words"},
      {R"("thinking_token_budget": -2)", "thinking_token_budget"},
      {R"("repetition_detection": {"max_pattern_size": 5, "min_count": 1})", "repetition_detection.min_count"},
      {R"("repetition_detection": {"max_pattern_size": 1025, "min_count": 2})",
       "repetition_detection.max_pattern_size"},
      {R"("repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2})",
       "repetition_detection.min_pattern_size"},
  };
  for (const auto& [fields, param] : wrong) {
    EXPECT_EQ(bad(chat(fields)).param, param) << fields;
    EXPECT_EQ(bad(completion(fields)).param, param) << fields;
  }
}

// The engine's refusal would not name a field, so the field is checked here.
TEST_F(OpenAiRequest, ListsThatAreTooLongNameTheirField) {
  info_.vocab_size = 5000;
  info_.eos_token_ids = {1, 2};
  std::string biases, ids;
  for (int i = 0; i < 1024; ++i) biases += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": 1";
  for (int i = 0; i < 126; ++i) ids += (i > 0 ? ", " : "") + std::to_string(i);
  EXPECT_EQ(good(chat("\"logit_bias\": {" + biases + "}")).generate.sampling.logit_bias.size(), 1024u);
  const ApiError bias = bad(completion("\"logit_bias\": {" + biases + ", \"2000\": 1}"));
  EXPECT_EQ(bias.param, "logit_bias");
  EXPECT_NE(bias.message.find("1024 entries, not 1025"), std::string::npos) << bias.message;
  EXPECT_EQ(good(chat("\"stop_token_ids\": [" + ids + "]")).generate.stop_token_ids.size(), 126u);
  EXPECT_EQ(bad(chat("\"stop_token_ids\": [" + ids + ", 4000]")).param, "stop_token_ids");
}

TEST_F(OpenAiRequest, AcceptsTheHarmlessFormsOfThose) {
  const ApiRequest request = good(chat(
      R"("tools": [], "tool_choice": "auto", "functions": [], "function_call": "none", "response_format": {"type": "text"},
         "best_of": 1, "modalities": ["text"], "use_beam_search": false, "bad_words": [],
         "include_stop_str_in_output": false, "skip_special_tokens": true)"));
  EXPECT_TRUE(request.ignored_fields.empty());
}

TEST_F(OpenAiRequest, ReportsFieldsThatAreUnknownOrChangeNothing) {
  EXPECT_EQ(good(chat(R"("temprature": 1, "zzz": {}, "user": "u", "metadata": {"a": "b"})")).ignored_fields,
            (std::vector<std::string>{"user", "metadata", "temprature", "zzz"}));
  std::string many = "\"" + std::string(1000, 'k') + "\": 1";
  for (int i = 0; i < 100; ++i) many += ", \"f" + std::to_string(i) + "\": 1";
  const ApiRequest request = good(chat(many));
  EXPECT_EQ(request.ignored_fields.size(), 16u);
  for (const std::string& field : request.ignored_fields) EXPECT_LE(field.size(), 64u);
}

TEST_F(OpenAiRequest, PassesMessagesToTheTemplateUnchanged) {
  const std::string messages =
      R"([{"role":"system","content":"s"}, {"role": "assistant", "z": 1.50, "a": [2], "content": null},{"content":"x","role":"user"}])";
  EXPECT_EQ(
      messages_json(good(raw_chat(R"({"model": "pocket", "messages": )" + messages + "}")).chat.messages),
      R"([{"role":"system","content":"s"},{"role":"assistant","content":null,"z":1.50,"a":[2]},{"role":"user","content":"x"}])");
}

// Some clients send all fields of a message.
TEST_F(OpenAiRequest, LeavesNullMembersOfMessagesOut) {
  const std::string messages =
      R"([{"role": "user", "content": [{"type": "text", "text": "x"}], "name": null}, {"tool_calls": null, "role":"assistant",
          "content": "y", "z": 1.50, "function_call": null}, {"role": "assistant", "content": null, "refusal": null}])";
  EXPECT_EQ(messages_json(good(raw_chat(R"({"model": "pocket", "messages": )" + messages + "}")).chat.messages),
            R"([{"role":"user","content":"x"},{"role":"assistant","content":"y","z":1.50},)"
            R"({"role":"assistant","content":null}])");
}

// Qwen's and DeepSeek's templates read only reasoning_content. Answers have both names, and clients send back one.
TEST_F(OpenAiRequest, ThoughtsReachTheTemplateUnderEitherName) {
  const auto passed = [&](const std::string& message) {
    return messages_json(good(raw_chat(R"({"messages": [)" + message + "]}")).chat.messages);
  };
  EXPECT_EQ(passed(R"({"role": "assistant", "reasoning": "h\u006d", "content": "x", "reasoning_content": null})"),
            R"([{"role":"assistant","content":"x","reasoning_content":"hm","reasoning":"h\u006d"}])");
  for (const char* message : {R"({"role":"assistant","content":"x","reasoning_content":"b","reasoning":"a"})",
                              R"({"role":"assistant","content":"x","reasoning":{"a": 1}})",
                              R"({"role":"user","content":"x","reasoning":"a"})"}) {
    EXPECT_EQ(passed(message), "[" + std::string(message) + "]");
  }
}

TEST_F(OpenAiRequest, KnowsTheRolesOfTheSchemaAndNoOthers) {
  const auto with_role = [](const std::string& role) {
    return R"({"messages": [{"role": ")" + role + R"(", "content": "x"}]})";
  };
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) good(raw_chat(with_role(role)));
  for (const char* role : {"", "User", "root", "user<|im_end|>"}) EXPECT_EQ(bad(raw_chat(with_role(role))).status, 400);
  const ApiError error = bad(raw_chat(with_role("root")));
  EXPECT_EQ(error.param, "messages");
  EXPECT_EQ(error.message,
            "messages[0].role must be \"system\", \"developer\", \"user\", \"assistant\" or \"tool\", not \"root\".");
  EXPECT_EQ(bad(raw_chat(with_role("function"))).message,
            "messages[0].role \"function\" is not supported: use \"tool\".");
}

TEST_F(OpenAiRequest, JoinsTextParts) {
  const std::string body =
      R"({"messages": [{"role": "user", "name": "n", "content": [{"type": "text", "text": "a\"é"}, {"type": "text", "text": "b"}]}]})";
  const json messages = json::parse(messages_json(good(raw_chat(body)).chat.messages));
  EXPECT_EQ(messages, json::parse(R"([{"role": "user", "name": "n", "content": "a\"é\nb"}])"));
}

TEST_F(OpenAiRequest, RefusesBadMessages) {
  EXPECT_EQ(bad(raw_chat("{}")).param, "messages");
  for (const std::string messages :
       {R"([])", R"(null)", R"("hi")", R"(["hi"])", R"([{"content": "hi"}])", R"([{"role": 5, "content": "hi"}])",
        R"([{"role": "user"}])", R"([{"role": "user", "content": 5}])", R"([{"role": "user", "content": ["hi"]}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "user", "content": [{"type": "text"}]}])"}) {
    const ApiError error = bad(raw_chat("{\"messages\": " + messages + "}"));
    EXPECT_EQ(error.status, 400) << messages;
    EXPECT_EQ(error.param, "messages") << messages;
  }
}

TEST_F(OpenAiRequest, ReadsEveryShapeOfPrompt) {
  const auto prompts = [&](const std::string& prompt) {
    return good(raw_completion(R"({"prompt": )" + prompt + "}")).prompts;
  };
  EXPECT_EQ(prompts(R"("text")"), (std::vector<Prompt>{"text"}));
  EXPECT_EQ(prompts("[1, 2, 999]"), (std::vector<Prompt>{std::vector<TokenId>{1, 2, 999}}));
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[[1], [2, 3]]"), (std::vector<Prompt>{std::vector<TokenId>{1}, std::vector<TokenId>{2, 3}}));
}

TEST_F(OpenAiRequest, RefusesBadPrompts) {
  for (const char* prompt : {"null", "5", "{}", "[]", "[[]]", "[1000]", "[-1]", "[1.5]", "[1, \"a\"]", "[[1], [\"a\"]]",
                             "[true]", "[[1], 2]"}) {
    const ApiError error = bad(raw_completion(std::string(R"({"prompt": )") + prompt + "}"));
    EXPECT_EQ(error.status, 400) << prompt;
    EXPECT_EQ(error.param, "prompt") << prompt;
  }
  EXPECT_EQ(bad(raw_completion("{}")).param, "prompt");
}

TEST_F(OpenAiRequest, BoundsTheNumberOfChoices) {
  std::string prompts = "\"x\"";
  for (int i = 0; i < 100; ++i) prompts += ",\"x\"";
  EXPECT_EQ(bad(raw_completion("{\"prompt\": [" + prompts + "], \"n\": 2}")).param, "n");
  EXPECT_EQ(good(raw_completion("{\"prompt\": [" + prompts + "], \"n\": 1}")).prompts.size(), 101u);
}

TEST_F(OpenAiRequest, EchoBringsThePromptsLogprobs) {
  EXPECT_EQ(good(completion(R"("echo": true)")).generate.prompt_logprobs, -1);
  EXPECT_EQ(good(completion(R"("echo": true, "logprobs": 1)")).generate.prompt_logprobs, 1);
  const ApiRequest both = good(completion(R"("echo": true, "logprobs": 1, "prompt_logprobs": 3)"));
  EXPECT_EQ(both.generate.prompt_logprobs, 3) << "the larger of both";
  EXPECT_EQ(both.shape.prompt_logprobs, 3);
  EXPECT_EQ(bad(chat(R"("echo": true)")).param, "echo");
}

TEST_F(OpenAiRequest, AnEchoMayStandAlone) {
  const ApiRequest request = good(completion(R"("echo": true, "max_tokens": 0)"));
  EXPECT_TRUE(request.shape.echo_only);
  EXPECT_EQ(request.generate.max_tokens, 1) << "the engine makes at least one";
  EXPECT_EQ(bad(completion(R"("max_tokens": 0)")).param, "max_tokens");
  EXPECT_EQ(bad(completion(R"("echo": true, "max_tokens": 0, "min_tokens": 1)")).param, "min_tokens");
}

TEST_F(OpenAiRequest, ReadsTheShapeOfTheAnswer) {
  const ApiRequest request =
      good(chat(R"("include_stop_str_in_output": true, "return_token_ids": true, "return_tokens_as_token_ids": true,
              "prompt_logprobs": 0, "include_reasoning": false, "separate_reasoning": false, "stream": true,
              "stream_options": {"include_usage": true, "continuous_usage_stats": true},
              "volley": {"speculation": false, "tokens_per_step": true, "blocks": true})"));
  const ResponseShape& shape = request.shape;
  EXPECT_TRUE(shape.include_stop && shape.token_ids && shape.tokens_as_ids && shape.include_usage &&
              shape.continuous_usage && shape.tokens_per_step && shape.blocks);
  EXPECT_EQ(shape.prompt_logprobs, 0);
  EXPECT_EQ(request.generate.prompt_logprobs, 0);
  EXPECT_FALSE(shape.reasoning);
  EXPECT_FALSE(request.separate_reasoning);
  EXPECT_FALSE(request.generate.speculation);
  EXPECT_TRUE(good(chat("")).generate.speculation);
}

TEST_F(OpenAiRequest, NamesMistakesInInnerObjects) {
  EXPECT_EQ(bad(chat(R"("volley": {"speculation": 1})")).param, "volley.speculation");
  EXPECT_EQ(bad(chat(R"("volley": {"speculatoin": false})")).param, "volley.speculatoin");
  EXPECT_EQ(bad(chat(R"("volley": true)")).param, "volley");
  EXPECT_EQ(good(chat(R"("stream": true, "stream_options": {"obfuscation": 1})")).ignored_fields,
            std::vector<std::string>{"stream_options.obfuscation"});
}

// OpenAI's clients send an answer back as they got it.
TEST_F(OpenAiRequest, ReadsRefusalsOfTheAssistant) {
  const auto message = [](const char* role) {
    return std::string(R"({"messages": [{"role": ")") + role +
           R"(", "content": [{"type": "refusal", "refusal": "no"}]}]})";
  };
  EXPECT_EQ(good(raw_chat(message("assistant"))).chat.messages[0].content, "no");
  EXPECT_EQ(bad(raw_chat(message("user"))).param, "messages");
}

TEST_F(OpenAiRequest, GivesVariablesToTheTemplate) {
  EXPECT_EQ(good(chat(R"("reasoning_effort": "low")")).chat.template_kwargs_json, R"({"reasoning_effort":"low"})");
  EXPECT_EQ(
      good(chat(R"("documents": [{"b": 1.0, "a": 2}], "chat_template_kwargs": {"x": [1]})")).chat.template_kwargs_json,
      R"({"documents":[{"b": 1.0, "a": 2}],"x":[1]})");
  EXPECT_EQ(good(chat(R"("chat_template_kwargs": {"x": 1.0})")).chat.template_kwargs_json, R"({"x": 1.0})");
  EXPECT_EQ(bad(chat(R"("documents": {})")).param, "documents");
  for (const char* wrong : {"5", "\"x\"", "[]", R"({"messages": []})", R"({"a": 1, "add_generation_prompt": true})"}) {
    EXPECT_EQ(bad(chat(R"("chat_template_kwargs": )" + std::string(wrong))).param, "chat_template_kwargs") << wrong;
  }
}

TEST_F(OpenAiRequest, RefusesBodiesThatAreNoObject) {
  for (const char* body : {"", "[]", "null", "5", "{", "\"x\""}) {
    EXPECT_EQ(bad(raw_chat(body)).status, 400) << body;
    EXPECT_EQ(bad(raw_completion(body)).status, 400) << body;
  }
}

}  // namespace
}  // namespace volley::serve
