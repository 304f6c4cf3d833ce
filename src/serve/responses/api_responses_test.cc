// Protects clients of the Responses API: the model's view of their items, the contents of answers and events, and
// stored responses.
#include "serve/responses/responses_for_test.h"

namespace volley::serve {
namespace {

TEST_F(ApiResponsesTest, PastCallsNeedNoArguments) {
  for (const char* arguments : {"", R"(, "arguments": null)", R"(, "arguments": "")"}) {
    const std::string body = R"({"input": [{"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f")" +
                             std::string(arguments) + R"(},
        {"type": "function_call_output", "call_id": "c", "output": "x"}]})";
    ASSERT_EQ(answer(post(kResponsesPath, body)).response->status, 200) << arguments;
    EXPECT_NE(prompt(engine_).find(R"("name":"f","arguments":"")"), std::string::npos) << prompt(engine_);
  }
  EXPECT_EQ(error(R"({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": 7}]})").at("param"),
            "input");
}

TEST_F(ApiResponsesTest, AnswersAText) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {"Hello", " world"}, .cached_tokens = 3};
  });
  Api api(engine, make_options());
  const json response = ask(api, {{"input", "hi"},
                                  {"instructions", "Be brief."},
                                  {"max_output_tokens", 50},
                                  {"temperature", 0.5},
                                  {"metadata", {{"a", "b"}}}});
  EXPECT_EQ(prompt(engine), R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]||1|0)");
  EXPECT_EQ(engine.submitted().back().max_tokens, 50);
  EXPECT_EQ(engine.submitted().back().sampling.temperature, 0.5f);
  EXPECT_EQ(response.at("object"), "response");
  EXPECT_EQ(response.at("status"), "completed");
  const std::string id = response.at("id");
  ASSERT_TRUE(id.starts_with("resp_"));
  EXPECT_EQ(response.at("output"), json::array({{{"id", "msg_" + id.substr(5) + "_0"},
                                                 {"type", "message"},
                                                 {"status", "completed"},
                                                 {"role", "assistant"},
                                                 {"content", json::array({{{"type", "output_text"},
                                                                           {"text", "Hello world"},
                                                                           {"annotations", json::array()},
                                                                           {"logprobs", json::array()}}})}}}));
  EXPECT_EQ(response.at("usage").at("input_tokens_details").at("cached_tokens"), 3);
  EXPECT_EQ(response.at("usage").at("output_tokens"), 11);
  EXPECT_EQ(response.at("metadata"), json({{"a", "b"}}));
  EXPECT_EQ(response.at("temperature"), 0.5);
  EXPECT_EQ(response.at("text"), json::parse(R"({"format": {"type": "text"}})"));
  EXPECT_EQ(response.at("tools"), json::array());
}

// Without keys any client may ask for any name.
TEST_F(ApiResponsesTest, NamesCannotBeGuessed) {
  std::set<std::string> first, second;
  for (int i = 0; i < 32; ++i) {
    const json response = ask({{"input", "hi"}});
    const std::string id = response.at("id");
    ASSERT_EQ(id.size(), 5 + 32u) << id;
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), std::string::npos) << id;
    first.insert(id.substr(5, 16));
    second.insert(id.substr(21));
    EXPECT_EQ(response.at("output").at(0).at("id"), "msg_" + id.substr(5) + "_0");
  }
  EXPECT_EQ(first.size(), 32u) << "no half is the server's or a count";
  EXPECT_EQ(second.size(), 32u);
}

TEST_F(ApiResponsesTest, ItemsBecomeTurns) {
  ask(json::parse(R"({"instructions": "A.", "input": [
    {"role": "developer", "content": "B."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": null},
    {"role": "assistant", "content": "done"},
    {"role": "user", "content": "more"}]})"));
  const json messages = json::parse(prompt(engine_).substr(0, prompt(engine_).find("||")));
  EXPECT_EQ(messages, json::parse(R"([
    {"role": "system", "content": "A.\n\nB."},
    {"role": "user", "content": "1\n2"},
    {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "content": "one", "tool_call_id": "c1"},
    {"role": "tool", "content": "two", "tool_call_id": "c2"},
    {"role": "assistant", "content": "done", "reasoning_content": "short"},
    {"role": "user", "content": "more"}])"));
}

const std::string kThoughtAndCalls =
    "<think>hm</think>Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"é\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>Done.";

