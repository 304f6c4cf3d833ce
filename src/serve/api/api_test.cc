// Protects the endpoints from HTTP request to HTTP response, without sockets: prompts, lengths, choices, failures.
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "serve/api/api_for_test.h"

namespace volley::serve {
namespace {

TEST_F(ApiTest, ChatRendersEncodesAndAnswers) {
  const Answer result = answer(post(kChatPath, R"({"messages": [{"role": "user", "content": "hi"}], "seed": 5,
                                                        "chat_template_kwargs": {"k": 1}})"));
  ASSERT_EQ(result.response->status, 200) << result.response->body;
  EXPECT_EQ(result.body().at("choices").at(0).at("message").at("content"), "Hello world");
  EXPECT_EQ(result.body().at("model"), "pocket");
  EXPECT_TRUE(result.body().at("id").get<std::string>().starts_with("chatcmpl-"));
  const GenerateRequest submitted = engine_.submitted().at(0);
  EXPECT_EQ(engine_.decode(submitted.prompt, false), R"([{"role":"user","content":"hi"}]|{"k": 1}|1|0)");
  EXPECT_EQ(submitted.max_tokens, -1);
  EXPECT_EQ(submitted.sampling.seed, 5u);
}

// submit() may compile a grammar, which is wasted once the client has left.
TEST_F(ApiTest, SubmittingCanBeCancelled) {
  const std::atomic<bool> cancelled{false};
  auto reply = api_.handle(
      post(kTextPath, R"({"prompt": "x", "n": 2})"), [] {}, &cancelled);
  std::get<std::shared_ptr<Generation>>(reply)->abandon();
  ASSERT_EQ(engine_.submitted().size(), 2u);
  for (const GenerateRequest& request : engine_.submitted()) EXPECT_EQ(request.cancelled, &cancelled);
}

// A request whose grammar must be compiled first continues on a thread that may wait; only then does the engine get it.
// A prompt that is only scored has no grammar.
TEST_F(ApiTest, WhatHasToBeCompiledIsLeftForLater) {
  json full = json::array();
  for (int i = 0; i < engine_.info().max_model_len; ++i) full.push_back(1);
  for (const json& prompt : {json("x"), json::array({full, json::array({1})})}) {
    const bool scored = prompt.is_array();
    const json body = {{"prompt", prompt}, {"regex", "new"}, {"echo", scored}, {"max_tokens", scored ? 0 : 1}};
    const HttpRequest request = post(kTextPath, body.dump());
    Api::Rest rest;
    const size_t before = engine_.submitted().size();
    api_.handle(
        request, [] {}, nullptr, &rest);
    ASSERT_TRUE(rest);
    EXPECT_EQ(engine_.submitted().size(), before);
    auto reply = rest();
    EXPECT_EQ(engine_.submitted().size(), before + (scored ? 2 : 1));
    EXPECT_FALSE(engine_.submitted().back().compiles_at_once);
    std::get<std::shared_ptr<Generation>>(reply)->abandon();
  }
  for (const char* body : {R"({"prompt": "x"})", R"({"prompt": "x", "regex": "known"})"}) {
    Api::Rest rest;
    const HttpRequest request = post(kTextPath, body);
    auto reply = api_.handle(
        request, [] {}, nullptr, &rest);
    EXPECT_FALSE(rest) << body;
    std::get<std::shared_ptr<Generation>>(reply)->abandon();
  }
}

TEST_F(ApiTest, EveryChoiceHasItsIndexAndTheSameSeed) {
  FakeEngine engine([](const GenerateRequest& request) {
    return FakeScript{.pieces = {std::string(1, static_cast<char>(request.prompt.back())),
                                 std::to_string(request.sampling.choice_index)}};
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
  const Answer result = answer(post(kTextPath, R"({"prompt": [65], "stream": true})"));
  EXPECT_FALSE(result.response);
  std::string text;
  const auto events = stream_events(result.events);
  ASSERT_GE(events.size(), 3u);
  for (size_t i = 0; i + 1 < events.size(); ++i) text += json::parse(events[i]).at("choices").at(0).at("text");
  EXPECT_EQ(text, "Hello world");
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(ApiTest, LengthsAreCheckedBeforeSubmit) {
  engine_.mutable_info().max_model_len = 100;
  const auto ask = [&](int prompt, const std::string& more) {
    return answer(post(
        kTextPath, "{\"add_special_tokens\": false, \"prompt\": \"" + std::string(prompt, 'x') + "\"" + more + "}"));
  };
  for (const Answer& refused : {ask(100, ""), ask(5000, ""), ask(91, ", \"max_tokens\": 10")}) {
    EXPECT_EQ(refused.response->status, 400);
    EXPECT_EQ(refused.body().at("error").at("code"), "context_length_exceeded");
    EXPECT_NE(refused.body().at("error").at("message").get<std::string>().find("100 tokens"), std::string::npos);
  }
  EXPECT_TRUE(engine_.submitted().empty());
  EXPECT_EQ(ask(90, ", \"max_tokens\": 10").response->status, 200);
  EXPECT_EQ(ask(99, "").response->status, 200);
  EXPECT_EQ(engine_.submitted().back().max_tokens, 1) << "the default of 16 gives way to the context";
}

TEST_F(ApiTest, KeepsTheEndOfALongPromptWhenAsked) {
  engine_.mutable_info().max_model_len = 10;
  const auto kept = [&](const std::string& fields) {
    const Answer result = answer(post(kTextPath, R"({"prompt": "0123456789abcdef", )" + fields + "}"));
    EXPECT_EQ(result.response->status, 200) << result.response->body;
    return engine_.decode(engine_.submitted().back().prompt, false);
  };
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": 3)"), "def");
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": -1)"), "789abcdef");
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": -1, "max_tokens": 6)"), "cdef");
  EXPECT_EQ(kept(R"("truncate_prompt_tokens": 4, "max_tokens": 2, "prompt": [65, 66, 67, 68, 69])"), "BCDE");
  const json echoed = answer(post(kTextPath, R"({"prompt": "0123456789abcdef", "truncate_prompt_tokens": 2,
                                                      "max_tokens": 0, "echo": true})"))
                          .body();
  EXPECT_EQ(echoed.at("choices").at(0).at("text"), "ef");
  EXPECT_EQ(answer(post(kTextPath, R"({"prompt": "x", "truncate_prompt_tokens": 0})")).response->status, 400);
}

