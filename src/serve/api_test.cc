// Protects the endpoints from HTTP request to HTTP response, without sockets: prompts, lengths, choices, failures.
#include "serve/api.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <condition_variable>
#include <nlohmann/json.hpp>
#include <sstream>

#include "serve/testing/client.h"
#include "serve/testing/fake_engine.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

class ApiTest : public ::testing::Test {
 protected:
  static ServerOptions make_options() {
    ServerOptions options;
    options.served_model_names = {"pocket", "org/alias"};
    return options;
  }

  struct Answer {
    std::optional<HttpResponse> response;
    std::string events;
    json body() const { return json::parse(response.value().body); }
  };

  static HttpRequest post(const std::string& path, const std::string& body) {
    return {"POST", path, "application/json", body};
  }

  // Takes until the end, as a connection does.
  Answer answer(Api& api, const HttpRequest& request) {
    std::mutex mutex;
    std::condition_variable changed;
    bool awake = false;
    auto reply = api.handle(request, [&] {
      const std::lock_guard lock(mutex);
      awake = true;
      changed.notify_all();
    });
    Answer result;
    if (auto* response = std::get_if<HttpResponse>(&reply)) {
      result.response = std::move(*response);
      return result;
    }
    const auto generation = std::get<std::shared_ptr<Generation>>(std::move(reply));
    while (true) {
      Generation::Output output = generation->take();
      result.events += output.events;
      if (output.response) result.response = std::move(output.response);
      if (output.done) break;
      std::unique_lock lock(mutex);
      if (!changed.wait_for(lock, 5s, [&] { return awake; })) {
        ADD_FAILURE() << "no news from the engine";
        break;
      }
      awake = false;
    }
    generation->abandon();  // the wake above refers to this frame
    return result;
  }

  static bool eventually(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 8s;
    while (std::chrono::steady_clock::now() < deadline) {
      if (condition()) return true;
      std::this_thread::sleep_for(2ms);
    }
    return false;
  }
};

const char* kChatPath = "/v1/chat/completions";
const char* kTextPath = "/v1/completions";

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
  EXPECT_EQ(engine.submitted().size(), 2u);
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

TEST_F(ApiTest, AReaderThatNeverTakesIsCancelled) {
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.endless = true;
    return script;
  });
  ServerOptions options = make_options();
  options.max_unsent_bytes = 5000;
  Api api(engine, options);
  auto reply = api.handle(post(kTextPath, R"({"prompt": "x", "stream": true})"), [] {});
  auto generation = std::get<std::shared_ptr<Generation>>(std::move(reply));
  EXPECT_TRUE(eventually([&] { return engine.cancelled() == 1; }));
  const auto output = generation->take();
  EXPECT_TRUE(output.done);
  EXPECT_LT(output.events.size(), 10000u);
  const auto events = stream_events(output.events);
  ASSERT_GE(events.size(), 2u);
  EXPECT_NE(events[events.size() - 2].find("too slowly"), std::string::npos);
}

TEST_F(ApiTest, ListsModels) {
  FakeEngine engine;
  Api api(engine, make_options());
  const json list = answer(api, {"GET", "/v1/models", "", ""}).body();
  EXPECT_EQ(list.at("object"), "list");
  ASSERT_EQ(list.at("data").size(), 2u);
  EXPECT_EQ(list.at("data").at(1).at("id"), "org/alias");
  EXPECT_EQ(list.at("data").at(1).at("object"), "model");
  EXPECT_EQ(list.at("data").at(1).at("max_model_len"), 4096);
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

}  // namespace
}  // namespace volley::serve