json tools() {
  return json::parse(R"([{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": false},
                         {"type": "function", "name": "g", "description": "G"}])");
}

// Speculation decides how much text comes at once, which must not show.
TEST_F(ApiResponsesTest, ItemsComeInTheOrderOfTheTextHoweverItIsCut) {
  for (const size_t size : {1, 2, 5, 37, 1000}) {
    FakeEngine engine([&](const GenerateRequest&) { return FakeScript{.pieces = cut(kThoughtAndCalls, size)}; });
    Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
    const json output = ask(api, {{"input", "hi"}, {"tools", tools()}}).at("output");
    ASSERT_EQ(output.size(), 5u) << output;
    EXPECT_EQ(output[0].at("content"), json::parse(R"([{"type": "reasoning_text", "text": "hm"}])"));
    EXPECT_EQ(output[1].at("content")[0].at("text"), "Let me see.");
    EXPECT_EQ(output[2].at("type"), "function_call");
    EXPECT_EQ(output[2].at("name"), "f");
    EXPECT_EQ(output[2].at("arguments"), "{\"x\": \"é\"}");
    EXPECT_EQ(output[3].at("name"), "g");
    EXPECT_NE(output[2].at("call_id"), output[3].at("call_id"));
    EXPECT_EQ(output[4].at("content")[0].at("text"), "Done.");
    const json rendered = json::parse(prompt(engine).substr(prompt(engine).rfind('|') + 1));
    EXPECT_EQ(rendered, json::parse(R"([
      {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
      {"type": "function", "function": {"name": "g", "description": "G"}}])"));
  }
}

// The events add up to the last one's response, and to a whole answer.
TEST_F(ApiResponsesTest, EventsBuildTheResponse) {
  for (const size_t size : {1, 5, 1000}) {
    FakeEngine engine([&](const GenerateRequest&) { return FakeScript{.pieces = cut(kThoughtAndCalls, size)}; });
    Api api(engine, with(&ServerOptions::reasoning_parser, "think"));
    const json body = {{"input", "hi"}, {"tools", tools()}, {"stream", true}};
    const std::vector<json> events = events_of(answer(api, post(kResponsesPath, body.dump())).events);
    ASSERT_GT(events.size(), 10u);
    EXPECT_EQ(events[0].at("type"), "response.created");
    EXPECT_EQ(events[0].at("response").at("status"), "in_progress");
    EXPECT_EQ(events[1].at("type"), "response.in_progress");
    json items = json::array();
    std::vector<std::string> texts;
    for (const json& event : events) {
      const std::string type = event.at("type");
      if (type == "response.output_item.added") {
        ASSERT_EQ(event.at("output_index"), items.size());
        EXPECT_EQ(event.at("item").at("status"), "in_progress");
        items.push_back(event.at("item"));
        texts.emplace_back();
      }
      if (type.ends_with(".delta")) {
        ASSERT_EQ(event.at("output_index"), items.size() - 1);
        EXPECT_EQ(event.at("item_id"), items.back().at("id"));
        texts.back() += event.at("delta").get<std::string>();
      }
      if (type.ends_with("text.done")) {
        EXPECT_EQ(event.at("text"), texts.back());
      }
      if (type.ends_with("arguments.done")) {
        EXPECT_EQ(event.at("arguments"), texts.back());
      }
      if (type == "response.output_item.done") {
        EXPECT_EQ(event.at("item").at("id"), items.back().at("id"));
        items.back() = event.at("item");
      }
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"hm", "Let me see.", "{\"x\": \"é\"}", "{}", "Done."}));
    EXPECT_EQ(events.back().at("type"), "response.completed");
    EXPECT_EQ(events.back().at("response").at("output"), items);
    EXPECT_EQ(events.back().at("response").at("usage").at("output_tokens_details").at("reasoning_tokens"), 2);
  }
}

TEST_F(ApiResponsesTest, ALimitLeavesTheResponseIncomplete) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.reason = FinishReason::kLength}; });
  Api api(engine, make_options());
  const json response = ask(api, {{"input", "hi"}});
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("incomplete_details"), json::parse(R"({"reason": "max_output_tokens"})"));
  EXPECT_EQ(response.at("output")[0].at("status"), "incomplete");
  const Answer stream = answer(api, post(kResponsesPath, R"({"input": "hi", "stream": true})"));
  EXPECT_EQ(events_of(stream.events).back().at("type"), "response.incomplete");
}

