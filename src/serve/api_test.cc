// Protects the endpoints from HTTP request to HTTP response, without sockets: prompts, lengths, choices, failures.
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "serve/api_for_test.h"

namespace volley::serve {
namespace {

TEST_F(ApiTest, ChatRendersEncodesAndAnswers) {
  FakeEngine engine;
  Api api(engine, make_options());
  const Answer result = answer(api, post(kChatPath, R"({"messages": [{"role": "user", "content": "hi"}], "seed": 5,
                                                        "chat_template_kwargs": {"k": 1}})"));
  ASSERT_EQ(result.response->status, 200) << result.response->body;
  EXPECT_EQ(result.body().at("choices").at(0).at("message").at("content"), "Hello world");
  EXPECT_EQ(result.body().at("model"), "pocket");
  EXPECT_TRUE(result.body().at("id").get<std::string>().starts_with("chatcmpl-"));
  const GenerateRequest submitted = engine.submitted().at(0);
  EXPECT_EQ(engine.decode(submitted.prompt, false), R"([{"role": "user", "content": "hi"}]|{"k": 1}|1|0)");
  EXPECT_EQ(submitted.max_tokens, -1);
  EXPECT_EQ(submitted.sampling.seed, 5u);
}

// submit() may compile a grammar, which nobody needs once the client has left.
TEST_F(ApiTest, SubmittingCanBeCancelled) {
  FakeEngine engine;
  Api api(engine, make_options());
  const std::atomic<bool> cancelled{false};
  auto reply = api.handle(
      post(kTextPath, R"({"prompt": "x", "n": 2})"), [] {}, &cancelled);
  std::get<std::shared_ptr<Generation>>(reply)->abandon();
  ASSERT_EQ(engine.submitted().size(), 2u);
  for (const GenerateRequest& request : engine.submitted()) EXPECT_EQ(request.cancelled, &cancelled);
}

// Whose grammar has to be compiled comes again, on a thread that may wait, and nothing has happened by then. A prompt
// that is scored alone has no grammar; others beside it have.
TEST_F(ApiTest, WhatHasToBeCompiledIsLeftForLater) {
  FakeEngine engine;
  Api api(engine, make_options());
  json full = json::array();
  for (int i = 0; i < engine.info().max_model_len; ++i) full.push_back(1);
  for (const json& prompt : {json("x"), json::array({full, json::array({1})})}) {
    const bool scored = prompt.is_array();
    const json body = {{"prompt", prompt}, {"regex", "new"}, {"echo", scored}, {"max_tokens", scored ? 0 : 1}};
    const HttpRequest request = post(kTextPath, body.dump());
    bool compiles = false;
    const size_t before = engine.submitted().size();
    api.handle(
        request, [] {}, nullptr, &compiles);
    EXPECT_TRUE(compiles);
    EXPECT_EQ(engine.submitted().size(), before);
    EXPECT_EQ(answer(api, request).response->status, 200);
    EXPECT_FALSE(engine.submitted().back().compiles_at_once);
  }
  for (const char* body : {R"({"prompt": "x"})", R"({"prompt": "x", "regex": "known"})"}) {
    bool compiles = false;
    auto reply = api.handle(
        post(kTextPath, body), [] {}, nullptr, &compiles);
    EXPECT_FALSE(compiles) << body;
    std::get<std::shared_ptr<Generation>>(reply)->abandon();
  }
}

TEST_F(ApiTest, EveryChoiceHasItsIndexAndTheSameSeed) {
  FakeEngine engine([](const GenerateRequest& request) {
    FakeScript script;
    script.pieces = {std::string(1, static_cast<char>(request.prompt.back())),
                     std::to_string(request.sampling.choice_index)};
    return script;
  });
  Api api(engine, make_options());
  const Answer result = answer(api, post(kTextPath, R"({"prompt": ["a", "b"], "n": 3, "seed": 9, "echo": true})"));
  const json choices = result.body().at("choices");
  ASSERT_EQ(choices.size(), 6u);
  const char* expected[] = {"aa0", "aa1", "aa2", "bb0", "bb1", "bb2"};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(choices.at(i).at("text"), expected[i]);
  for (const GenerateRequest& request : engine.submitted()) {
    EXPECT_EQ(request.sampling.seed, 9u);
    EXPECT_EQ(request.prompt.front(), 256) << "completions get the tokenizer's special tokens";
  }
}

TEST_F(ApiTest, StreamsEvents) {
  FakeEngine engine;
  Api api(engine, make_options());
  const Answer result = answer(api, post(kTextPath, R"({"prompt": [65], "stream": true})"));
  EXPECT_FALSE(result.response);
  std::string text;
  const auto events = stream_events(result.events);
  ASSERT_GE(events.size(), 3u);
  for (size_t i = 0; i + 1 < events.size(); ++i) text += json::parse(events[i]).at("choices").at(0).at("text");
  EXPECT_EQ(text, "Hello world");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ApiTest, LengthsAreCheckedBeforeSubmit) {
  FakeEngine engine;
  engine.mutable_info().max_model_len = 100;
  Api api(engine, make_options());
  const auto ask = [&](int prompt, const std::string& more) {
    return answer(api, post(kTextPath, "{\"add_special_tokens\": false, \"prompt\": \"" + std::string(prompt, 'x') +
                                           "\"" + more + "}"));
  };
  for (const Answer& refused : {ask(100, ""), ask(5000, ""), ask(91, ", \"max_tokens\": 10")}) {
    EXPECT_EQ(refused.response->status, 400);
    EXPECT_EQ(refused.body().at("error").at("code"), "context_length_exceeded");
    EXPECT_NE(refused.body().at("error").at("message").get<std::string>().find("100 tokens"), std::string::npos);
  }
  EXPECT_TRUE(engine.submitted().empty());
  EXPECT_EQ(ask(90, ", \"max_tokens\": 10").response->status, 200);
  EXPECT_EQ(ask(99, "").response->status, 200);
  EXPECT_EQ(engine.submitted().back().max_tokens, 1) << "the default of 16 gives way to the context";
}

// A prompt of megabytes must not take a thread for as long as tokenising it takes, just to be refused.
TEST_F(ApiTest, OfAPromptThatIsFarTooLongTheBeginningIsRead) {
  FakeEngine engine;
  engine.mutable_info().max_model_len = 100;
  Api api(engine, make_options());
  const auto ask = [&](const std::string& prompt, const std::string& more) {
    return answer(api, post(kTextPath, json{{"prompt", prompt}}.dump().insert(1, more)));
  };
  for (const char* letter : {"x", "é", "日", "🙂"}) {
    std::string prompt;
    while (prompt.size() < 1'000'000) prompt += letter;
    const Answer refused = ask("a" + prompt, "");
    ASSERT_EQ(refused.response->status, 400);
    EXPECT_EQ(refused.body().at("error").at("code"), "context_length_exceeded");
    EXPECT_EQ(refused.body().at("error").at("param"), "prompt");
  }
  EXPECT_LE(engine.longest_encoded(), 100u * 16);
  EXPECT_EQ(ask(std::string(size_t{64} * 60, ' '), "").response->status, 200) << "long, but of 60 tokens";
  EXPECT_EQ(ask(std::string(1'000'000, 'x'), R"("truncate_prompt_tokens": 50, )").response->status, 200);
  EXPECT_EQ(engine.submitted().back().prompt.size(), 50u);
}

TEST_F(ApiTest, KeepsTheEndOfALongPromptWhenAsked) {
  FakeEngine engine;
  engine.mutable_info().max_model_len = 10;
  Api api(engine, make_options());
  const auto kept = [&](const std::string& fields) {
    const Answer result = answer(api, post(kTextPath, R"({"prompt": "0123456789abcdef", )" + fields + "}"));
    EXPECT_EQ(result.response->status, 200) << result.response->body;
    return engine.decode(engine.submitted().back().prompt, false);
  };
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": 3)"), "def");
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": -1)"), "789abcdef");
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": -1, "max_tokens": 6)"), "cdef");
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": 4, "max_tokens": 2, "prompt": [65, 66, 67, 68, 69])"), "BCDE");
  const json echoed = answer(api, post(kTextPath, R"({"prompt": "0123456789abcdef", "truncate_prompt_tokens": 2,
                                                      "max_tokens": 0, "echo": true})"))
                          .body();
  EXPECT_EQ(echoed.at("choices").at(0).at("text"), "ef");
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": "x", "truncate_prompt_tokens": 0})")).response->status, 400);
}

