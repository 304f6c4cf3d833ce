// Protects clients of Anthropic's Messages API: the model's view of their blocks, and answers, events and errors.
#include <gmock/gmock.h>

#include "serve/api/api_for_test.h"
#include "serve/http/exchange.h"
#include "serve/testing/built_answers.h"

namespace volley::serve {
namespace {

constexpr const char* kMessagesPath = "/v1/messages";

class ApiMessagesTest : public ApiTest {
 protected:
  json ask(Api& api, const json& body) { return ApiTest::ask(api, kMessagesPath, body); }
  json ask(const json& body) { return ask(api_, body); }
  static json hello() { return json::parse(R"({"max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]})"); }
};

TEST_F(ApiMessagesTest, AnswersAMessage) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.cached_tokens = 3}; });
  Api api(engine, make_options());
  json body = hello();
  body["system"] = json::parse(R"([{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
                                   {"type": "text", "text": "brief."}])");
  body["stop_sequences"] = {"q"};
  body["top_k"] = 4;
  const json message = ask(api, body);
  EXPECT_EQ(prompt(engine), R"([{"role":"system","content":"Be\nbrief."},{"role":"user","content":"hi"}])"
                            R"(|{"enable_thinking":false}|1|0)");
  const GenerateRequest request = engine.submitted().back();
  EXPECT_EQ(request.max_tokens, 50);
  EXPECT_EQ(request.stop, std::vector<std::string>{"q"});
  EXPECT_EQ(request.sampling.top_k, 4);
  EXPECT_TRUE(message.at("id").get<std::string>().starts_with("msg_"));
  EXPECT_EQ(message.at("type"), "message");
  EXPECT_EQ(message.at("role"), "assistant");
  EXPECT_EQ(message.at("model"), "pocket");
  EXPECT_EQ(message.at("content"), json::parse(R"([{"type": "text", "text": "Hello world"}])"));
  EXPECT_EQ(message.at("stop_reason"), "end_turn");
  EXPECT_EQ(message.at("stop_sequence"), nullptr);
  const auto all = static_cast<int>(request.prompt.size());
  EXPECT_EQ(message.at("usage"), json({{"input_tokens", all - 3},
                                       {"cache_creation_input_tokens", 0},
                                       {"cache_read_input_tokens", 3},
                                       {"output_tokens", 11}}));
}

// Claude Code asks for 32,000 tokens at first, and finds in the refusal how many fit.
TEST_F(ApiMessagesTest, LengthsAreRefusedInAnthropicsWords) {
  json body = hello();
  body["max_tokens"] = 2'000'000;
  const auto sentence = [&] {
    return answer(post(kMessagesPath, body.dump())).body().at("error").value("message", "");
  };
  const std::string most = std::to_string(engine_.info().max_model_len);
  EXPECT_THAT(
      sentence(),
      testing::MatchesRegex("input length and `max_tokens` exceed context limit: [0-9]+ . 2000000 > " + most + ", .*"));
  body["max_tokens"] = 1;
  body["messages"][0]["content"] = std::string(engine_.info().max_model_len + 1, 'a');
  EXPECT_THAT(sentence(), testing::MatchesRegex("prompt is too long: [0-9]+ tokens > " + most + " maximum"));
  body["messages"][0]["content"] = std::string(3 * engine_.info().max_model_len, 'a');
  EXPECT_THAT(sentence(), testing::MatchesRegex("prompt is too long: more than [0-9]+ tokens > " + most + " maximum"));
}

TEST_F(ApiMessagesTest, TheBillingLineIsNoPartOfThePrompt) {
  json body = hello();
  body["system"] = json::parse(R"([{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"},
                                   {"type": "text", "text": "Be brief."}])");
  ask(body);
  const std::string expected = prompt(engine_);
  EXPECT_TRUE(expected.starts_with(R"([{"role":"system","content":"Be brief."},)")) << expected;
  body["system"] = "x-anthropic-billing-header: cch=2;\nBe brief.";
  ask(body);
  EXPECT_EQ(prompt(engine_), expected);
  body["system"] = "x-anthropic-billing-header: cch=3;";
  ask(body);
  EXPECT_TRUE(prompt(engine_).starts_with(R"([{"role":"user")")) << prompt(engine_);
}

