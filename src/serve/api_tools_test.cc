// Protects what a request asks of its output: grammars, tools, formats and reasoning, from HTTP request to response.
#include "serve/api_for_test.h"

namespace volley::serve {
namespace {

TEST_F(ApiTest, GrammarsReachTheEngineAndItsRefusalTheClient) {
  FakeEngine engine;
  Api api(engine, make_options());
  answer(api, post(kTextPath, R"({"prompt": "x", "guided_regex": "a+", "volley": {"speculation": false}})"));
  ASSERT_TRUE(engine.submitted().at(0).grammar);
  EXPECT_EQ(engine.submitted().at(0).grammar->text, "a+");
  EXPECT_FALSE(engine.submitted().at(0).speculation);
  engine.refuse_submits(invalid_argument("the regular expression has no end"));
  const Answer refused = answer(api, post(kTextPath, R"({"prompt": "x", "guided_regex": "("})"));
  EXPECT_EQ(refused.response->status, 400);
  EXPECT_EQ(refused.body().at("error").at("param"), "guided_regex");
}

constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])";

TEST_F(ApiTest, AToolCallIsReadFromTheText) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.pieces = {"<tool_", "call>\n{\"name\": \"f\", ", "\"arguments\": {}}\n</tool_call>"};
    return script;
  });
  Api api(engine, make_options());
  const json choice = answer(api, post(kChatPath, chat_with(kTools))).body().at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(choice.at("message").at("content"), nullptr);
  EXPECT_EQ(choice.at("message").at("tool_calls").at(0).at("function").at("name"), "f");
  EXPECT_FALSE(engine.submitted().at(0).grammar) << "auto leaves the model free";
  EXPECT_NE(engine.decode(engine.submitted().at(0).prompt, false).find("\"name\": \"f\""), std::string::npos);

  answer(api, post(kChatPath, chat_with(std::string(kTools) + R"(, "tool_choice": "required")")));
  EXPECT_TRUE(engine.submitted().at(1).grammar);
  const json none = answer(api, post(kChatPath, chat_with(std::string(kTools) + R"(, "tool_choice": "none")"))).body();
  EXPECT_FALSE(none.at("choices").at(0).at("message").contains("tool_calls"));
}

// A form that writes bare values needs the request's schemas.
TEST_F(ApiTest, BareValuesOfAToolCallGetTheirTypesFromTheRequest) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.pieces = {"<tool_call>\n<function=f>\n<parameter=n>\n", "7\n</parameter>\n</function>\n</tool_call>"};
    return script;
  });
  ServerOptions options = make_options();
  options.tool_call_parser = "qwen3_coder";
  Api api(engine, options);
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"n": {"type": "integer"}}}}}])";
  const json choice = answer(api, post(kChatPath, chat_with(tools))).body().at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("tool_calls").at(0).at("function").at("arguments"), R"({"n": 7})");
}

// The client learns which two fields of its request exclude each other, whichever they are.
TEST_F(ApiTest, ToolsAndAnotherConstraintAreOneTooMany) {
  FakeEngine engine;
  Api api(engine, make_options());
  const std::string strict = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])";
  const std::pair<std::string, std::string> cases[] = {
      {std::string(kTools) + R"(, "tool_choice": "required")", "tool_choice"},
      {std::string(kTools) + R"(, "parallel_tool_calls": false)", "parallel_tool_calls"},
      {strict, "tools"}};
  for (const auto& [fields, first] : cases) {
    const std::string second = "guided_regex";
    const Answer refused = answer(api, post(kChatPath, chat_with(fields + R"(, "guided_regex": "a")")));
    EXPECT_EQ(refused.response->status, 400) << fields;
    const json error = refused.body().at("error");
    EXPECT_EQ(error.at("param"), first);
    const auto message = error.at("message").get<std::string>();
    EXPECT_NE(message.find("\"" + first + "\""), std::string::npos) << message;
    EXPECT_NE(message.find("\"" + second + "\""), std::string::npos) << message;
    EXPECT_EQ(answer(api, post(kChatPath, chat_with(fields))).response->status, 200) << fields;
  }
  EXPECT_EQ(engine.submitted().size(), 3u);
}

