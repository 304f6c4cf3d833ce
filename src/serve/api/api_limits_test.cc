// Protects a request's limits: time, memory, queue, and unread answers.
#include "serve/api/api_for_test.h"

namespace volley::serve {
namespace {

// A prompt of megabytes must not occupy a thread until all of it is tokenised, only to be refused.
TEST_F(ApiTest, OfAPromptThatIsFarTooLongTheBeginningIsRead) {
  engine_.mutable_info().max_model_len = 100;
  const auto ask = [&](const std::string& prompt, const std::string& more) {
    return answer(post(kTextPath, json{{"prompt", prompt}}.dump().insert(1, more)));
  };
  for (const char* letter : {"x", "é", "日", "🙂"}) {
    std::string prompt;
    while (prompt.size() < 1'000'000) prompt += letter;
    const Answer refused = ask("a" + prompt, "");
    ASSERT_EQ(refused.response->status, 400);
    EXPECT_EQ(refused.body().at("error").at("code"), "context_length_exceeded");
    EXPECT_EQ(refused.body().at("error").at("param"), "prompt");
  }
  EXPECT_LE(engine_.longest_encoded(), 100u * 16);
  EXPECT_EQ(ask(std::string(size_t{64} * 60, ' '), "").response->status, 200) << "long, but of 60 tokens";
  EXPECT_EQ(ask(std::string(1'000'000, 'x'), R"("truncate_prompt_tokens": 50, )").response->status, 200);
  EXPECT_EQ(engine_.submitted().back().prompt.size(), 50u);
}

TEST_F(ApiTest, AFullQueueIsA429) {
  engine_.refuse_submits(resource_exhausted("the queue is full; try again"));
  const Answer result = answer(post(kTextPath, R"({"prompt": "x", "n": 4, "stream": true})"));
  EXPECT_EQ(result.response->status, 429);
  EXPECT_EQ(result.response->headers.at(0).first, "Retry-After");
  EXPECT_EQ(result.body().at("error").at("code"), "rate_limit_exceeded");
}

// Memory that runs out at work is not the client's fault.
TEST_F(ApiTest, MemoryThatRunsOutIsA503) {
  FakeEngine engine([](const GenerateRequest&) {
    return FakeScript{.pieces = {},
                      .reason = FinishReason::kError,
                      .error = resource_exhausted("there is no memory for the penalties' counts")};
  });
  Api api(engine, make_options());
  const Answer result = answer(api, post(kTextPath, R"({"prompt": "x"})"));
  EXPECT_EQ(result.response->status, 503);
  EXPECT_EQ(result.response->headers.at(0).first, "Retry-After");
  EXPECT_EQ(result.body().at("error").at("type"), "server_error");
  EXPECT_EQ(result.body().at("error").at("code"), "unavailable");
}

// A stream whose reader may leave 5000 bytes unread.
class SlowReader : public ApiTest {
 protected:
  void ask(FakeScript script) {
    slow_engine_.emplace([script](const GenerateRequest&) { return script; });
    slow_api_.emplace(*slow_engine_, with(&ServerOptions::max_unsent_bytes, 5000));
    auto reply = slow_api_->handle(post(kTextPath, R"({"prompt": "x", "stream": true})"), [] {});
    generation_ = std::get<std::shared_ptr<Generation>>(std::move(reply));
  }

  std::optional<FakeEngine> slow_engine_;
  std::optional<Api> slow_api_;
  std::shared_ptr<Generation> generation_;
};

TEST_F(SlowReader, ThatNeverTakesIsCancelled) {
  ask({.endless = true});
  EXPECT_TRUE(eventually([&] { return slow_engine_->cancelled() == 1; }));
  const auto output = generation_->take();
  EXPECT_TRUE(output.done);
  EXPECT_LT(output.events.size(), 10000u);
  const auto events = stream_events(output.events);
  ASSERT_GE(events.size(), 2u);
  EXPECT_NE(events[events.size() - 2].find("too slowly"), std::string::npos);
}

// If the last event has no room, its text is lost, and the answer must not look complete.
TEST_F(SlowReader, WithoutRoomForTheLastEventGetsAnError) {
  ask({.pieces = {std::string(6000, 'x')}, .at_once = true});
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

// A request's wait for a thread counts.
TEST_F(ApiTest, ATimeoutBeginsWhenTheRequestIsThere) {
  for (const auto& [waited, least, most] : {std::tuple{2s, 1.0, 3.0}, {60s, 1e-9, 1e-9}}) {
    HttpRequest request = post(kTextPath, R"({"prompt": "a", "timeout": 5})");
    request.arrived = std::chrono::steady_clock::now() - waited;
    answer(request);
    EXPECT_GE(engine_.submitted().back().timeout_s, least);
    EXPECT_LE(engine_.submitted().back().timeout_s, most);
  }
}

// A timeout shortens an answer as a length does. An empty answer becomes an error.
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

// A list of prompts makes hundreds of bytes of log-probabilities for each byte sent.
TEST_F(ApiTest, AnAnswerThatIsSureToBeTooLargeIsRefusedAtOnce) {
  FakeEngine engine;
  Api api(engine, with(&ServerOptions::max_response_bytes, 50'000));
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
  FakeEngine engine(
      [](const GenerateRequest&) { return FakeScript{.pieces = {std::string(1000, 'w')}, .endless = true}; });
  Api api(engine, with(&ServerOptions::max_response_bytes, 100'000));
  const Answer result = answer(api, post(kTextPath, R"({"prompt": "x"})"));
  ASSERT_TRUE(result.response);
  EXPECT_EQ(result.response->status, 400);
  EXPECT_EQ(result.body().at("error").at("code"), "response_too_large");
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
}

// A thousand choices must not copy something large a thousand times.
TEST_F(ApiTest, WhatEachChoiceCopiesIsBounded) {
  const json schema = {{"type", "object"}, {"description", std::string(3'000'000, 'd')}};
  const json body = {{"prompt", "x"}, {"n", 128}, {"guided_json", schema}};
  const Answer result = answer(post(kTextPath, body.dump()));
  EXPECT_EQ(result.response.value().status, 400);
  EXPECT_EQ(result.body().at("error").at("param"), "n");
  EXPECT_TRUE(engine_.submitted().empty());
  const json stop = {{"prompt", "x"}, {"stop", std::string(1025, 's')}};
  EXPECT_EQ(answer(post(kTextPath, stop.dump())).body().at("error").at("param"), "stop");
  const json salt = {{"prompt", "x"}, {"cache_salt", std::string(1025, 's')}};
  EXPECT_EQ(answer(post(kTextPath, salt.dump())).body().at("error").at("param"), "cache_salt");
}

TEST_F(ApiTest, AnAnswerThatTakesTooLongIsA504) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.endless = true}; });
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

}  // namespace
}  // namespace volley::serve