TEST_F(ApiTest, FailuresBeforeTheEngine) {
  FakeEngine engine;
  Api api(engine, make_options());
  const auto status = [&](const HttpRequest& request) { return answer(api, request).response->status; };
  EXPECT_EQ(status(post(kTextPath, R"({"prompt": "unencodable"})")), 400);
  EXPECT_EQ(status(post(kTextPath, R"({"prompt": "", "add_special_tokens": false})")), 400);
  EXPECT_EQ(status(post(kChatPath, R"({"messages": [{"role": "user", "content": "no template"}]})")), 400);
  EXPECT_EQ(status(post(kTextPath, "{")), 400);
  EXPECT_EQ(status({"POST", kTextPath, "text/plain", "{}"}), 415);
  EXPECT_EQ(status({"POST", kTextPath, "application/JSON; charset=utf-8", R"({"prompt": "x"})"}), 200);
  EXPECT_EQ(status({"POST", kTextPath, "", R"({"prompt": "x"})"}), 200);
  HttpRequest of_a_page{"POST", kTextPath, "", R"({"prompt": "x"})"};  // fetch() of a Blob without a type sends none
  of_a_page.origin = "https://page.example";
  EXPECT_EQ(status(of_a_page), 415);
  of_a_page.content_type = "application/json";
  EXPECT_EQ(status(of_a_page), 200);
  EXPECT_EQ(engine.submitted().size(), 3u);
}

