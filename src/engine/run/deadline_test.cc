// Protects GenerateRequest::timeout_s: in any state a request ends in time with its tokens, and the others go on.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/run/worker_for_test.h"

namespace volley::engine {
namespace {

class Deadline : public WorkerTest {
 protected:
  void SetUp() override { worker_ = std::make_unique<Worker>(make_parts(plain_options())); }

  static GenerateRequest endless(double timeout_s) {
    GenerateRequest request = request_of(20);
    request.max_tokens = 1500;
    request.timeout_s = timeout_s;
    return request;
  }

  void expect_idle() {
    for (int i = 0; i < 60'000 && worker_->stats().requests_running + worker_->stats().requests_waiting > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(worker_->stats().requests_running + worker_->stats().requests_waiting, 0);
    EXPECT_EQ(worker_->stats().pages_used, worker_->stats().pages_cached);
  }
};

TEST_F(Deadline, ARequestThatRunsEndsWithItsFirstTokens) {
  std::vector<TokenId> whole, cut, other;
  auto other_ends = submit(request_of(20), nullptr, &other);
  const Finish finish = submit(endless(0.05), nullptr, &cut).get();
  EXPECT_EQ(finish.reason, FinishReason::kTimeout);
  EXPECT_FALSE(finish.error);
  EXPECT_GE(finish.usage.total_s, 0.05);
  EXPECT_EQ(finish.usage.completion_tokens, std::ssize(cut));
  EXPECT_EQ(other_ends.get().reason, FinishReason::kLength);
  GenerateRequest again = endless(0);
  again.max_tokens = static_cast<int32_t>(cut.size()) + 1;
  EXPECT_EQ(submit(again, nullptr, &whole).get().reason, FinishReason::kLength);
  whole.resize(cut.size());
  EXPECT_EQ(cut, whole);
  EXPECT_EQ(worker_->stats().requests_failed, 0);
  expect_idle();
}

TEST_F(Deadline, ARequestThatWaitsEndsWithNothing) {
  std::vector<std::future<Finish>> running;
  Finish finish;
  for (int tries = 0; tries < 20; ++tries) {  // tries again where the running request was faster
    running.clear();
    for (int i = 0; i < 4; ++i) running.push_back(submit(endless(0)));
    while (worker_->stats().requests_running < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    finish = submit(endless(0.01)).get();
    if (finish.usage.completion_tokens == 0) break;
  }
  EXPECT_EQ(finish.reason, FinishReason::kTimeout);
  EXPECT_EQ(finish.usage.completion_tokens, 0);
  EXPECT_EQ(finish.usage.queue_s, finish.usage.total_s) << "it waited all its life";
  for (RequestId id = 1; id < last_id_; ++id) worker_->cancel(id);
  for (auto& end : running) {
    const FinishReason reason = end.get().reason;
    EXPECT_TRUE(reason == FinishReason::kCancelled || reason == FinishReason::kLength);
  }
  expect_idle();
}

TEST_F(Deadline, ARequestThatEndsBeforeDoesNotNoticeIt) {
  GenerateRequest request = request_of(20);
  request.timeout_s = 3600;
  EXPECT_EQ(submit(request).get().reason, FinishReason::kLength);
  expect_idle();
}

// Text that may become a stop string is held back. A timeout gives it out.
TEST_F(Deadline, TextThatWasHeldBackIsGivenOut) {
  const auto ids = text_.tokenizer->encode("the dog", false);
  ASSERT_TRUE(ids.ok());
  std::string text;
  const auto sink = [&](const Event& event) { text += event.text; };
  RequestOutput output(1, sink, text_.tokenizer, {.stop = {"the dog and"}}, 1, RequestOutput::Clock::now());
  decode::RoundResult result;
  result.tokens = *ids;
  EXPECT_FALSE(output.push(result, true, 0, false, RequestOutput::Clock::now()));
  EXPECT_EQ(text, "");
  output.finish(FinishReason::kTimeout, std::nullopt, RequestOutput::Clock::now());
  EXPECT_EQ(text, "the dog");
}

}  // namespace
}  // namespace volley::engine