TEST_F(ApiTest, FailuresBeforeTheEngine) {
  const auto status = [&](const HttpRequest& request) { return answer(request).response->status; };
  EXPECT_EQ(status(post(kTextPath, R"({"prompt": "unencodable"})")), 400);
  EXPECT_EQ(status(post(kTextPath, R"({"prompt": "", "add_special_tokens": false})")), 400);
  EXPECT_EQ(status(post(kChatPath, R"({"messages": [{"role": "user", "content": "no template"}]})")), 400);
  EXPECT_EQ(status(post(kTextPath, "{")), 400);
  EXPECT_EQ(status({"POST", kTextPath, "text/plain", "{}"}), 415);
  EXPECT_EQ(status({"POST", kTextPath, "application/JSON; charset=utf-8", R"({"prompt": "x"})"}), 200);
  EXPECT_EQ(status({"POST", kTextPath, "", R"({"prompt": "x"})"}), 200);
  HttpRequest of_a_page{"POST", kTextPath, "", R"({"prompt": "x"})"};  // fetch() of a Blob without a type sends no type
  of_a_page.origin = "https://page.example";
  EXPECT_EQ(status(of_a_page), 415);
  of_a_page.content_type = "application/json";
  EXPECT_EQ(status(of_a_page), 200);
  EXPECT_EQ(engine_.submitted().size(), 3u);
}

TEST_F(ApiTest, AChoiceThatIsRefusedTakesTheOthersDown) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.endless = true}; });
  Api api(engine, make_options());
  engine.refuse_submits(resource_exhausted("the queue is full"), 2);
  EXPECT_EQ(answer(api, post(kTextPath, R"({"prompt": "x", "n": 4})")).response->status, 429);
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 2 && engine.running() == 0; }));
}

FakeScript failing_script(std::vector<std::string> pieces) {
  return {.pieces = std::move(pieces), .reason = FinishReason::kError, .error = internal_error("the device fell over")};
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
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.endless = true}; });
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