TEST_F(ApiTest, AFullQueueIsA429) {
  FakeEngine engine;
  Api api(engine, make_options());
  engine.refuse_submits(resource_exhausted("the queue is full; try again"));
  const Answer result = answer(api, post(kTextPath, R"({"prompt": "x", "n": 4, "stream": true})"));
  EXPECT_EQ(result.response->status, 429);
  EXPECT_EQ(result.response->headers.at(0).first, "Retry-After");
  EXPECT_EQ(result.body().at("error").at("code"), "rate_limit_exceeded");
}

// Memory that ran out while it was working is not the client's fault.
TEST_F(ApiTest, MemoryThatRunsOutIsA503) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.pieces = {};
    script.reason = FinishReason::kError;
    script.error = resource_exhausted("there is no memory for the penalties' counts");
    return script;
  });
  Api api(engine, make_options());
  const Answer result = answer(api, post(kTextPath, R"({"prompt": "x"})"));
  EXPECT_EQ(result.response->status, 503);
  EXPECT_EQ(result.response->headers.at(0).first, "Retry-After");
  EXPECT_EQ(result.body().at("error").at("type"), "server_error");
  EXPECT_EQ(result.body().at("error").at("code"), "unavailable");
}

TEST_F(ApiTest, AChoiceThatIsRefusedTakesTheOthersDown) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.endless = true;
    return script;
  });
  Api api(engine, make_options());
  engine.refuse_submits(resource_exhausted("the queue is full"), 2);
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": "x", "n": 4})")).response->status, 429);
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 2 && engine.running() == 0; }));
}

FakeScript failing_script(std::vector<std::string> pieces) {
  FakeScript script;
  script.pieces = std::move(pieces);
  script.reason = FinishReason::kError;
  script.error = internal_error("the device fell over");
  return script;
}

TEST_F(ApiTest, AFailureBeforeTheFirstTextHasItsOwnStatus) {
  FakeEngine engine([](const GenerateRequest&) { return failing_script({}); });
  Api api(engine, make_options());
  for (const char* stream : {"true", "false"}) {
    const Answer result = answer(api, post(kTextPath, std::string(R"({"prompt": "x", "stream": )") + stream + "}"));
    ASSERT_TRUE(result.response);
    EXPECT_EQ(result.response->status, 500);
    EXPECT_EQ(result.body().at("error").at("message"), "the device fell over");
    EXPECT_EQ(result.events, "");
  }
}

TEST_F(ApiTest, AFailureInTheMiddleIsAnErrorEvent) {
  FakeEngine engine([](const GenerateRequest&) { return failing_script({"some", " text"}); });
  Api api(engine, make_options());
  const auto events = stream_events(answer(api, post(kChatPath, R"({"stream": true, "messages": [{"role": "user",
                                                                    "content": "hi"}]})"))
                                        .events);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(json::parse(events[events.size() - 2]).at("error").at("message"), "the device fell over");
  EXPECT_EQ(events.back(), "[DONE]");
  const Answer whole = answer(api, post(kTextPath, R"({"prompt": "x"})"));
  EXPECT_EQ(whole.response->status, 500) << "half an answer must not look like an answer";
}

