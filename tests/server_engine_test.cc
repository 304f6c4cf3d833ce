// The server on the real engine: clients read exactly the engine's output, clients that vanish cost nothing, and
// draining lets running answers end.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness.h"
#include "serve/testing/client.h"
#include "serve/testing/server_helpers.h"

namespace volley::testing {
namespace {

using nlohmann::json;

class ServerOnEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options = pocket_options();
    options.max_model_len = 512;
    options.max_num_seqs = 16;
    engine_ = make_engine(options);
    server_ = serve::start_server(*engine_);
  }

  static std::string chat_body(const std::string& message, int max_tokens, bool stream) {
    return json{{"messages", {{{"role", "user"}, {"content", message}}}},
                {"max_tokens", max_tokens},
                {"temperature", 0},
                {"stream", stream}}
        .dump();
  }

  static std::string streamed_text(const std::string& body) {
    std::string text;
    for (const std::string& event : serve::stream_events(body)) {
      if (event == "[DONE]") continue;
      const json chunk = json::parse(event);
      for (const auto& choice : chunk.at("choices")) text += choice.at("delta").value("content", "");
    }
    return text;
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<serve::Server> server_;
};

TEST_F(ServerOnEngine, ManyStreamsReadWhatTheEngineSays) {
  const auto cases = read_prompts("mixed_prompts.jsonl");
  const int n = kSanitized ? 8 : 48;
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < n; ++i) requests.push_back(chat_request(*engine_, cases[i].prompt, 120));
  const auto expected = run_all(*engine_, std::move(requests), 8);
  std::vector<std::string> got(n);
  std::vector<std::thread> clients;
  for (int i = 0; i < n; ++i) {
    clients.emplace_back([&, i] {
      serve::Client client(server_->port());
      const bool stream = i % 2 == 0;
      const auto response = client.post("/v1/chat/completions", chat_body(cases[i].prompt, 120, stream));
      if (!response || response.status != 200) return;
      got[i] = stream ? streamed_text(response.body)
                      : json::parse(response.body).at("choices")[0].at("message").at("content").get<std::string>();
    });
  }
  for (auto& client : clients) client.join();
  for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], expected[i].text) << i;
}

// Linear attention and experts in FP8, as they are published: listed like any other, and answered as by the engine.
TEST(ServerOnHybrid, AnFp8CheckpointIsListedAndAnswers) {
  EngineOptions options = pocket_options();
  options.model_dir = "tests/data/quantised/fp8_next";
  options.draft_dir.clear();
  options.speculation = Speculation::kOff;
  options.skip_tokenizer = true;
  options.max_model_len = 0;
  const auto engine = make_engine(options);
  EXPECT_EQ(engine->info().quantization, "fp8");
  GenerateRequest request;
  request.prompt = {5, 9, 2, 33, 61, 7};
  request.max_tokens = 12;
  request.ignore_eos = true;
  request.sampling.temperature = 0;
  const auto expected = run_all(*engine, {request}, 1)[0].tokens;
  serve::ServerOptions server_options = serve::make_options();
  server_options.served_model_names = {"coder"};
  const auto server = serve::start_server(*engine, server_options);
  serve::Client client(server->port());
  const auto listed = client.get("/v1/models");
  const json card = json::parse(listed.body).at("data").at(0);
  EXPECT_EQ(card.at("id"), "coder");
  EXPECT_EQ(card.at("max_model_len"), 256);
  const json body = {{"prompt", request.prompt},
                     {"max_tokens", 12},
                     {"ignore_eos", true},
                     {"temperature", 0},
                     {"return_token_ids", true}};
  const auto answered = client.post("/v1/completions", body.dump());
  ASSERT_EQ(answered.status, 200) << answered.body;
  EXPECT_EQ(json::parse(answered.body).at("choices").at(0).at("token_ids"), json(expected));
}

TEST_F(ServerOnEngine, ClientsThatVanishGiveTheirSlotsAndPagesBack) {
  for (int i = 0; i < 12; ++i) {
    serve::Client client(server_->port());
    json body = json::parse(chat_body("Tell me a story about a dog and a ladder.", 400, true));
    body["ignore_eos"] = true;
    ASSERT_TRUE(client.send(serve::Client::post_text("/v1/chat/completions", body.dump())));
    ASSERT_TRUE(client.wait_for("data: "));
    client.close();
  }
  EngineStats stats;
  for (int i = 0; i < 30'000; ++i) {
    stats = engine_->stats();
    if (stats.requests_running + stats.requests_waiting == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
  EXPECT_EQ(stats.pages_used, stats.pages_cached);
}

TEST_F(ServerOnEngine, DrainingLetsAnswersEnd) {
  serve::Client client(server_->port());
  ASSERT_TRUE(client.send(serve::Client::post_text("/v1/chat/completions", chat_body("Who are you?", 60, true))));
  ASSERT_TRUE(client.wait_for("data: "));
  server_->drain(std::chrono::seconds(600));
  const auto response = client.receive();
  EXPECT_NE(response.body.find("[DONE]"), std::string::npos);
  server_->wait();
}

// Each of these is refused with OpenAI's error object, and the next request is served as if nothing had happened.
TEST_F(ServerOnEngine, BadRequestsLeaveLaterOnesAlone) {
  const std::vector<std::pair<std::string, int>> bad = {
      {"{", 400},
      {"\"\xff\"", 400},
      {R"({"messages": []})", 400},
      {R"({"messages": [{"role": "user", "content": "a"}], "temperature": -1})", 400},
      {R"({"messages": [{"role": "user", "content": "a"}], "temperature": 1e999})", 400},
      {R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0})", 400},
      {R"({"messages": [{"role": "user", "content": "a"}], "stop": ""})", 400},
      {R"({"messages": [{"role": "user", "content": "a"}], "model": "gpt-9"})", 404},
      {R"({"messages": [{"role": "user", "content": "a"}], "logit_bias": {"99999": 1}})", 400},
      {R"({"messages": [{"role": "user", "content": ")" + std::string(20'000, 'x') + R"("}]})", 400},
  };
  for (const auto& [body, status] : bad) {
    serve::Client client(server_->port());
    const auto response = client.post("/v1/chat/completions", body);
    EXPECT_EQ(response.status, status) << body.substr(0, 90) << " gave " << response.body;
    EXPECT_FALSE(json::parse(response.body).at("error").at("message").get<std::string>().empty());
  }
  serve::Client client(server_->port());
  EXPECT_EQ(client.post("/v1/chat/completions", chat_body("Who are you?", 60, false)).status, 200);
}

}  // namespace
}  // namespace volley::testing