TEST_F(ApiMessagesTest, ThinkingAndVariablesReachTheTemplateTogether) {
  json body = hello();
  body["thinking"] = {{"type", "disabled"}};
  body["chat_template_kwargs"] = {{"a", 1}};
  ask(body);
  EXPECT_THAT(prompt(engine_), ::testing::HasSubstr(R"(|{"enable_thinking":false,"a":1}|)"));
}

TEST_F(ApiMessagesTest, BlocksBecomeTurns) {
  const char* body = R"({"max_tokens": 5, "messages": [
    {"role": "user", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
      {"type": "text", "text": "so"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {"z":1,"a":2.50}},
      {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
      {"type": "tool_result", "tool_use_id": "c2", "is_error": true, "content": [{"type": "text", "text": "two"}]},
      {"type": "tool_result", "tool_use_id": "c3"},
      {"type": "text", "text": "more"}]}]})";
  ASSERT_EQ(answer(post(kMessagesPath, body)).response->status, 200);
  EXPECT_EQ(json::parse(prompt(engine_).substr(0, prompt(engine_).find("|{"))), json::parse(R"([
    {"role": "user", "content": "1\n2"},
    {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\":1,\"a\":2.50}"}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "content": "one", "tool_call_id": "c1"},
    {"role": "tool", "content": "two", "tool_call_id": "c2"},
    {"role": "tool", "content": "", "tool_call_id": "c3"},
    {"role": "user", "content": "more"}])"));
}

TEST_F(ApiMessagesTest, PastCallsNeedNoInput) {
  const auto body = [](const std::string& input) {
    return R"({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f")" +
           input + R"(}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]})";
  };
  for (const char* input : {"", R"(, "input": null)", R"(, "input": "")", R"(, "input": {})"}) {
    ASSERT_EQ(answer(post(kMessagesPath, body(input))).response->status, 200) << input;
    EXPECT_NE(prompt(engine_).find(R"("name":"f","arguments":"{}")"), std::string::npos) << prompt(engine_);
  }
  for (const char* input : {R"(, "input": "x")", R"(, "input": [])", R"(, "input": 7)"}) {
    EXPECT_EQ(answer(post(kMessagesPath, body(input))).response->status, 400) << input;
  }
}

// The model wrote them in an earlier answer.
TEST_F(ApiMessagesTest, PastCallsKeepNumbersThatNoDoubleHolds) {
  for (const std::string& number : {std::string("1195858088e1678"), std::string("-1E+999"), std::string("1e-99999"),
                                    "0." + std::string(400, '7') + "e999", std::string(400, '7')}) {
    for (const std::string& input : {R"({"n": )" + number + "}", R"({"n": [{"m": )" + number + "}, 1.50]}"}) {
      const std::string body =
          R"({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant",
          "content": [{"type": "tool_use", "id": "c", "name": "f", "input": )" +
          input + R"(}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]})";
      ASSERT_EQ(answer(post(kMessagesPath, body)).response->status, 200) << input;
      EXPECT_NE(prompt(engine_).find(R"("arguments":)" + json_quote(input)), std::string::npos) << prompt(engine_);
    }
  }
}

TEST_F(ApiMessagesTest, TheAssistantsTextIsContinued) {
  json body = hello();
  body["messages"].push_back({{"role", "assistant"}, {"content", "Once"}});
  ask(body);
  EXPECT_TRUE(prompt(engine_).ends_with("|0|1")) << prompt(engine_);
}

json with_tools(json body) {
  body["tools"] = json::parse(R"([{"name": "f", "description": "F", "input_schema": {"type": "object"},
    "cache_control": {"type": "ephemeral"}}, {"type": "custom", "name": "g", "input_schema": {"type": "object"}}])");
  return body;
}