TEST_F(ApiTest, AnAbandonedGenerationIsCancelledAndSilent) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.endless = true;
    return script;
  });
  Api api(engine, make_options());
  std::atomic<int> wakes{0};
  auto reply = api.handle(post(kTextPath, R"({"prompt": "x", "n": 2, "stream": true})"), [&] { ++wakes; });
  auto generation = std::get<std::shared_ptr<Generation>>(std::move(reply));
  ASSERT_TRUE(eventually([&] { return wakes > 0; }));
  generation->abandon();
  const int before = wakes;
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 2; }));
  EXPECT_EQ(wakes, before);
  const HttpResponse metrics = std::get<HttpResponse>(api.handle({"GET", "/metrics", "", ""}, {}));
  EXPECT_NE(metrics.body.find("finished_reason=\"abort\",model_name=\"pocket\"} 2"), std::string::npos);
}

// A stream whose reader may leave 5000 bytes unread.
class SlowReader : public ApiTest {
 protected:
  void ask(FakeScript script) {
    engine_.emplace([script](const GenerateRequest&) { return script; });
    ServerOptions options = make_options();
    options.max_unsent_bytes = 5000;
    api_.emplace(*engine_, options);
    auto reply = api_->handle(post(kTextPath, R"({"prompt": "x", "stream": true})"), [] {});
    generation_ = std::get<std::shared_ptr<Generation>>(std::move(reply));
  }

  std::optional<FakeEngine> engine_;
  std::optional<Api> api_;
  std::shared_ptr<Generation> generation_;
};

TEST_F(SlowReader, ThatNeverTakesIsCancelled) {
  FakeScript script;
  script.endless = true;
  ask(script);
  EXPECT_TRUE(eventually([&] { return engine_->cancelled() == 1; }));
  const auto output = generation_->take();
  EXPECT_TRUE(output.done);
  EXPECT_LT(output.events.size(), 10000u);
  const auto events = stream_events(output.events);
  ASSERT_GE(events.size(), 2u);
  EXPECT_NE(events[events.size() - 2].find("too slowly"), std::string::npos);
}

// Where it is the last event that finds no room, its text is lost, and the answer must not look whole.
TEST_F(SlowReader, WithoutRoomForTheLastEventGetsAnError) {
  FakeScript script;
  script.pieces = {std::string(6000, 'x')};
  script.at_once = true;
  ask(script);
  Generation::Output output;
  std::string events;
  EXPECT_TRUE(eventually([&] {
    output = generation_->take();
    events += output.events;
    return output.done;
  }));
  const std::string answer = output.response ? output.response->body : events;
  EXPECT_NE(answer.find("too slowly"), std::string::npos) << answer;
}

// What a request has waited for a thread counts.
TEST_F(ApiTest, ATimeoutBeginsWhenTheRequestIsThere) {
  FakeEngine engine;
  Api api(engine, make_options());
  for (const auto& [waited, least, most] : {std::tuple{2s, 1.0, 3.0}, {60s, 1e-9, 1e-9}}) {
    HttpRequest request = post(kTextPath, R"({"prompt": "a", "timeout": 5})");
    request.arrived = std::chrono::steady_clock::now() - waited;
    answer(api, request);
    EXPECT_GE(engine.submitted().back().timeout_s, least);
    EXPECT_LE(engine.submitted().back().timeout_s, most);
  }
}

// A timeout cuts an answer short as a length does; where there is nothing to cut the client learns that it got no
// answer.
TEST_F(ApiTest, ATimeoutGivesWhatThereIsOrA504) {
  FakeEngine engine([](const GenerateRequest& request) {
    FakeScript script;
    script.reason = FinishReason::kTimeout;
    if (request.prompt.back() == 'x') script.pieces.clear();
    return script;
  });
  Api api(engine, make_options());
  const json cut = answer(api, post(kTextPath, R"({"prompt": "a", "timeout": 0.25})")).body().at("choices").at(0);
  EXPECT_EQ(engine.submitted().at(0).timeout_s, 0.25);
  EXPECT_EQ(cut.at("text"), "Hello world");
  EXPECT_EQ(cut.at("finish_reason"), "length");
  EXPECT_EQ(cut.at("stop_reason"), "timeout");
  const HttpResponse metrics = std::get<HttpResponse>(api.handle({"GET", "/metrics", "", ""}, {}));
  EXPECT_NE(metrics.body.find("finished_reason=\"timeout\",model_name=\"pocket\"} 1"), std::string::npos);
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": ["a", "x"]})")).response->status, 200) << "one has an answer";
  for (const char* stream : {"false", "true"}) {
    const Answer none =
        answer(api, post(kTextPath, std::string(R"({"prompt": "x", "n": 2, "stream": )") + stream + "}"));
    ASSERT_TRUE(none.response) << none.events;
    EXPECT_EQ(none.response->status, 504);
    EXPECT_EQ(none.body().at("error").at("code"), "timeout");
  }
}

