// The load generator against Volley's own server with a scripted engine: figures, errors, and what it asks for.
#include "apps/bench/serving/serving.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/exit_codes.h"
#include "serve/testing/server_helpers.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using serve::FakeEngine;
using serve::FakeScript;

class ServingTest : public testing::Test {
 protected:
  ServingTest() {
    fs::create_directories(folder_);
    command_.dataset = (folder_ / "data.jsonl").string();
    command_.output = (folder_ / "out.json").string();
    command_.plot = (folder_ / "out.svg").string();
    command_.concurrency = {3};
    command_.num_prompts = 10;
    command_.timeout_s = 30;
    std::ofstream data(command_.dataset);
    for (int i = 0; i < 10; ++i) {
      data << Json{{"prompt", "p" + std::to_string(i)}, {"expected", i < 5 ? "Hello world" : "no"}}.dump() << '\n';
    }
  }
  ~ServingTest() override { fs::remove_all(folder_); }

  // With the server's address in the command, unless there is one.
  int run(FakeEngine* engine) {
    const auto server = serve::start_server(*engine);
    if (command_.url.empty()) command_.url = "http://127.0.0.1:" + std::to_string(server->port());
    return run();
  }
  int run() {
    InterruptWatch interrupt;
    Console console;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int status = run_bench_serving(command_, &interrupt, &console);
    errors_ = testing::internal::GetCapturedStderr();
    table_ = testing::internal::GetCapturedStdout();
    return status;
  }
  Json report() const {
    std::ifstream file(*command_.output);
    return Json::parse(file);
  }

  const fs::path folder_ = fs::temp_directory_path() / ("volley_serving_" + std::to_string(getpid()));
  BenchServingCommand command_;
  std::string table_, errors_;
};

TEST_F(ServingTest, MeasuresEachRequestOnce) {
  FakeEngine engine;
  ASSERT_EQ(run(&engine), kExitOk) << errors_ << table_;
  const Json json = report();
  EXPECT_EQ(json["model"], "pocket");
  EXPECT_EQ(json["endpoint"], "chat");
  EXPECT_EQ(json["settings"]["temperature"], 0.0);
  ASSERT_EQ(json["rows"].size(), 1u);
  const Json& row = json["rows"][0];
  EXPECT_EQ(row["requests"], 10);
  EXPECT_EQ(row["errors"], 0);
  EXPECT_EQ(row["completion_tokens"], 10 * 11);
  EXPECT_EQ(row["judged"], 10);
  EXPECT_EQ(row["right"], 5);
  EXPECT_GT(row["ttft_ms"]["p50"], 0);
  EXPECT_LE(row["ttft_ms"]["p50"], row["e2e_ms"]["p50"]);
  EXPECT_NE(table_.find("50.0%"), std::string::npos) << table_;
  EXPECT_EQ(engine.submitted().size(), 13u) << "with a warm-up as large as the concurrency";
  EXPECT_TRUE(fs::file_size(*command_.plot) > 500);
}

TEST_F(ServingTest, ASweepAsksForBothAndCompares) {
  command_.sweep = true;
  command_.warmup = 0;
  FakeEngine engine([](const GenerateRequest& request) {
    FakeScript script;
    if (request.speculation) script.drafted_tokens = 14, script.accepted_tokens = 8;
    return script;
  });
  ASSERT_EQ(run(&engine), kExitOk) << errors_ << table_;
  const auto submitted = engine.submitted();
  ASSERT_EQ(submitted.size(), 20u);
  EXPECT_FALSE(submitted.front().speculation);
  EXPECT_TRUE(submitted.back().speculation);
  EXPECT_NE(submitted.front().cache_namespace, submitted.back().cache_namespace)
      << "the second measurement must not find the first one's prefixes";
  const Json rows = report()["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["speculation"], false);
  EXPECT_EQ(rows[1]["speculation"], true);
  EXPECT_TRUE(rows[1]["speedup"].is_number());
  EXPECT_EQ(rows[1]["same_text"], (Json{{"same", 10}, {"compared", 10}}));
}

TEST_F(ServingTest, ASwitchThatDoesNothingIsNoBaseline) {
  command_.sweep = true;
  FakeEngine engine([](const GenerateRequest&) {
    FakeScript script;
    script.drafted_tokens = 14;
    return script;
  });
  ASSERT_EQ(run(&engine), kExitOk);
  const Json rows = report()["rows"];
  EXPECT_NE(rows[0]["note"].get<std::string>().find("140"), std::string::npos) << rows[0];
  EXPECT_TRUE(rows[1]["speedup"].is_null());
}

TEST_F(ServingTest, ErrorsAreCountedAndNamed) {
  FakeEngine engine([](const GenerateRequest& request) {
    FakeScript script;
    if (request.prompt.size() % 2 == 0) return script;
    script.reason = FinishReason::kError;
    script.error = internal_error("It broke.");
    return script;
  });
  engine.refuse_submits(resource_exhausted("The queue is full."), 8);
  command_.warmup = 0;
  EXPECT_EQ(run(&engine), kExitRequestsFailed);
  const Json row = report()["rows"][0];
  EXPECT_GE(row["errors"], 2);
  EXPECT_EQ(row["requests"], 10);
  EXPECT_NE(table_.find("The queue is full."), std::string::npos) << table_;
}

TEST_F(ServingTest, AtARate) {
  command_.concurrency.clear();
  command_.request_rates = {500};
  command_.warmup = 0;
  FakeEngine engine;
  ASSERT_EQ(run(&engine), kExitOk) << errors_;
  EXPECT_EQ(report()["rows"][0]["request_rate"], 500.0);
  EXPECT_EQ(report()["rows"][0]["requests"], 10);
}

TEST_F(ServingTest, WhatCannotBeMeasuredSaysWhy) {
  command_.url = "http://127.0.0.1:1";
  EXPECT_EQ(run(), kExitUsage);
  EXPECT_NE(errors_.find("does not answer"), std::string::npos) << errors_;
  command_.url = "localhost";
  EXPECT_EQ(run(), kExitUsage);
  EXPECT_NE(errors_.find("http://HOST:PORT"), std::string::npos) << errors_;
  command_.url.clear();
  command_.model = "other";
  FakeEngine engine;
  EXPECT_EQ(run(&engine), kExitUsage);
  EXPECT_NE(errors_.find("other"), std::string::npos) << errors_;
}

}  // namespace
}  // namespace volley::apps
