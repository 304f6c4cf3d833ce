// Protects the operator's lines: the start line has all that decides how the server works, and a load line has the
// figures of its own time.
#include "apps/load_log.h"

#include <gtest/gtest.h>

#include "serve/testing/fake_engine.h"

namespace volley::apps {
namespace {

TEST(LoadLog, TheStartSaysWhatServesWhere) {
  EngineInfo info;
  info.device = "cuda:0";
  info.dtype = "bfloat16";
  info.block_size = 16;
  info.page_size = 64;
  info.kv_pages = 1000;
  info.kv_bytes = 9'600'000'000;
  info.max_num_seqs = 128;
  EXPECT_EQ(
      start_line(info, {"qwen", "qwen-dflash", "http://h:1", 2}),
      "Serving qwen on cuda:0 at http://h:1 (API and page): bfloat16, drafter qwen-dflash in blocks of 16, 8.9 GiB "
      "of KV memory for 64000 tokens, 128 requests at once, requests that do not say get temperature 1 over all "
      "tokens, 2 API keys");
  info.kv_pages = 10;
  info.kv_bytes = 96'000'000;
  const std::string plain = start_line(info, {"qwen", "", "http://h:1", 0});
  EXPECT_NE(plain.find("bfloat16, no drafter, 92 MiB of KV memory for 640 tokens"), std::string::npos) << plain;
  EXPECT_TRUE(plain.ends_with("no API key needed")) << plain;
}

TEST(LoadLog, TheStartSaysWhatEndsAnswers) {
  const auto spelled = [](TokenId id) { return id == 7 ? std::string() : "<" + std::to_string(id) + ">"; };
  const auto text = [&](std::vector<TokenId> ids) { return ends_text(ids, spelled); };
  EXPECT_EQ(text({}), "no token");
  EXPECT_EQ(text({2}), "<2> (2)");
  EXPECT_EQ(text({2, 0}), "<2> (2) and <0> (0)");
  EXPECT_EQ(text({2, 7, 5}), "<2> (2), id 7 and <5> (5)") << "without a tokenizer there is no spelling";
  const std::string line = start_line({}, {"qwen", "", "http://h:1", 0, "<2> (2)"});
  EXPECT_NE(line.find("at once, answers end with <2> (2), requests"), std::string::npos) << line;
}

TEST(LoadLog, AgentsGetTheServersAddressAndName) {
  EXPECT_EQ(agents_text({"qwen", "", "http://h:1", 1}),
            "Coding agents: ANTHROPIC_BASE_URL=http://h:1 ANTHROPIC_AUTH_TOKEN=$KEY ANTHROPIC_MODEL=qwen "
            "ANTHROPIC_DEFAULT_HAIKU_MODEL=qwen claude\n"
            "               OPENAI_API_BASE=http://h:1/v1 OPENAI_API_KEY=$KEY aider --model openai/qwen\n"
            "               Others: docs/agents.md");
  EXPECT_NE(agents_text({"qwen", "", "http://h:1", 0}).find("ANTHROPIC_AUTH_TOKEN=none "), std::string::npos);
}

TEST(LoadLog, TheStartSaysHowRequestsAreSampledThatDoNotSay) {
  EngineInfo info;
  const auto line = [&info](std::optional<SamplingParams> chat) {
    return start_line(info, {"m", "", "http://h:1", 0, {}, std::move(chat)});
  };
  EXPECT_NE(line(SamplingParams{.temperature = 0.7f, .top_p = 0.95f})
                .find("do not say get temperature 1 over all tokens as the model's makers name nothing (the page and "
                      "volley chat ask for temperature 0.7, top_p 0.95), no API"),
            std::string::npos);
  info.default_sampling = {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20, .repetition_penalty = 1.1f};
  EXPECT_NE(line({}).find("get temperature 0.6, top_p 0.95, top_k 20, repetition_penalty 1.1, no API"),
            std::string::npos)
      << line({});
  info.default_sampling.temperature = 0;
  EXPECT_NE(line({}).find("do not say get the likeliest tokens, no API"), std::string::npos) << line({});
}

TEST(LoadLog, TheLoadIsThatOfItsTime) {
  EngineStats before, now;
  before.generated_tokens = 1000;
  before.prompt_tokens = 50;
  before.drafted_tokens = 900;
  before.accepted_tokens = 100;
  before.verify_steps = 500;
  now = before;
  EXPECT_EQ(load_line(before, now, 10), "") << "nothing runs";
  now.generated_tokens += 4000;
  now.prompt_tokens += 1000;
  now.drafted_tokens += 4000;
  now.accepted_tokens += 3000;
  now.verify_steps += 1000;
  now.requests_running = 7;
  now.requests_waiting = 2;
  now.pages_total = 200;
  now.pages_used = 90;
  now.pages_cached = 30;
  EXPECT_EQ(
      load_line(before, now, 10),
      "400.0 tok/s and 100.0 of prompts, 7 running, 2 waiting, KV 45 % (15 % cached prefixes alone), 4.00 tokens a "
      "step, 75 % of the drafted accepted");
  now.drafted_tokens = before.drafted_tokens;
  EXPECT_TRUE(load_line(before, now, 10).ends_with("alone)")) << "plain decoding";
  EngineStats stuck;
  stuck.requests_waiting = 1;
  EXPECT_NE(load_line(stuck, stuck, 10), "") << "who waits without an end is seen";
}

// Logs lines while requests run and none before; the thread ends with the log.
TEST(LoadLog, SpeaksWhileThereIsWork) {
  serve::FakeEngine engine([](const GenerateRequest&) { return serve::FakeScript{.endless = true}; });
  std::mutex mutex;
  std::condition_variable said;
  std::vector<std::string> lines;
  {
    const LoadLog log(engine, std::chrono::milliseconds(5), [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
      said.notify_all();
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(lines.empty());
    }
    GenerateRequest request;
    request.prompt = {1};
    const auto id = engine.submit(request, [](const Event&) {});
    ASSERT_TRUE(id.ok());
    std::unique_lock lock(mutex);
    ASSERT_TRUE(said.wait_for(lock, std::chrono::seconds(300), [&] { return !lines.empty(); }));
    EXPECT_NE(lines.front().find("1 running"), std::string::npos) << lines.front();
    lock.unlock();
    engine.cancel(*id);
  }
}

}  // namespace
}  // namespace volley::apps