TEST_F(ApiTest, ListsModels) {
  FakeEngine engine;
  engine.mutable_info().default_sampling.temperature = 0.6f;
  engine.mutable_info().block_size = 16;
  engine.mutable_info().tensor_parallel_size = 2;
  engine.mutable_info().expert_parallel = true;
  Api api(engine, make_options());
  const json list = answer(api, {"GET", "/v1/models", "", ""}).body();
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 2u);
  EXPECT_EQ(list.at("data").at(1).at("id"), "org/alias");
  EXPECT_EQ(list.at("data").at(1).at("object"), "model");
  EXPECT_EQ(list.at("data").at(1).at("max_model_len"), 4096);
  // As a client shows them: 0.6 and not the float's 0.60000002.
  const json& own = list.at("data").at(1).at("volley");
  EXPECT_EQ(own.at("default_sampling").at("temperature"), 0.6);
  EXPECT_EQ(own.at("default_sampling").size(), 7u);
  EXPECT_EQ(own.at("block_size"), 16);
  EXPECT_EQ(own.at("tensor_parallel_size"), 2);
  EXPECT_EQ(own.at("expert_parallel"), true);
  EXPECT_EQ(answer(api, {"GET", "/v1/models/org%2Falias", "", ""}).body().at("id"), "org/alias");
  EXPECT_EQ(answer(api, {"GET", "/v1/models/nope", "", ""}).response->status, 404);
}

TEST_F(ApiTest, WarnsOnceAboutAnUnknownField) {
  std::ostringstream text;
  ServerOptions options = make_options();
  options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  FakeEngine engine;
  Api api(engine, options);
  for (int i = 0; i < 3; ++i) answer(api, post(kTextPath, R"({"prompt": "x", "tempe\nrature": 1})"));
  const std::string log = text.str();
  const size_t first = log.find(R"("tempe\nrature")");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("rature", first + 20), std::string::npos) << log;
}

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

std::string chat_with(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}";
}

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

TEST_F(ApiTest, TheStopStringMayStay) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.stop_text = "STOP";
    return script;
  });
  Api api(engine, make_options());
  const Answer result =
      answer(api, post(kTextPath, R"({"prompt": "x", "stop": "STOP", "include_stop_str_in_output": true})"));
  EXPECT_EQ(result.body().at("choices").at(0).at("text"), "Hello worldSTOP");
}

TEST_F(ApiTest, EchoScoresThePrompt) {
  FakeEngine engine;
  Api api(engine, make_options());
  const json body =
      answer(api, post(kTextPath, R"({"prompt": [97, 98, 99], "echo": true, "max_tokens": 0, "logprobs": 1})")).body();
  const json& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abc");
  EXPECT_EQ(choice.at("logprobs").at("tokens"), json::parse(R"(["a", "b", "c"])"));
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), json::parse("[null, -1.5, -1.5]"));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 0);
  EXPECT_EQ(engine.submitted().at(0).prompt_logprobs, 1);
}

// They cost a pass of the whole prompt, past the prefix cache.
// The engine wants room for an output; the last token of a prompt as long as the context is scored as one.
TEST_F(ApiTest, APromptAsLongAsTheContextCanBeScored) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.pieces = {"d"};
    return script;
  });
  engine.mutable_info().max_model_len = 4;
  Api api(engine, make_options());
  const auto scored = [&](const std::string& prompt) {
    return answer(api, post(kTextPath, R"({"prompt": )" + prompt +
                                           R"(, "echo": true, "max_tokens": 0, "logprobs": 1, "prompt_logprobs": 1})"));
  };
  const json body = scored("[97, 98, 99, 100]").body();
  const json& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abcd");
  EXPECT_EQ(choice.at("logprobs").at("tokens"), json::parse(R"(["a", "b", "c", "d"])"));
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), json::parse("[null, -1.5, -1.5, -0.5]"));
  EXPECT_EQ(choice.at("prompt_logprobs").size(), 4u);
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 4);
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 0);
  const GenerateRequest submitted = engine.submitted().at(0);
  EXPECT_EQ(submitted.prompt, (std::vector<TokenId>{97, 98, 99}));
  EXPECT_EQ(submitted.allowed_tokens, std::vector<TokenId>{100});
  EXPECT_EQ(submitted.sampling.logprobs, 1);
  EXPECT_EQ(scored("[97, 98, 99, 100, 101]").body().at("error").at("code"), "context_length_exceeded");
  EXPECT_EQ(scored("[97, 98, 99]").response->status, 200);
  EXPECT_TRUE(engine.submitted().at(1).allowed_tokens.empty()) << "with room nothing is forced";
}