TEST_F(ApiTest, ADeveloperSpeaksAsTheSystem) {
  FakeEngine engine;
  Api api(engine, make_options());
  answer(api, post(kChatPath, R"({"messages": [{"content": "a", "role": "developer", "n": 1.50},
                                               {"role": "user", "content": "developer"}]})"));
  EXPECT_EQ(engine.decode(engine.submitted().at(0).prompt, false),
            R"([{"role":"system","content":"a","n":1.50},{"role": "user", "content": "developer"}]||1|0)");
}

TEST_F(ApiTest, MistralsTemplatesGetShortIds) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {"[TOOL_CALLS]f[ARGS]{}"}}; });
  ServerOptions options = make_options();
  options.tool_call_parser = "mistral";
  Api api(engine, options);
  const Answer result =
      answer(api, post(kChatPath, R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls":
      [{"id": "call_123456", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "call_123456", "content": "y"}], )" +
                                      std::string(kTools) + "}"));
  EXPECT_EQ(result.body().at("choices").at(0).at("message").at("tool_calls").at(0).at("id").get<std::string>().size(),
            9u);
  const std::string prompt = engine.decode(engine.submitted().at(0).prompt, false);
  const json messages = json::parse(prompt.substr(0, prompt.find("|")));
  EXPECT_EQ(messages.at(1).at("tool_calls").at(0).at("id").get<std::string>().size(), 9u);
  EXPECT_EQ(messages.at(2).at("tool_call_id"), messages.at(1).at("tool_calls").at(0).at("id"));
}

// As OpenAI has it: a format is that of the text, so a model that may call answers with calls or with JSON.
TEST_F(ApiTest, ToolsAndAFormatOfTheTextGoTogether) {
  std::string text;
  FakeEngine engine([&](const GenerateRequest&) { return FakeScript{.pieces = {text}}; });
  Api api(engine, make_options());
  const auto ask = [&](const std::string& written, const std::string& fields) -> json {
    text = written;
    const Answer result =
        answer(api, post(kChatPath, chat_with(R"("response_format": {"type": "json_object"}, )" + fields)));
    EXPECT_EQ(result.response->status, 200) << result.response->body;
    return result.body().at("choices").at(0);
  };
  const std::string strict = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])";
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  for (const std::string& fields :
       {std::string(kTools), strict, std::string(kTools) + R"(, "parallel_tool_calls": false)"}) {
    EXPECT_EQ(ask(call, fields).at("finish_reason"), "tool_calls") << fields;
    const GrammarSpec grammar = engine.submitted().back().grammar.value();
    EXPECT_EQ(grammar.kind, GrammarSpec::Kind::kJsonObject);
    EXPECT_TRUE(grammar.lead.starts_with("whole: ")) << grammar.lead;
    const std::string quoted = json{{"a", call}}.dump();  // a call in a string is none
    EXPECT_EQ(ask(quoted, fields).at("message").at("content"), quoted);
  }
  EXPECT_EQ(ask(call, std::string(kTools) + R"(, "tool_choice": "required")").at("finish_reason"), "tool_calls");
  EXPECT_EQ(engine.submitted().back().grammar.value().kind, GrammarSpec::Kind::kLark);
  EXPECT_EQ(ask("{}", std::string(kTools) + R"(, "tool_choice": "none")").at("finish_reason"), "stop");
  EXPECT_EQ(engine.submitted().back().grammar.value().lead, "");
}

TEST_F(ApiTest, ReasoningIsApartUnlessTheRequestSaysOtherwise) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.pieces = {"<thi", "nk>\nhm\n</think>\n\n", "{}"};
    return script;
  });
  ServerOptions options = make_options();
  options.reasoning_parser = "think";
  Api api(engine, options);
  const auto message = [&](const std::string& fields) -> json {
    return answer(api, post(kChatPath, chat_with(fields))).body().at("choices").at(0).at("message");
  };
  const json apart = message(R"("seed": 1)");
  EXPECT_EQ(apart.at("reasoning_content"), "hm");
  EXPECT_EQ(apart.at("content"), "{}");
  const json left_out = message(R"("include_reasoning": false)");
  EXPECT_FALSE(left_out.contains("reasoning_content"));
  EXPECT_EQ(left_out.at("content"), "{}");
  EXPECT_EQ(message(R"("separate_reasoning": false)").at("content"), "<think>\nhm\n</think>\n\n{}");
}

}  // namespace
}  // namespace volley::serve