const std::string kThoughtAndCall =
    "<think>hm</think>Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";

TEST_F(ApiMessagesTest, BlocksAndEventsAreTheSameHoweverTheTextIsCut) {
  const json expected = json::parse(R"([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Let me see."},
                                        {"type": "tool_use", "name": "f", "input": {"x": 1}}])");
  for (const size_t size : {1, 5, 1000}) {
    FakeEngine engine([&](const GenerateRequest&) { return FakeScript{.pieces = cut(kThoughtAndCall, size)}; });
    Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
    json body = with_tools(hello());
    body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 20}};
    const json message = ask(api, body);
    EXPECT_EQ(message.at("stop_reason"), "tool_use");
    json content = message.at("content");
    EXPECT_EQ(content[0].at("signature"), message.at("id"));
    content[0].erase("signature");
    EXPECT_TRUE(content[2].contains("id"));
    content[2].erase("id");
    EXPECT_EQ(content, expected);
    EXPECT_NE(prompt(engine).find(R"({"enable_thinking":true})"), std::string::npos);

    body["stream"] = true;
    const std::string stream = answer(api, post(kMessagesPath, body.dump())).events;
    const std::vector<json> events = stream_data(stream);
    ASSERT_GT(events.size(), 8u);
    EXPECT_EQ(events[0].at("type"), "message_start");
    EXPECT_EQ(events[0].at("message").at("content"), json::array());
    EXPECT_EQ(events[1].at("type"), "ping");
    json built = built_message(stream);
    EXPECT_FALSE(built[0].at("signature").get<std::string>().empty());
    built[0].erase("signature");
    built[2].erase("id");
    EXPECT_EQ(built, expected);
    EXPECT_EQ(events[events.size() - 2].at("delta").at("stop_reason"), "tool_use");
    EXPECT_EQ(events[events.size() - 2].at("usage"), message.at("usage"));
    EXPECT_EQ(events.back().at("type"), "message_stop");
  }
}

// A client that does not ask for thoughts gets none, whatever the model does.
TEST_F(ApiMessagesTest, ThoughtsAreForThoseWhoAsk) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {"<think>hm</think>So."}}; });
  Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
  EXPECT_EQ(ask(api, hello()).at("content"), json::parse(R"([{"type": "text", "text": "So."}])"));
}

TEST_F(ApiMessagesTest, SaysWhyItStopped) {
  const std::tuple<FakeScript, const char*, json> cases[] = {
      {{.reason = FinishReason::kLength}, "max_tokens", nullptr},
      {{.stop_text = "q"}, "stop_sequence", "q"},
      {{}, "end_turn", nullptr},
  };
  for (const auto& [script, reason, sequence] : cases) {
    FakeEngine engine([&, scripted = script](const GenerateRequest&) { return scripted; });
    Api api(engine, make_options());
    json body = hello();
    const json message = ask(api, body);
    EXPECT_EQ(message.at("stop_reason"), reason);
    EXPECT_EQ(message.at("stop_sequence"), sequence);
    body["stream"] = true;
    const auto events = stream_data(answer(api, post(kMessagesPath, body.dump())).events);
    EXPECT_EQ(events[events.size() - 2].at("delta"), json({{"stop_reason", reason}, {"stop_sequence", sequence}}));
  }
}

TEST_F(ApiMessagesTest, ArgumentsThatWereCutOffAreAnEmptyInput) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "},
                      .reason = FinishReason::kLength};
  });
  Api api(engine, make_options());
  const json message = ask(api, with_tools(hello()));
  EXPECT_EQ(message.at("content")[0].at("input"), json::object());
  EXPECT_EQ(message.at("stop_reason"), "max_tokens");
}

// An empty object would be a call that the model did not make.
TEST_F(ApiMessagesTest, ArgumentsThatAreNoJsonAreHandedOnAsText) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": True}}\n</tool_call>"}};
  });
  Api api(engine, make_options());
  const json message = ask(api, with_tools(hello()));
  EXPECT_EQ(message.at("content")[0].at("input"), json({{"INVALID_JSON", "{\"x\": True}"}}));
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
}