// Words become tokens, with a space before them too where that is another token; a budget needs the markers as tokens.
TEST_F(ApiTest, WhatMayBeChosenReachesTheEngine) {
  FakeEngine engine;
  Api api(engine, make_options());
  const std::string rules = R"("bad_words": [" ab", "c"], "allowed_token_ids": [100, 99], "skip_special_tokens": false,
      "repetition_detection": {"max_pattern_size": 2, "min_count": 9})";
  ASSERT_EQ(answer(api, post(kTextPath, R"({"prompt": "x", )" + rules + "}")).response->status, 200);
  const GenerateRequest submitted = engine.submitted().at(0);
  EXPECT_EQ(submitted.bad_words, (std::vector<std::vector<TokenId>>{{97, 98}, {99}}));
  EXPECT_EQ(submitted.allowed_tokens, (std::vector<TokenId>{99, 100}));
  EXPECT_FALSE(submitted.skip_special_tokens);
  ASSERT_TRUE(submitted.repetition);
  EXPECT_EQ(submitted.repetition->min_count, 9);
  const Answer budget = answer(api, post(kTextPath, R"({"prompt": "x", "thinking_token_budget": 5})"));
  EXPECT_EQ(budget.response->status, 400);
  EXPECT_EQ(budget.body().at("error").at("param"), "thinking_token_budget");
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": "x", "bad_words": [" "]})")).body().at("error").at("param"),
            "bad_words");
}

TEST_F(ApiTest, PromptLogprobsAreAskedForWhereTheyAreShown) {
  FakeEngine engine;
  Api api(engine, make_options());
  const auto asked = [&](const char* path, const std::string& body) {
    const size_t before = engine.submitted().size();
    answer(api, post(path, body));
    std::vector<int32_t> asked;
    const auto submitted = engine.submitted();
    for (size_t i = before; i < submitted.size(); ++i) asked.push_back(submitted[i].prompt_logprobs);
    return asked;
  };
  const std::string chat = chat_with(R"("n": 3, "prompt_logprobs": 2)");
  const Answer whole = answer(api, post(kChatPath, chat));
  EXPECT_GT(whole.body().at("prompt_logprobs").size(), 1u);
  EXPECT_EQ(asked(kChatPath, chat), (std::vector<int32_t>{2, -1, -1}));
  EXPECT_EQ(asked(kChatPath, chat_with(R"("n": 2, "prompt_logprobs": 2, "stream": true)")),
            (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(asked(kTextPath, R"({"prompt": ["a", "b"], "n": 2, "prompt_logprobs": 0})"),
            (std::vector<int32_t>{0, 0, 0, 0}));
}

// A list of prompts makes hundreds of bytes of log-probabilities of each byte that was sent.
TEST_F(ApiTest, AnAnswerThatIsSureToBeTooLargeIsRefusedAtOnce) {
  FakeEngine engine;
  ServerOptions options = make_options();
  options.max_response_bytes = 50'000;
  Api api(engine, options);
  const auto status = [&](const std::string& fields, int prompts) {
    json body = json::parse(fields);
    body["prompt"] = std::vector<std::string>(static_cast<size_t>(prompts), std::string(99, 'x'));
    const Answer result = answer(api, post(kTextPath, body.dump()));
    return result.response ? result.response->status : 200;
  };
  for (const char* fields :
       {R"({"prompt_logprobs": 0})", R"({"prompt_logprobs": 0, "stream": true})", R"({"echo": true, "logprobs": 1})"}) {
    EXPECT_EQ(status(fields, 2), 200) << fields;
    const size_t before = engine.submitted().size();
    EXPECT_EQ(status(fields, 10), 400) << fields;
    EXPECT_EQ(engine.submitted().size(), before);
  }
  EXPECT_EQ(status(R"({"prompt_logprobs": 0, "n": 10})", 1), 400);
  EXPECT_EQ(status(R"({"echo": true})", 10), 200) << "no more than was sent";
}

TEST_F(ApiTest, AWholeAnswerThatGrowsTooLargeIsGivenUp) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.endless = true;
    script.pieces = {std::string(1000, 'w')};
    return script;
  });
  ServerOptions options = make_options();
  options.max_response_bytes = 100'000;
  Api api(engine, options);
  const Answer result = answer(api, post(kTextPath, R"({"prompt": "x"})"));
  ASSERT_TRUE(result.response);
  EXPECT_EQ(result.response->status, 400);
  EXPECT_EQ(result.body().at("error").at("code"), "response_too_large");
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