TEST_F(ApiTest, ListsModels) {
  engine_.mutable_info().default_sampling.temperature = 0.6f;
  engine_.mutable_info().block_size = 16;
  engine_.mutable_info().tensor_parallel_size = 2;
  engine_.mutable_info().expert_parallel = true;
  const json list = answer({"GET", "/v1/models", "", ""}).body();
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 2u);
  EXPECT_EQ(list.at("data").at(1).at("id"), "org/alias");
  EXPECT_EQ(list.at("data").at(1).at("object"), "model");
  EXPECT_EQ(list.at("data").at(1).at("max_model_len"), 4096);
  // Numbers are as clients show them: 0.6, not the float's 0.60000002.
  const json& own = list.at("data").at(1).at("volley");
  EXPECT_EQ(own.at("default_sampling").at("temperature"), 0.6);
  EXPECT_EQ(own.at("default_sampling").size(), 7u);
  EXPECT_EQ(own.at("chat_sampling"), own.at("default_sampling"));
  EXPECT_EQ(own.at("block_size"), 16);
  EXPECT_EQ(own.at("tensor_parallel_size"), 2);
  EXPECT_EQ(own.at("expert_parallel"), true);
  EXPECT_EQ(answer({"GET", "/v1/models/org%2Falias", "", ""}).body().at("id"), "org/alias");
  EXPECT_EQ(answer({"GET", "/v1/models/nope", "", ""}).response->status, 404);
}

TEST_F(ApiTest, SaysWhatChatsShouldAskForAndTakesNothingForGranted) {
  FakeEngine engine;
  engine.mutable_info().default_sampling = {};
  auto options = make_options();
  options.chat_sampling = SamplingParams{.temperature = 0.7f, .top_p = 0.95f};
  Api api(engine, options);
  const json own = answer(api, {"GET", "/v1/models/org%2Falias", "", ""}).body().at("volley");
  EXPECT_EQ(own.at("chat_sampling").at("temperature"), 0.7);
  EXPECT_EQ(own.at("chat_sampling").at("top_p"), 0.95);
  EXPECT_EQ(own.at("chat_sampling").at("top_k"), 0);
  EXPECT_EQ(own.at("default_sampling").at("temperature"), 1.0) << "the API is as it was";
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

TEST_F(ApiTest, TheStopStringMayStay) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.stop_text = "STOP"}; });
  Api api(engine, make_options());
  const Answer result =
      answer(api, post(kTextPath, R"({"prompt": "x", "stop": "STOP", "include_stop_str_in_output": true})"));
  EXPECT_EQ(result.body().at("choices").at(0).at("text"), "Hello worldSTOP");
}

TEST_F(ApiTest, EchoScoresThePrompt) {
  const json body =
      answer(post(kTextPath, R"({"prompt": [97, 98, 99], "echo": true, "max_tokens": 0, "logprobs": 1})")).body();
  const json& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abc");
  EXPECT_EQ(choice.at("logprobs").at("tokens"), json::parse(R"(["a", "b", "c"])"));
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), json::parse("[null, -1.5, -1.5]"));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 0);
  EXPECT_EQ(engine_.submitted().at(0).prompt_logprobs, 1);
}

// Scoring passes over the whole prompt, without the prefix cache. The engine needs room for an output, so the last
// token of a prompt as long as the context is scored as the output.
TEST_F(ApiTest, APromptAsLongAsTheContextCanBeScored) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.pieces = {"d"}}; });
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

// Words become tokens, also with a space before them if that gives another token. A budget needs its markers as tokens.
TEST_F(ApiTest, WhatMayBeChosenReachesTheEngine) {
  const std::string rules = R"("bad_words": [" ab", "c"], "allowed_token_ids": [100, 99], "skip_special_tokens": false,
      "repetition_detection": {"max_pattern_size": 2, "min_count": 9})";
  ASSERT_EQ(answer(post(kTextPath, R"({"prompt": "x", )" + rules + "}")).response->status, 200);
  const GenerateRequest submitted = engine_.submitted().at(0);
  EXPECT_EQ(submitted.bad_words, (std::vector<std::vector<TokenId>>{{97, 98}, {99}}));
  EXPECT_EQ(submitted.allowed_tokens, (std::vector<TokenId>{99, 100}));
  EXPECT_FALSE(submitted.skip_special_tokens);
  ASSERT_TRUE(submitted.repetition);
  EXPECT_EQ(submitted.repetition->min_count, 9);
  const Answer budget = answer(post(kTextPath, R"({"prompt": "x", "thinking_token_budget": 5})"));
  EXPECT_EQ(budget.response->status, 400);
  EXPECT_EQ(budget.body().at("error").at("param"), "thinking_token_budget");
  EXPECT_EQ(answer(post(kTextPath, R"({"prompt": "x", "bad_words": [" "]})")).body().at("error").at("param"),
            "bad_words");
}

