// Protects a request's constraints on its output, from request to response: grammars, tools, formats, reasoning.
#include "serve/api/api_for_test.h"
#include "serve/testing/built_answers.h"

namespace volley::serve {
namespace {

TEST_F(ApiTest, GrammarsReachTheEngineAndItsRefusalTheClient) {
  answer(post(kTextPath, R"({"prompt": "x", "guided_regex": "a+", "volley": {"speculation": false}})"));
  ASSERT_TRUE(engine_.submitted().at(0).grammar);
  EXPECT_EQ(engine_.submitted().at(0).grammar->text, "a+");
  EXPECT_FALSE(engine_.submitted().at(0).speculation);
  engine_.refuse_submits(invalid_argument("the regular expression has no end"));
  const Answer refused = answer(post(kTextPath, R"({"prompt": "x", "guided_regex": "("})"));
  EXPECT_EQ(refused.response->status, 400);
  EXPECT_EQ(refused.body().at("error").at("param"), "guided_regex");
}

constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])";

TEST_F(ApiTest, AToolCallIsReadFromTheText) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {"<tool_", "call>\n{\"name\": \"f\", ", "\"arguments\": {}}\n</tool_call>"}};
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

// The tools have the Responses API's form; the model sees functions.
TEST_F(ApiTest, CustomToolsTakeAndGiveTexts) {
  const std::string patch = "*** Begin\n+\"é😀\\\t\n";
  const auto call = [](const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
  };
  const json tools = json::parse(R"([{"type": "custom", "custom": {"name": "patch"}},
      {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])");
  const auto custom = [](const std::string& input) {
    return json{{"type", "custom"}, {"custom", {{"name", "patch"}, {"input", input}}}};
  };
  const json function = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", R"({"input": "x"})"}}}};
  const std::tuple<std::string, json> cases[] = {
      {call("patch", json{{"input", patch}}.dump()), json::array({custom(patch)})},
      {call("patch", R"( { "input" : "\ud83d\ude00\/" } )"), json::array({custom("😀/")})},
      {call("patch", R"({"why": "b", "input": "a"})"), json::array({custom("a")})},
      {call("patch", "{}"), json::array({custom("")})},
      {call("patch", R"({"diff": "a"})") + "\n" + call("f", R"({"input": "x"})"), {custom("a"), function}},
      {call("f", R"({"input": "x"})") + "\n" + call("patch", R"({"input": "a"})"), {function, custom("a")}},
      {call("patch", R"({"input": "a"})") + "\n" + call("patch", R"({"input": 5})"),
       json::array({custom("a"), custom(R"({"input": 5})")})},
  };
  for (const auto& [text, calls] : cases) {
    for (const size_t size : {1, 3, 1000}) {
      FakeEngine engine([&](const GenerateRequest&) { return FakeScript{.pieces = cut(text, size)}; });
      Api api(engine, make_options());
      json body = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"tools", tools}};
      const json whole = ask(api, kChatPath, body);
      EXPECT_EQ(whole.at("choices")[0].at("finish_reason"), "tool_calls");
      EXPECT_EQ(whole_chat(whole).at("calls"), json(calls)) << text;
      body["stream"] = true;
      EXPECT_EQ(built_chat(answer(api, post(kChatPath, body.dump())).events), whole_chat(whole)) << text << size;
    }
  }
}

TEST_F(ApiTest, CustomCallsGoRound) {
  ask(api_, kChatPath, json::parse(R"({"messages": [{"role": "user", "content": "x"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "a\n\"b\""}},
        {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "y"}, {"role": "tool", "tool_call_id": "c2", "content": "z"}]})"));
  const json messages = json::parse(prompt(engine_).substr(0, prompt(engine_).find("||")));
  EXPECT_EQ(messages[1].at("tool_calls"), json::parse(R"([
      {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{\"input\":\"a\\n\\\"b\\\"\"}"}},
      {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}])"));
  const Answer refused = answer(post(kChatPath, R"({"messages": [{"role": "assistant", "tool_calls": [
      {"id": "c1", "type": "custom", "custom": {"name": "run"}}]}]})"));
  EXPECT_EQ(refused.response->status, 400);
  EXPECT_NE(refused.response->body.find("messages[0].tool_calls[0].custom"), std::string::npos);
}

// A form with bare values needs the request's schemas.
TEST_F(ApiTest, BareValuesOfAToolCallGetTheirTypesFromTheRequest) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{
        .pieces = {"<tool_call>\n<function=f>\n<parameter=n>\n", "7\n</parameter>\n</function>\n</tool_call>"}};
  });
  Api api(engine, with(&ServerOptions::tool_call_parser, "qwen3_coder"));
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "parameters":
      {"type": "object", "properties": {"n": {"type": "integer"}}}}}])";
  const json choice = answer(api, post(kChatPath, chat_with(tools))).body().at("choices").at(0);
  EXPECT_EQ(choice.at("message").at("tool_calls").at(0).at("function").at("arguments"), R"({"n": 7})");
}

