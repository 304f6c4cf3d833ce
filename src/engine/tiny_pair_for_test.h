// A worker with a tiny target and its drafter, and requests that check to end exactly once. The tests of faults on the
// CPU and on a GPU share it. Threads: one.
#pragma once

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/run/worker_for_test.h"
#include "weights/fixtures_for_test.h"

namespace volley::engine {

class TinyPairTest : public WorkerTest {
 protected:
  static EngineOptions tiny_pair() {
    EngineOptions options = plain_options();
    options.model_dir = "tests/data/targets/" + weights::target_of_drafter("one_layer");
    options.draft_dir = "tests/data/drafters/one_layer";
    options.speculation = Speculation::kOn;
    options.dummy_weights.reset();
    options.skip_tokenizer = true;
    options.verify = {VerifyPolicy::Kind::kFull};
    options.max_num_batched_tokens = 64;
    options.prefill_chunk = 16;
    options.max_model_len = 96;
    options.kv_pages = 40;
    return options;
  }

  // One plain request, one with masks, and one with a prompt's logprobs, for which alone a step asks for memory.
  static std::vector<GenerateRequest> three_requests() {
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 3; ++i) {
      GenerateRequest request = request_of(12 + 9 * i);
      for (size_t j = 0; j < request.prompt.size(); ++j) request.prompt[j] = static_cast<TokenId>(2 + (j * 7 + i) % 40);
      request.max_tokens = 9;
      request.sampling.temperature = i == 0 ? 0.0f : 0.9f;
      request.sampling.presence_penalty = i == 1 ? 0.5f : 0.0f;
      if (i == 1) request.bad_words = {{5, 6}, {9}};
      if (i == 2) request.prompt_logprobs = 2;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  std::vector<std::future<Finish>> submit_all(std::vector<std::vector<TokenId>>& tokens,
                                              const std::vector<GenerateRequest>& requests = three_requests()) {
    tokens.assign(requests.size(), {});
    std::vector<std::future<Finish>> ends;
    for (size_t i = 0; i < requests.size(); ++i) ends.push_back(submit(requests[i], nullptr, &tokens[i]));
    return ends;
  }

  std::vector<Finish> run_all(std::vector<std::vector<TokenId>>& tokens,
                              const std::vector<GenerateRequest>& requests = three_requests()) {
    worker_->drop_prefix_cache();  // each run is like the first
    auto ends = submit_all(tokens, requests);
    std::vector<Finish> finishes;
    for (auto& end : ends) {
      const bool ended = end.wait_for(std::chrono::seconds(300)) == std::future_status::ready;
      EXPECT_TRUE(ended) << "a request hangs";
      if (!ended) std::abort();  // a destructor would hang
      finishes.push_back(end.get());
    }
    return finishes;
  }

  // Some requests ended with the failure, in these words; others were faster.
  static void expect_failures(const std::vector<Finish>& finishes, const std::string& words) {
    int failed = 0;
    for (const Finish& finish : finishes) {
      if (finish.reason == FinishReason::kLength) continue;
      ++failed;
      ASSERT_TRUE(finish.error);
      EXPECT_EQ(finish.error->code, ErrorCode::kUnavailable);
      EXPECT_NE(finish.error->message.find(words), std::string::npos) << finish.error->message;
    }
    EXPECT_GT(failed, 0);
  }

  void expect_nothing_held() {
    for (int i = 0; i < 300'000 && worker_->stats().requests_running + worker_->stats().requests_waiting > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const EngineStats stats = worker_->stats();
    EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
    EXPECT_EQ(stats.pages_used, stats.pages_cached);
  }

  // Fails each allocation of a round once. start(n) makes a new worker, which takes its lasting memory only once, and
  // fails its n-th allocation from then on; seen() counts them.
  void expect_lack_of_memory_ends_who_needs_it(const std::function<void(int64_t)>& start,
                                               const std::function<int64_t()>& seen) {
    std::vector<std::vector<TokenId>> expected, tokens;
    int64_t allocations = 0, refused = 0;
    for (int64_t n = 0; n <= allocations; ++n) {
      start(n == 0 ? std::numeric_limits<int64_t>::max() : n);
      const auto finishes = run_all(n == 0 ? expected : tokens);
      if (n == 0) allocations = seen();
      EXPECT_FALSE(finishes[0].error) << "it needs nothing";
      for (size_t i = 0; i < finishes.size() && n > 0; ++i) {
        if (finishes[i].error) {
          ++refused;
          EXPECT_EQ(finishes[i].error->code, ErrorCode::kResourceExhausted);
        } else {
          EXPECT_EQ(tokens[i], expected[i]) << "allocation " << n;
        }
      }
      expect_nothing_held();
      worker_.reset();
    }
    EXPECT_GE(allocations, 2);
    EXPECT_GE(refused, 2);
    EXPECT_TRUE(failures().empty());
  }

  void keep_failures(WorkerParts& parts) {
    parts.on_device_failure = [this](const std::string& failure) {
      const std::lock_guard lock(mutex_);
      failures_.push_back(failure);
    };
  }
  std::vector<std::string> failures() {
    const std::lock_guard lock(mutex_);
    return failures_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> failures_;  // guarded by mutex_
};

}  // namespace volley::engine
