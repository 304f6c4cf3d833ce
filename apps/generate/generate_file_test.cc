// A file of requests on a scripted engine: order, errors of single lines, interruption.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/exit_codes.h"
#include "apps/generate/generate.h"
#include "base/temp_folder_for_test.h"
#include "serve/testing/fake_engine.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using serve::FakeEngine;
using serve::FakeScript;

// Answers as many pieces as the prompt has tokens, so that prompts decide how long requests run.
FakeScript by_length(const GenerateRequest& request) {
  return FakeScript{.pieces = std::vector<std::string>(request.prompt.size(), "x")};
}

class GenerateFileTest : public testing::Test {
 protected:
  // Runs `input` and reads the output back, one JSON object a line.
  int run(const std::string& input, int concurrency, FakeEngine::Writer writer) {
    GenerateCommand command;
    command.input = (folder_ / "in.jsonl").string();
    command.output = (folder_ / "out.jsonl").string();
    command.concurrency = concurrency;
    std::ofstream(*command.input) << input;
    InterruptWatch interrupt;
    FakeEngine engine(std::move(writer));
    auto files = open_files(command);
    EXPECT_TRUE(files.ok());
    testing::internal::CaptureStderr();
    const int status = generate_file(engine, command, &files.value(), &interrupt, &console_);
    errors_ = testing::internal::GetCapturedStderr();
    std::ifstream output(*command.output);
    for (std::string line; std::getline(output, line);) lines_.push_back(nlohmann::json::parse(line));
    return status;
  }

  const TempFolder folder_;
  Console console_;
  std::string errors_;
  std::vector<nlohmann::json> lines_;
};

TEST_F(GenerateFileTest, AnswersComeInTheOrderOfTheLines) {
  std::string input;
  for (int i = 0; i < 60; ++i) {
    nlohmann::json line = {{"id", i}, {"prompt_ids", std::vector<int>(1 + (i * 37) % 50, 5)}};
    input += line.dump() + "\n";
  }
  EXPECT_EQ(run(input, 16, by_length), kExitOk) << errors_;
  ASSERT_EQ(lines_.size(), 60u);
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(lines_[i]["id"], i);
    EXPECT_EQ(lines_[i]["text"].get<std::string>().size(), 1u + (i * 37) % 50);
    EXPECT_EQ(lines_[i]["prompt_tokens"], 1 + (i * 37) % 50);
    EXPECT_EQ(lines_[i]["finish_reason"], "stop");
  }
}

TEST_F(GenerateFileTest, ABadLineFailsAlone) {
  const std::string input =
      "{\"prompt\": \"ab\"}\n"
      "\n"
      "not json\n"
      "{\"id\": \"mine\", \"prompt\": \"a\", \"max_tokens\": \"x\"}\n"
      "{\"prompt\": \"\xff\"}\n"
      "{\"prompt\": \"unencodable\"}\n"
      "{\"prompt\": \"" +
      std::string(kMaxLineBytes, 'a') +
      "\"}\n"
      "{\"prompt_ids\": [1, 2, 3], \"logprobs\": 1}";
  EXPECT_EQ(run(input, 2, by_length), kExitRequestsFailed);
  ASSERT_EQ(lines_.size(), 7u) << "a blank line is no request";
  EXPECT_EQ(lines_[0]["id"], 1);
  EXPECT_EQ(lines_[0]["text"], "xxx");  // the fake engine's encode() adds a token
  EXPECT_FALSE(lines_[0].contains("logprobs"));
  for (const int i : {1, 2, 3, 4, 5}) {
    EXPECT_EQ(lines_[i]["finish_reason"], "error") << i;
    EXPECT_EQ(lines_[i]["error"]["code"], "INVALID_ARGUMENT") << i;
  }
  EXPECT_EQ(lines_[1]["id"], 3) << "without an id: the number of the line";
  EXPECT_EQ(lines_[2]["id"], "mine");
  EXPECT_NE(lines_[2]["error"]["message"].get<std::string>().find("max_tokens"), std::string::npos);
  EXPECT_NE(lines_[5]["error"]["message"].get<std::string>().find("16 MiB"), std::string::npos);
  EXPECT_EQ(lines_[6]["token_ids"], (std::vector<int>{'x', 'x', 'x'}));
  EXPECT_EQ(lines_[6]["logprobs"].size(), 3u);
  EXPECT_EQ(lines_[6]["logprobs"][0]["top"].size(), 1u);
  EXPECT_NE(errors_.find("line 3"), std::string::npos);
  EXPECT_NE(errors_.find("7 requests, 5 failed"), std::string::npos) << errors_;
}

TEST_F(GenerateFileTest, AFieldThatIsNotARequestsIsNamedOnceAndIgnored) {
  EXPECT_EQ(run("{\"prompt\": \"a\", \"task\": 1}\n{\"prompt\": \"b\", \"task\": 2}\n", 1, by_length), kExitOk);
  EXPECT_EQ(lines_.size(), 2u);
  EXPECT_NE(errors_.find("\"task\""), std::string::npos);
  EXPECT_EQ(errors_.find("\"task\""), errors_.rfind("\"task\"")) << errors_;
}

TEST_F(GenerateFileTest, ARequestThatFailsOnTheWayKeepsWhatItHad) {
  const auto failing = [](const GenerateRequest&) {
    return FakeScript{.reason = FinishReason::kError, .error = internal_error("it broke")};
  };
  EXPECT_EQ(run("{\"prompt\": \"a\"}\n", 1, failing), kExitRequestsFailed);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0]["finish_reason"], "error");
  EXPECT_EQ(lines_[0]["error"]["message"], "it broke");
  EXPECT_EQ(lines_[0]["text"], "Hello world");
}

// The signal is for run()'s watch. No other thread may take it, and threads that earlier tests left behind live on, so
// it is blocked before main().
const int interrupts_blocked = [] {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return pthread_sigmask(SIG_BLOCK, &set, nullptr);
}();

TEST_F(GenerateFileTest, AnInterruptCancelsWhatRunsAndWritesIt) {
  ASSERT_EQ(interrupts_blocked, 0);
  const auto endless = [](const GenerateRequest&) { return FakeScript{.endless = true}; };
  std::thread presser([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(getpid(), SIGINT);
  });
  std::string input;
  for (int i = 0; i < 10; ++i) input += "{\"prompt\": \"a\"}\n";
  EXPECT_EQ(run(input, 3, endless), kExitInterrupted);
  presser.join();
  ASSERT_EQ(lines_.size(), 3u) << "what was never started has no line";
  for (const auto& line : lines_) EXPECT_EQ(line["finish_reason"], "cancelled");
}

}  // namespace
}  // namespace volley::apps