TEST_F(ApiResponsesTest, AnAnswerOfNothingIsAnEmptyMessage) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {}}; });
  Api api(engine, make_options());
  EXPECT_EQ(ask(api, {{"input", "hi"}}).at("output")[0].at("content")[0].at("text"), "");
}

TEST_F(ApiResponsesTest, AStreamThatFailsSaysSo) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.reason = FinishReason::kError, .error = internal_error("the device is lost")};
  });
  Api api(engine, make_options());
  const auto events = events_of(answer(api, post(kResponsesPath, R"({"input": "hi", "stream": true})")).events);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events[events.size() - 2].at("message"), "the device is lost");
  EXPECT_EQ(events.back().at("type"), "response.failed");
  EXPECT_EQ(events.back().at("response").at("error").at("message"), "the device is lost");
  EXPECT_EQ(answer(api, get(std::string(kResponsesPath) + "/" + events[0].at("response").at("id").get<std::string>()))
                .response->status,
            404)
      << "it is not kept";
}

TEST_F(ApiResponsesTest, LogprobsAreOfTheText) {
  json body = {{"input", "hi"}, {"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}};
  const json whole = ask(body).at("output")[0].at("content")[0].at("logprobs");
  ASSERT_EQ(whole.size(), 11u);
  EXPECT_EQ(whole[0].at("token"), "H");
  EXPECT_EQ(whole[0].at("top_logprobs").size(), 2u);
  body["stream"] = true;
  json streamed = json::array();
  for (const json& event : events_of(answer(post(kResponsesPath, body.dump())).events)) {
    if (event.at("type") != "response.output_text.delta") continue;
    for (const json& entry : event.at("logprobs")) streamed.push_back(entry);
  }
  EXPECT_EQ(streamed, whole);
  body["tools"] = tools();
  EXPECT_EQ(error(body.dump()).at("param"), "include") << "which tokens are the text's depends on the steps";
}

TEST_F(ApiResponsesTest, ConversationsGoOn) {
  const json first = ask({{"input", "one"}, {"instructions", "Old."}});
  const json second = ask({{"input", "two"}, {"instructions", "New."}, {"previous_response_id", first.at("id")}});
  EXPECT_EQ(prompt(engine_), R"([{"role":"system","content":"New."},{"role":"user","content":"one"},)"
                             R"({"role":"assistant","content":"Hello world"},{"role":"user","content":"two"}]||1|0)");
  EXPECT_EQ(second.at("previous_response_id"), first.at("id"));
  // Some clients refer to items instead.
  ask({{"input", json::array({{{"type", "item_reference"}, {"id", first.at("output")[0].at("id")}},
                              {{"role", "user"}, {"content", "x"}}})}});
  EXPECT_EQ(prompt(engine_), R"([{"role":"assistant","content":"Hello world"},{"role":"user","content":"x"}]||1|0)");
  EXPECT_EQ(error(R"({"input": "x", "previous_response_id": "resp_0"})").at("code"), "previous_response_not_found");
  EXPECT_EQ(error(R"({"input": [{"type": "item_reference", "id": "msg_0_0"}]})").at("param"), "input");
  // The message would cut it within a character.
  const std::string long_id = std::string(99, 'a') + "é";
  EXPECT_EQ(error(R"({"input": [{"type": "item_reference", "id": ")" + long_id + "\"}]}").at("code"), "item_not_found");
}

TEST_F(ApiResponsesTest, WhatIsKeptCanBeReadAndDeleted) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::api_keys, {"mine", "other"}));
  HttpRequest made =
      post(kResponsesPath, R"({"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})");
  made.authorization = "Bearer mine";
  const json response = answer(api, made).body();
  const std::string path = std::string(kResponsesPath) + "/" + response.at("id").get<std::string>();
  const auto call = [&](const char* method, const std::string& target, const char* key = "Bearer mine") {
    HttpRequest request{method, target, "", ""};
    request.authorization = key;
    return *answer(api, request).response;
  };
  EXPECT_EQ(json::parse(call("GET", path).body), response);
  EXPECT_EQ(call("GET", path, "Bearer other").status, 404);
  EXPECT_EQ(call("DELETE", path, "Bearer other").status, 404);
  EXPECT_EQ(call("GET", path + "?stream=true").status, 400);
  const json items = json::parse(call("GET", path + "/input_items?limit=1").body);
  EXPECT_EQ(items.at("data").size(), 1u);
  EXPECT_EQ(items.at("data")[0].at("content")[0].at("text"), "b") << "the newest first";
  EXPECT_EQ(items.at("has_more"), true);
  const json rest =
      json::parse(call("GET", path + "/input_items?after=" + items.at("last_id").get<std::string>()).body);
  EXPECT_EQ(rest.at("data")[0].at("content")[0].at("text"), "a");
  EXPECT_EQ(rest.at("has_more"), false);
  const json ascending = json::parse(call("GET", path + "/input_items?order=asc").body);
  EXPECT_EQ(ascending.at("first_id"), rest.at("first_id"));
  for (const char* query : {"?limit=0", "?limit=101", "?limit=x", "?after=msg_none"}) {
    EXPECT_EQ(call("GET", path + "/input_items" + query).status, 400) << query;
  }
  EXPECT_EQ(call("POST", path + "/cancel").status, 400);
  EXPECT_EQ(json::parse(call("DELETE", path).body).at("deleted"), true);
  for (const char* method : {"GET", "DELETE"}) EXPECT_EQ(call(method, path).status, 404) << method;
  EXPECT_EQ(call("GET", path + "/input_items").status, 404);
  EXPECT_EQ(call("PUT", path).status, 405);
}

