// Batches on a scripted engine: every line gets its result, failing lines too, and a second run adds the rest.
#include "apps/batch/batch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/batch/progress.h"
#include "apps/exit_codes.h"
#include "base/temp_folder_for_test.h"
#include "serve/testing/fake_engine.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using serve::FakeEngine;

std::string line_of(const std::string& id, const Json& body, const std::string& url = "/v1/completions") {
  return Json{{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", body}}.dump() + "\n";
}

class BatchTest : public testing::Test {
 protected:
  BatchTest() {
    command_.input = (folder_ / "in.jsonl").string();
    command_.output = (folder_ / "out.jsonl").string();
    command_.concurrency = 4;
  }

  int run(FakeEngine& engine) {
    InterruptWatch interrupt;
    auto files = open_batch(command_);
    if (!files.ok()) {
      errors_ = files.error().message;
      return kExitUsage;
    }
    testing::internal::CaptureStderr();
    const int status = answer_batch(engine, command_, {"pocket"}, &files.value(), device_, &interrupt, &console_);
    errors_ = testing::internal::GetCapturedStderr();
    return status;
  }
  void write_input(const std::string& text) { std::ofstream(command_.input) << text; }
  // By custom_id; checks that no id comes twice.
  std::map<std::string, Json> results() const {
    std::map<std::string, Json> found;
    std::ifstream file(command_.output);
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      EXPECT_TRUE(found.emplace(json["custom_id"], json).second) << line;
    }
    return found;
  }

  const TempFolder folder_;
  BatchCommand command_;
  Console console_;
  DeviceFailure device_{&console_};
  std::string errors_;
};

TEST_F(BatchTest, EveryLineGetsOneResult) {
  std::string input;
  for (int i = 0; i < 40; ++i) input += line_of("r" + std::to_string(i), {{"prompt", "x"}, {"model", "pocket"}});
  input +=
      line_of("chat", {{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}}, "/v1/chat/completions");
  write_input(input);
  FakeEngine engine;
  EXPECT_EQ(run(engine), kExitOk) << errors_;
  const auto found = results();
  ASSERT_EQ(found.size(), 41u);
  EXPECT_EQ(found.at("r7")["response"]["body"]["choices"][0]["text"], "Hello world");
  EXPECT_EQ(found.at("chat")["response"]["body"]["choices"][0]["message"]["content"], "Hello world");
  EXPECT_NE(found.at("r7")["id"], found.at("r8")["id"]);
  EXPECT_NE(errors_.find("41 of 41 lines"), std::string::npos) << errors_;
}

TEST_F(BatchTest, ALineThatFailsFailsAlone) {
  write_input(line_of("good", {{"prompt", "x"}}) + line_of("field", {{"prompt", "x"}, {"temperature", "hot"}}) +
              line_of("model", {{"prompt", "x"}, {"model", "other"}}) + line_of("url", Json::object(), "/metrics") +
              line_of("stream", {{"prompt", "x"}, {"stream", true}}));
  FakeEngine engine;
  EXPECT_EQ(run(engine), kExitRequestsFailed);
  const auto found = results();
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found.at("good")["response"]["status_code"], 200);
  EXPECT_EQ(found.at("field")["response"]["status_code"], 400);
  EXPECT_EQ(found.at("field")["response"]["body"]["error"]["param"], "temperature");
  EXPECT_EQ(found.at("model")["response"]["status_code"], 404);
  EXPECT_EQ(found.at("url")["error"]["code"], "unsupported_url");
  EXPECT_EQ(found.at("stream")["error"]["code"], "unsupported_parameter");
  EXPECT_NE(errors_.find("4 of them failed"), std::string::npos) << errors_;
}

TEST_F(BatchTest, ASecondRunAnswersOnlyWhatIsMissing) {
  std::string input;
  for (int i = 0; i < 10; ++i) input += line_of("r" + std::to_string(i), {{"prompt", "x"}});
  write_input(input);
  {
    FakeEngine engine;
    ASSERT_EQ(run(engine), kExitOk);
  }
  std::vector<std::string> lines;
  {
    std::ifstream file(command_.output);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
  }
  ASSERT_EQ(lines.size(), 10u);
  // Imitates a run that was killed in the middle of its seventh line.
  std::ofstream torn(command_.output);
  for (int i = 0; i < 6; ++i) torn << lines[static_cast<size_t>(i)] << '\n';
  torn << lines[6].substr(0, lines[6].size() / 2);
  torn.close();
  FakeEngine engine;
  EXPECT_EQ(run(engine), kExitOk) << errors_;
  EXPECT_EQ(engine.submitted().size(), 4u);
  EXPECT_EQ(results().size(), 10u);
}

TEST_F(BatchTest, WhatTheEngineNeverHasRoomForIsAFailedLine) {
  std::string input;
  for (int i = 0; i < 6; ++i) input += line_of("r" + std::to_string(i), {{"prompt", "x"}, {"n", 2}});
  write_input(input);
  FakeEngine engine({}, std::chrono::milliseconds(5));
  engine.refuse_submits(resource_exhausted("The queue is full."), 2);
  // The engine accepts only the first line. A line that can never have room fails.
  EXPECT_EQ(run(engine), kExitRequestsFailed);
  const auto found = results();
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found.at("r0")["response"]["status_code"], 200);
  for (int i = 1; i < 6; ++i) EXPECT_EQ(found.at("r" + std::to_string(i))["response"]["status_code"], 429);
}

TEST_F(BatchTest, AnOutputOfAnotherInputIsRefused) {
  write_input(line_of("a", {{"prompt", "x"}}));
  std::ofstream(command_.output) << R"({"custom_id": "b", "response": {"status_code": 200}})" << '\n';
  FakeEngine engine;
  EXPECT_EQ(run(engine), kExitUsage);
  EXPECT_NE(errors_.find("\"b\""), std::string::npos) << errors_;
  std::ofstream(command_.output) << "damaged\n";
  EXPECT_EQ(run(engine), kExitUsage);
  EXPECT_NE(errors_.find("line 1 is damaged"), std::string::npos) << errors_;
}

TEST(BatchProgress, DurationsReadWell) {
  EXPECT_EQ(describe_duration(0.2), "1 s");
  EXPECT_EQ(describe_duration(200), "3 min 20 s");
  EXPECT_EQ(describe_duration(7500), "2 h 05 min");
}

}  // namespace
}  // namespace volley::apps