TEST_F(ApiMessagesTest, AStopSequenceInACallIsSaid) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "}, .stop_text = "q"};
  });
  Api api(engine, make_options());
  const json message = ask(api, with_tools(hello()));
  EXPECT_EQ(message.at("content")[0].at("input"), json::object());
  EXPECT_EQ(message.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(message.at("stop_sequence"), "q");
}

TEST_F(ApiMessagesTest, ToolChoiceIsHeldByAGrammar) {
  const std::pair<const char*, bool> cases[] = {
      {R"({"type": "auto"})", false}, {R"({"type": "auto", "disable_parallel_tool_use": true})", true},
      {R"({"type": "any"})", true},   {R"({"type": "tool", "name": "g"})", true},
      {R"({"type": "none"})", false},
  };
  for (const auto& [choice, held] : cases) {
    json body = with_tools(hello());
    body["tool_choice"] = json::parse(choice);
    ask(body);
    EXPECT_EQ(engine_.submitted().back().grammar.has_value(), held) << choice;
  }
}

TEST_F(ApiMessagesTest, CountsThePromptsTokens) {
  json body = with_tools(hello());
  ask(body);
  const size_t tokens = engine_.submitted().back().prompt.size();
  body.erase("max_tokens");
  EXPECT_EQ(answer(post("/v1/messages/count_tokens", body.dump())).body(), json({{"input_tokens", tokens}}));
  EXPECT_EQ(engine_.submitted().size(), 1u);
}

TEST_F(ApiMessagesTest, TakesTheKeyOfEitherHeader) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::api_keys, {"sesame"}));
  HttpRequest request = post(kMessagesPath, hello().dump());
  EXPECT_EQ(answer(api, request).response->status, 401);
  request.api_key = "sesam";
  EXPECT_EQ(answer(api, request).response->status, 401);
  request.api_key = "sesame";
  EXPECT_EQ(answer(api, request).response->status, 200);
  request.api_key.clear();
  request.authorization = "Bearer sesame";
  EXPECT_EQ(answer(api, request).response->status, 200);
}

TEST_F(ApiMessagesTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"max_tokens": null})", "max_tokens"},
      {R"({"max_tokens": 100000})", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": [{"role": "root", "content": "x"}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]})", "messages"},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]})",
       "messages"},
      {R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]})", "messages"},
      {R"({"system": [{"type": "image"}]})", "system"},
      {R"({"tools": [{"type": "web_search", "name": "web_search"}]})", "tools"},
      {R"({"tools": [{"name": "f"}]})", "tools"},
      {R"({"tool_choice": {"type": "some"}})", "tool_choice.type"},
      {R"({"tool_choice": {"type": "any"}})", "tool_choice"},
      {R"({"thinking": {"type": "on"}})", "thinking.type"},
      {R"({"stop_sequences": "x y", "stop": ["a"]})", "stop"},
      {R"({"stop_sequences": [5]})", "stop_sequences"},
      {R"({"temperature": "warm"})", "temperature"},
      {R"({"container": "c"})", "container"},
      {R"({"mcp_servers": [{}]})", "mcp_servers"},
      {R"({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}})", "context_management.edits"},
      {R"({"context_management": {"edits": [{"type": "clear_thinking_20251015"}, {}]}})", "context_management.edits"},
      {R"({"output_config": {"format": {"type": "xml"}}})", "output_config.format.type"},
      {R"({"n": 2})", "n"},
      {R"({"logprobs": true})", "logprobs"},
      {R"({"mirostat": 2})", "mirostat"},
  };
  for (const auto& [fields, param] : cases) {
    json body = hello();
    body.update(json::parse(fields));
    const Answer got = answer(post(kMessagesPath, body.dump()));
    EXPECT_EQ(got.response->status, 400) << fields;
    EXPECT_EQ(got.body().at("error").at("param"), param) << fields;
  }
}