TEST_F(ApiResponsesTest, WhatIsNotToBeKeptIsNot) {
  const json response = ask({{"input", "a"}, {"store", false}});
  EXPECT_EQ(response.at("store"), false);
  EXPECT_EQ(answer(get(std::string(kResponsesPath) + "/" + response.at("id").get<std::string>())).response->status,
            404);
  ServerOptions options = make_options();
  options.max_stored_bytes = 10;
  Api small(engine_, options);
  EXPECT_EQ(ask(small, {{"input", "a"}}).at("store"), false) << "there is no room, and the answer says so";
}

// A stream of this API ends with the whole answer, so it has a whole answer's bound.
TEST_F(ApiResponsesTest, AStreamThatGrowsTooLargeIsGivenUp) {
  FakeEngine engine(
      [](const GenerateRequest&) { return FakeScript{.pieces = {std::string(1000, 'x')}, .endless = true}; });
  Api api(engine, with(&ServerOptions::max_response_bytes, 20000));
  const auto events = events_of(answer(api, post(kResponsesPath, R"({"input": "hi", "stream": true})")).events);
  EXPECT_EQ(events.back().at("type"), "response.failed");
  EXPECT_EQ(events.back().at("response").at("error").at("code"), "response_too_large");
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

TEST_F(ApiResponsesTest, WhatAnAnswerRepeatsIsBounded) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::max_unsent_bytes, 5000));
  json body = {{"input", "x"}, {"tools", tools()}};
  body["tools"][1]["description"] = std::string(2000, 'x');
  ask(api, body);
  body["tools"][1]["description"] = std::string(5000, 'x');
  body["max_output_tokens"] = 1;
  EXPECT_EQ(error(api, body.dump()).at("param"), "tools");
}

