// Runs batch lines on replies that a test makes: open lines, repeated ones, and those left at an end.
#include "serve/batches/batch_run.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class BatchRunTest : public ::testing::Test {
 protected:
  ~BatchRunTest() override { fs::remove(path_); }

  void write_input(int lines, const std::string& url = "/v1/completions") {
    std::ofstream input(path_);
    for (int i = 0; i < lines; ++i) {
      input << Json{{"custom_id", std::to_string(i)}, {"method", "POST"}, {"url", url}, {"body", Json::object()}}.dump()
            << '\n';
    }
  }
  BatchRun::Hooks hooks() {
    BatchRun::Hooks hooks;
    hooks.ask = [this](const HttpRequest& request, const std::function<void()>&) -> BatchReply {
      ++asked_[request.request_id];
      HttpResponse response;
      response.status = status_;
      response.body = "{}";
      return response;
    };
    hooks.may_start = [](size_t open) { return open < 2; };
    hooks.write = [this](std::string line, bool failed) -> Status {
      const Json json = Json::parse(line);
      EXPECT_TRUE(results_.emplace(json["custom_id"].get<std::string>(), json).second) << line;
      failed_ += failed;
      return {};
    };
    hooks.beat = [](size_t) { return Status(); };
    hooks.stopped = [this] { return stopped_; };
    return hooks;
  }
  BatchIndex index() { return *BatchIndex::read(path_); }

  const std::string path_ =
      (fs::temp_directory_path() / ("volley_batch_run_" + std::to_string(getpid()) + ".jsonl")).string();
  int status_ = 200, failed_ = 0;
  bool stopped_ = false;
  std::map<std::string, int> asked_;
  std::map<std::string, Json> results_;
};

TEST_F(BatchRunTest, AnswersEachLineOnce) {
  write_input(5);
  BatchIndex lines = index();
  ASSERT_TRUE(BatchRun(path_, &lines, hooks(), {}).run().ok());
  EXPECT_EQ(results_.size(), 5u);
  EXPECT_EQ(lines.done(), 5);
  ASSERT_TRUE(BatchRun(path_, &lines, hooks(), {}).run().ok());  // all lines are done
  EXPECT_EQ(asked_.size(), 5u);
}

TEST_F(BatchRunTest, AsksAgainWhatGotA503) {
  write_input(1);
  status_ = 503;
  BatchIndex lines = index();
  ASSERT_TRUE(BatchRun(path_, &lines, hooks(), {.retries = 1}).run().ok());
  EXPECT_EQ(asked_.begin()->second, 2);
  EXPECT_EQ(results_.at("0")["response"]["status_code"], 503);
  EXPECT_EQ(failed_, 1);
}

// Other clients' requests fill the queue, so a line must wait instead of getting a result.
TEST_F(BatchRunTest, WaitsForAQueueThatOthersFill) {
  write_input(2);
  BatchIndex lines = index();
  BatchRun::Hooks busy = hooks();
  busy.ask = [this, inner = busy.ask](const HttpRequest& request, const std::function<void()>& wake) {
    status_ = asked_.empty() ? 429 : 200;
    return inner(request, wake);
  };
  ASSERT_TRUE(BatchRun(path_, &lines, busy, {.shares_engine = true}).run().ok());
  EXPECT_EQ(results_.at("0")["response"]["status_code"], 200);
  EXPECT_EQ(asked_.begin()->second, 2);
  EXPECT_EQ(failed_, 0);
}

// A stopping server answers 503, which is no result.
TEST_F(BatchRunTest, AStopLeavesLinesForTheNextRun) {
  write_input(3);
  status_ = 503;
  BatchIndex lines = index();
  BatchRun::Hooks stopping = hooks();
  stopping.beat = [this](size_t) {
    stopped_ = true;
    return Status();
  };
  ASSERT_TRUE(BatchRun(path_, &lines, stopping, {.retries = 5}).run().ok());
  EXPECT_TRUE(results_.empty());
  EXPECT_EQ(lines.done(), 0);
}

TEST_F(BatchRunTest, WritesOffWhatHasNoResult) {
  write_input(3);
  BatchIndex lines = index();
  ASSERT_EQ(lines.mark_done("1"), BatchIndex::Mark::kMarked);
  stopped_ = true;
  BatchRun run(path_, &lines, hooks(), {});
  ASSERT_TRUE(run.run().ok());
  ASSERT_TRUE(run.write_off({"batch_expired", "Too late."}).ok());
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_EQ(results_.at("2")["error"]["code"], "batch_expired");
  EXPECT_EQ(lines.done(), 3);
}

TEST_F(BatchRunTest, RefusesAnotherUrlThanTheBatchs) {
  write_input(1, "/v1/responses");
  BatchIndex lines = index();
  ASSERT_TRUE(BatchRun(path_, &lines, hooks(), {.url = "/v1/completions"}).run().ok());
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(results_.at("0")["error"]["code"], "mismatched_url");
}

TEST_F(BatchRunTest, AnErrorOfTheDiskEndsIt) {
  write_input(3);
  BatchIndex lines = index();
  BatchRun::Hooks full = hooks();
  full.write = [](std::string, bool) -> Status { return data_loss("full"); };
  EXPECT_FALSE(BatchRun(path_, &lines, full, {}).run().ok());
  EXPECT_EQ(asked_.size(), 1u);
  EXPECT_EQ(lines.done(), 0);
}

}  // namespace
}  // namespace volley::serve