// A thousand choices must not make a thousand copies of something large.
TEST_F(ApiTest, WhatEachChoiceCopiesIsBounded) {
  FakeEngine engine;
  Api api(engine, make_options());
  const json schema = {{"type", "object"}, {"description", std::string(3'000'000, 'd')}};
  const json body = {{"prompt", "x"}, {"n", 128}, {"guided_json", schema}};
  const Answer result = answer(api, post(kTextPath, body.dump()));
  EXPECT_EQ(result.response.value().status, 400);
  EXPECT_EQ(result.body().at("error").at("param"), "n");
  EXPECT_TRUE(engine.submitted().empty());
  const json stop = {{"prompt", "x"}, {"stop", std::string(1025, 's')}};
  EXPECT_EQ(answer(api, post(kTextPath, stop.dump())).body().at("error").at("param"), "stop");
  const json salt = {{"prompt", "x"}, {"cache_salt", std::string(1025, 's')}};
  EXPECT_EQ(answer(api, post(kTextPath, salt.dump())).body().at("error").at("param"), "cache_salt");
}

// Wherever it is that there is no memory: that request gets a 503, and the next one its answer.
TEST_F(ApiTest, MemoryThatRunsOutIsThatRequestsError) {
  FakeEngine engine;
  Api api(engine, make_options());
  const std::string scored = R"({"prompt": [97, 299, 98], "echo": true, "logprobs": 1})";
  for (const std::string& body : {std::string(R"({"prompt": "no memory"})"), scored}) {
    const Answer result = answer(api, post(kTextPath, body));
    ASSERT_TRUE(result.response);
    EXPECT_EQ(result.response->status, 503) << body;
    EXPECT_EQ(result.body().at("error").at("code"), "out_of_memory");
    EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": "x"})")).response.value().status, 200);
  }
}

TEST_F(ApiTest, AnAnswerThatTakesTooLongIsA504) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.endless = true;
    return script;
  });
  Api api(engine, make_options());
  for (const char* stream : {"false", "true"}) {
    auto reply = api.handle(post(kTextPath, std::string(R"({"prompt": "x", "stream": )") + stream + "}"), [] {});
    const auto generation = std::get<std::shared_ptr<Generation>>(std::move(reply));
    ASSERT_TRUE(eventually([&] { return engine.running() == 1; }));
    generation->expire();
    const Generation::Output output = generation->take();
    EXPECT_TRUE(output.done);
    if (output.response) {
      EXPECT_EQ(output.response->status, 504);
    } else {
      EXPECT_NE(output.events.find("longer than this server allows"), std::string::npos);
    }
    EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
  }
}

TEST_F(ApiTest, PromptsAreLoggedOnlyWhenAsked) {
  for (const bool asked : {false, true}) {
    std::ostringstream text;
    ServerOptions options = make_options();
    options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    options.log->set_pattern("%v");
    options.log_format = LogFormat::kJson;
    options.log_prompts = asked;
    FakeEngine engine;
    Api api(engine, options);
    HttpRequest request = post(kTextPath, R"({"prompt": "my\nsecret", "add_special_tokens": false})");
    request.request_id = "id-7";
    answer(api, request);
    if (!asked) {
      EXPECT_EQ(text.str().find("secret"), std::string::npos);
      continue;
    }
    const json record = json::parse(text.str());
    EXPECT_EQ(record.at("prompt"), "my\nsecret");
    EXPECT_EQ(record.at("request_id"), "id-7");
  }
}

}  // namespace
}  // namespace volley::serve