// Errors use this API's names, wherever the mistake is found.
TEST_F(ApiMessagesTest, ErrorsNameItsOwnFields) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"regex": "a", "output_config": {"format": {"type": "json_schema", "schema": {}}}})",
       "\"output_config.format\" and \"regex\""},
      {R"({"regex": "a", "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})",
       "\"tool_choice.disable_parallel_tool_use\" and \"regex\""},
      {R"({"stop_sequences": [""]})", "\"stop_sequences\" must be"},
  };
  for (const auto& [fields, part] : cases) {
    json body = with_tools(hello());
    body.update(json::parse(fields));
    const Answer got = answer(post(kMessagesPath, body.dump()));
    EXPECT_EQ(got.response->status, 400) << fields;
    EXPECT_NE(got.body().at("error").at("message").get<std::string>().find(part), std::string::npos) << got.body();
  }
}

TEST_F(ApiMessagesTest, FieldsOfChatsThatAskForNothingAreTaken) {
  for (const char* fields :
       {R"({"n": 1, "best_of": 1, "echo": false, "stop": [], "parallel_tool_calls": true, "stream_options": {}})",
        R"({"logprobs": false, "top_logprobs": 0, "return_token_ids": false, "response_format": {"type": "text"}})",
        R"({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"},
                                             {"type": "clear_thinking_20251015",
                                              "keep": {"type": "thinking_turns", "value": 1}}]},
            "thinking": {"type": "adaptive", "display": "omitted"}, "metadata": {"user_id": "u"},
            "output_config": {"effort": "high"}, "cache_control": {"type": "ephemeral"}, "inference_geo": "eu"})",
        R"({"mcp_servers": [], "container": null, "add_generation_prompt": true, "continue_final_message": false})"}) {
    json body = hello();
    body.update(json::parse(fields));
    const Answer got = answer(post(kMessagesPath, body.dump()));
    EXPECT_EQ(got.response->status, 200) << got.response->body;
  }
}

// Every failure has the form that these clients read.
TEST_F(ApiMessagesTest, ErrorsHaveTheFormOfTheApi) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::api_keys, {"sesame"}));
  const auto body_of = [&](HttpRequest request) {
    request.request_id = "req-7";
    Exchange exchange(api, request, false, true);
    const std::string bytes = exchange.whole(*answer(api, request).response, false);
    EXPECT_NE(bytes.find("\r\nRequest-Id: req-7\r\n"), std::string::npos);
    return json::parse(bytes.substr(bytes.find("\r\n\r\n") + 4));
  };
  HttpRequest request = post(kMessagesPath, "{}");
  EXPECT_EQ(body_of(request).at("error").at("type"), "authentication_error");
  request.api_key = "sesame";
  const json wrong = body_of(request);
  EXPECT_EQ(wrong.at("type"), "error");
  EXPECT_EQ(wrong.at("error").at("type"), "invalid_request_error");
  EXPECT_NE(wrong.at("error").at("message").get<std::string>().find("max_tokens"), std::string::npos);
  EXPECT_EQ(wrong.at("request_id"), "req-7");
  json unknown = hello();
  unknown["model"] = "claude-0";
  request.body = unknown.dump();
  EXPECT_EQ(body_of(request).at("error").at("type"), "not_found_error");
  request.body = hello().dump();
  EXPECT_EQ(body_of(request).at("type"), "message") << "an answer stays as it is";
}

TEST_F(ApiMessagesTest, AStreamThatFailsSaysSo) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.reason = FinishReason::kError, .error = internal_error("the device is lost")};
  });
  Api api(engine, make_options());
  json body = hello();
  body["stream"] = true;
  const auto events = stream_data(answer(api, post(kMessagesPath, body.dump())).events);
  EXPECT_EQ(events.back(),
            json::parse(R"({"type": "error", "error": {"type": "api_error", "message": "the device is lost"}})"));
}

}  // namespace
}  // namespace volley::serve