TEST_F(ApiTest, PromptLogprobsAreAskedForWhereTheyAreShown) {
  const auto asked = [&](const char* path, const std::string& body) {
    const size_t before = engine_.submitted().size();
    answer(post(path, body));
    std::vector<int32_t> asked;
    const auto submitted = engine_.submitted();
    for (size_t i = before; i < submitted.size(); ++i) asked.push_back(submitted[i].prompt_logprobs);
    return asked;
  };
  const std::string chat = chat_with(R"("n": 3, "prompt_logprobs": 2)");
  const Answer whole = answer(post(kChatPath, chat));
  EXPECT_GT(whole.body().at("prompt_logprobs").size(), 1u);
  EXPECT_EQ(asked(kChatPath, chat), (std::vector<int32_t>{2, -1, -1}));
  EXPECT_EQ(asked(kChatPath, chat_with(R"("n": 2, "prompt_logprobs": 2, "stream": true)")),
            (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(asked(kTextPath, R"({"prompt": ["a", "b"], "n": 2, "prompt_logprobs": 0})"),
            (std::vector<int32_t>{0, 0, 0, 0}));
}

// cached_tokens would tell a client which beginnings others have sent.
TEST_F(ApiTest, KeysShareThePrefixCacheUnlessTheyAreNotTo) {
  for (const bool apart : {false, true}) {
    ServerOptions options = make_options();
    options.api_keys = {"one", "two"};
    options.prefix_cache_per_key = apart;
    FakeEngine engine;
    Api api(engine, options);
    const auto space_of = [&](const std::string& key, const std::string& salt) {
      HttpRequest request = post(kTextPath, json{{"prompt", "x"}, {"cache_salt", salt}}.dump());
      request.authorization = "Bearer " + key;
      EXPECT_EQ(answer(api, request).response->status, 200);
      return engine.submitted().back().cache_namespace;
    };
    EXPECT_EQ(space_of("one", "") == space_of("two", ""), !apart);
    EXPECT_EQ(space_of("one", "a") == space_of("two", "a"), !apart);
    EXPECT_EQ(space_of("one", "a"), space_of("one", "a"));
    EXPECT_NE(space_of("one", "a"), space_of("one", "b"));
    if (apart) EXPECT_NE(space_of("one", space_of("two", "")), space_of("two", "")) << "a salt names nobody else's";
  }
  ServerOptions options = make_options();
  options.prefix_cache_per_key = true;
  FakeEngine engine;
  Api api(engine, options);
  for (const char* address : {"192.0.2.1", "192.0.2.2"}) {
    HttpRequest request = post(kTextPath, R"({"prompt": "x"})");
    request.client = address;
    answer(api, request);
  }
  EXPECT_NE(engine.submitted()[0].cache_namespace, engine.submitted()[1].cache_namespace);
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

TEST_F(ApiTest, ALoggedPromptSteersNoTerminal) {
  const std::string prompt = "a\x7f\u009b31m\u202e\u2028\u200b\ufeff\U000E0041ü\r\nb";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    std::ostringstream text;
    ServerOptions options = make_options();
    options.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
    options.log->set_pattern("%v");
    const ServerLog log(options.log, format);
    log.prompt("id-7", prompt);
    const std::string line = text.str();
    for (const char* part : {"\x7f", "\u009b", "\u202e", "\u2028", "\u200b", "\ufeff", "\U000E0041", "\r"}) {
      EXPECT_EQ(line.find(part), std::string::npos) << line;
    }
    ASSERT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_NE(line.find("ü"), std::string::npos) << line;
    const json logged = json::parse(line.substr(line.find(format == LogFormat::kText ? '"' : '{')));
    EXPECT_EQ(format == LogFormat::kText ? logged : logged.at("prompt"), prompt)
        << "whoever reads the JSON gets it back";
  }
}

}  // namespace
}  // namespace volley::serve