TEST_F(ApiResponsesTest, RefusesByName) {
  const std::tuple<const char*, const char*> cases[] = {
      {R"({})", "input"},
      {R"({"input": []})", "input"},
      {R"({"input": 5})", "input"},
      {R"({"input": [{"role": "robot", "content": "x"}]})", "input"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]})", "input"},
      {R"({"input": [{"type": "robot_call"}]})", "input"},
      {R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})", "input"},
      {R"({"input": "x", "background": true})", "background"},
      {R"({"input": "x", "truncation": "auto"})", "truncation"},
      {R"({"input": "x", "include": ["output.scent"]})", "include"},
      {R"({"input": "x", "top_logprobs": 2})", "top_logprobs"},
      {R"({"input": "x", "tools": [{"type": "robot"}]})", "tools"},
      {R"({"input": "x", "tools": [{"type": "function"}]})", "tools"},
      {R"({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": []}]})", "tools"},
      {R"({"input": "x", "tool_choice": {"type": "file_search"}})", "tool_choice"},
      {R"({"input": "x", "tool_choice": "required"})", "tool_choice"},
      {R"({"input": "x", "text": {"format": {"type": "xml"}}})", "text.format.type"},
      {R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n"}}})", "text.format.schema"},
      {R"({"input": "x", "reasoning": {"summary": "long"}})", "reasoning.summary"},
      {R"({"input": "x", "reasoning": {"context": "none"}})", "reasoning.context"},
      {R"({"input": "x", "reasoning": {"mode": "pro"}})", "reasoning.mode"},
      {R"({"input": "x", "moderation": {"policy": {}}})", "moderation"},
      {R"({"input": "x", "metadata": {"a": 1}})", "metadata"},
      {R"({"input": "x", "max_output_tokens": 0})", "max_output_tokens"},
      {R"({"input": "x", "max_output_tokens": 100000})", "input"},
      {R"({"input": "x", "temperature": -1})", "temperature"},
      {R"({"input": "x", "conversation": "c"})", "conversation"},
      {R"({"input": "x", "prompt": {"id": "p"}})", "prompt"},
      {R"({"input": "x", "messages": []})", "messages"},
      {R"({"input": "x", "max_tokens": 5})", "max_tokens"},
      {R"({"input": "x", "n": 2})", "n"},
      {R"({"input": "x", "mirostat": 2})", "mirostat"},
      {R"({"input": "x", "volley": {"blocks": true}})", "volley"},
  };
  for (const auto& [body, param] : cases) EXPECT_EQ(error(body).at("param"), param) << body;
  EXPECT_EQ(answer(post(kResponsesPath, R"({"input": "x", "model": "gpt-9"})")).response->status, 404);
}

TEST_F(ApiResponsesTest, FieldsOfChatsThatAskForNothingAreTaken) {
  for (const char* body :
       {R"({"input": "x", "n": 1, "best_of": 1, "echo": false, "logprobs": false, "return_token_ids": false})",
        R"({"input": "x", "response_format": {"type": "text"}, "context_management": [], "conversation": null})",
        R"({"input": "x", "include": ["web_search_call.action.sources", "reasoning.encrypted_content"],
            "reasoning": {"effort": "low", "context": "all_turns", "mode": "standard"}, "service_tier": "flex",
            "text": {"verbosity": "low"}, "prompt_cache_key": "k", "prompt_cache_retention": "24h",
            "prompt_cache_options": {"ttl": "1h"}, "client_metadata": {"a": "b"}, "access_programs": {"cyber": "standard"},
            "stream_options": {"include_obfuscation": false}, "parallel_tool_calls": false, "max_tool_calls": 5})"}) {
    const Answer got = answer(post(kResponsesPath, body));
    EXPECT_EQ(got.response->status, 200) << got.response->body;
  }
}

TEST_F(ApiResponsesTest, TextAndToolChoiceAreHeldByAGrammar) {
  const char* body = R"({"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "strict": true,
    "schema": {"type":"object","properties":{"z":{},"a":{}}}}}})";
  ASSERT_EQ(answer(post(kResponsesPath, body)).response->status, 200);
  ASSERT_TRUE(engine_.submitted().back().grammar);
  EXPECT_EQ(engine_.submitted().back().grammar->text, R"({"type":"object","properties":{"z":{},"a":{}}})")
      << "in the client's order";
  for (const char* choice :
       {R"("required")", R"({"type": "function", "name": "g"})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]})"}) {
    ask({{"input", "x"}, {"tools", tools()}, {"tool_choice", json::parse(choice)}});
    EXPECT_TRUE(engine_.submitted().back().grammar) << choice;
  }
  ask({{"input", "x"}, {"tools", tools()}, {"tool_choice", "none"}});
  EXPECT_FALSE(engine_.submitted().back().grammar);
}

TEST_F(ApiResponsesTest, EveryFieldOfAChatThatMeansTheSameIsTaken) {
  ask(json::parse(R"({"input": "x", "seed": 7, "top_k": 5, "stop": "q", "min_p": 0.5, "ignore_eos": true,
                           "reasoning": {"effort": "none"}, "volley": {"speculation": false}})"));
  const GenerateRequest request = engine_.submitted().back();
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.stop, std::vector<std::string>{"q"});
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_FALSE(request.speculation);
  EXPECT_NE(prompt(engine_).find("\"enable_thinking\":false"), std::string::npos);
}

}  // namespace
}  // namespace volley::serve
