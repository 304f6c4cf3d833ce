// Protects the threads that read bodies: clients take turns, lanes do not wait for each other, and no exception ends
// one.
#include "serve/workers-inl.h"

#include <gtest/gtest.h>

#include <future>
#include <new>

namespace volley::serve::transport {
namespace {

using namespace std::chrono_literals;

TEST(Workers, AClientWithManyRequestsDelaysAnotherByOne) {
  for (const auto lane : {Workers::kGrammar, Workers::kUsual, Workers::kLarge}) {
    Workers workers(1, 1);
    std::promise<void> all_wait;
    const auto begin = all_wait.get_future().share();
    std::string ran;  // of the one thread of the lane
    workers.post(lane, "first", [begin] { begin.wait(); });
    for (int i = 0; i < 20; ++i) workers.post(lane, "a", [&ran] { ran += 'a'; });
    workers.post(lane, "b", [&ran] { ran += 'b'; });
    all_wait.set_value();
    ASSERT_TRUE(workers.wait(10s));
    EXPECT_EQ(ran, "ab" + std::string(19, 'a'));
  }
}

TEST(Workers, ALaneWaitsForNoOther) {
  Workers workers(1, 1);
  std::promise<void> end;
  for (const auto lane : {Workers::kGrammar, Workers::kLarge}) {
    workers.post(lane, "a", [ended = end.get_future().share()] { ended.wait(); });
    std::promise<void> ran;
    workers.post(Workers::kUsual, "a", [&ran] { ran.set_value(); });
    EXPECT_EQ(ran.get_future().wait_for(10s), std::future_status::ready);
    end.set_value();
    end = {};
  }
  ASSERT_TRUE(workers.wait(10s));
}

TEST(Workers, WhatThrowsEndsNoThread) {
  Workers workers(1, 1);
  std::atomic<int> ran{0};
  for (const auto lane : {Workers::kGrammar, Workers::kUsual, Workers::kLarge}) {
    for (int i = 0; i < 3; ++i) workers.post(lane, "a", [] { throw std::bad_alloc(); });
    workers.post(lane, "a", [&ran] { ++ran; });
  }
  ASSERT_TRUE(workers.wait(10s)) << "work that threw is over, too";
  EXPECT_EQ(ran, 3);
}

// What began in one lane goes on in one above it, also while the workers end.
TEST(Workers, ALanePostsToOneAboveIt) {
  std::atomic<int> ran{0};
  {
    Workers workers(1, 1);
    workers.post(Workers::kLarge, "a", [&] { workers.post(Workers::kGrammar, "a", [&ran] { ++ran; }); });
    ASSERT_TRUE(workers.wait(10s));
    EXPECT_EQ(ran, 1);
    std::promise<void> begun;
    workers.post(Workers::kLarge, "a", [&] {
      begun.set_value();
      std::this_thread::sleep_for(50ms);
      workers.post(Workers::kGrammar, "a", [] {});
    });
    begun.get_future().wait();
  }
}

}  // namespace
}  // namespace volley::serve::transport