// The client learns which two fields of its request exclude each other.
TEST_F(ApiTest, ToolsAndAnotherConstraintAreOneTooMany) {
  const std::string strict = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])";
  const std::pair<std::string, std::string> cases[] = {
      {std::string(kTools) + R"(, "tool_choice": "required")", "tool_choice"},
      {std::string(kTools) + R"(, "parallel_tool_calls": false)", "parallel_tool_calls"},
      {strict, "tools"}};
  for (const auto& [fields, first] : cases) {
    const std::string second = "guided_regex";
    const Answer refused = answer(post(kChatPath, chat_with(fields + R"(, "guided_regex": "a")")));
    EXPECT_EQ(refused.response->status, 400) << fields;
    const json error = refused.body().at("error");
    EXPECT_EQ(error.at("param"), first);
    const auto message = error.at("message").get<std::string>();
    EXPECT_NE(message.find("\"" + first + "\""), std::string::npos) << message;
    EXPECT_NE(message.find("\"" + second + "\""), std::string::npos) << message;
    EXPECT_EQ(answer(post(kChatPath, chat_with(fields))).response->status, 200) << fields;
  }
  EXPECT_EQ(engine_.submitted().size(), 3u);
}

TEST_F(ApiTest, ADeveloperSpeaksAsTheSystem) {
  answer(post(kChatPath, R"({"messages": [{"content": "a", "role": "developer", "n": 1.50},
                                               {"role": "user", "content": "developer"}]})"));
  EXPECT_EQ(engine_.decode(engine_.submitted().at(0).prompt, false),
            R"([{"role":"system","content":"a","n":1.50},{"role":"user","content":"developer"}]||1|0)");
}

TEST_F(ApiTest, MistralsTemplatesGetShortIds) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {"[TOOL_CALLS]f[ARGS]{}"}}; });
  Api api(engine, with(&ServerOptions::tool_call_parser, "mistral"));
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

// As in OpenAI's API, a format applies to text, so a model that may call answers with calls or with JSON.
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
    const std::string quoted = json{{"a", call}}.dump();  // a call within a string is no call
    EXPECT_EQ(ask(quoted, fields).at("message").at("content"), quoted);
  }
  EXPECT_EQ(ask(call, std::string(kTools) + R"(, "tool_choice": "required")").at("finish_reason"), "tool_calls");
  EXPECT_EQ(engine.submitted().back().grammar.value().kind, GrammarSpec::Kind::kLark);
  EXPECT_EQ(ask("{}", std::string(kTools) + R"(, "tool_choice": "none")").at("finish_reason"), "stop");
  EXPECT_EQ(engine.submitted().back().grammar.value().lead, "");
}

// A grammar is checked before the engine gets choices. Notes on it come in an ASCII header.
TEST_F(ApiTest, NotesOnAGrammarAreAHeader) {
  FakeEngine engine;
  engine.set_grammar_check([](const GrammarSpec& grammar) -> Result<std::vector<std::string>> {
    if (grammar.text.find("(?!") != std::string::npos) return invalid_argument("the parameters of \"q\"");
    if (grammar.text.find("oneOf") == std::string::npos) return std::vector<std::string>();
    return std::vector<std::string>{"oneOf is taken as anyOf", "größe\nmay be anything"};
  });
  Api api(engine, make_options());
  const auto ask = [&](const std::string& fields) {
    return answer(api, post(kChatPath, chat_with(fields))).response.value();
  };
  const auto notes = [](const HttpResponse& response) { return header(response.headers, "X-Volley-Notes"); };
  const std::string told = R"("oneOf is taken as anyOf", "gr\u00f6\u00dfe\nmay be anything")";
  for (const char* fields : {R"("guided_json": {"oneOf": [{}]})", R"("json_schema": {"oneOf": []}, "n": 2)",
                             R"("response_format": {"type": "json_object", "schema": {"oneOf": [{}]}})"}) {
    const HttpResponse response = ask(fields);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(notes(response), told);
  }
  EXPECT_EQ(notes(ask(R"("guided_json": {})")), "");
  EXPECT_EQ(notes(ask(R"("seed": 1)")), "");
  const size_t submitted = engine.submitted().size();
  const HttpResponse refused = ask(R"json("guided_json": {"pattern": "(?!x)"})json");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json::parse(refused.body).at("error").at("param"), "guided_json");
  EXPECT_EQ(engine.submitted().size(), submitted);
}

TEST_F(ApiTest, ReasoningIsApartUnlessTheRequestSaysOtherwise) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {"<thi", "nk>\nhm\n</think>\n\n", "{}"}};
  });
  Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
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
