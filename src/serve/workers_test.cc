// Protects the pool that reads large bodies: in turns by client, and no exception ends a thread of it.
#include "serve/workers-inl.h"

#include <gtest/gtest.h>

#include <future>
#include <new>

namespace volley::serve::transport {
namespace {

using namespace std::chrono_literals;

TEST(Workers, AClientWithManyLargeRequestsDelaysAnotherByOne) {
  Workers workers(1);
  std::promise<void> all_wait;
  const auto begin = all_wait.get_future().share();
  std::string ran;  // of the one thread for large requests
  workers.post(true, "first", [begin] { begin.wait(); });
  for (int i = 0; i < 20; ++i) workers.post(true, "a", [&ran] { ran += 'a'; });
  workers.post(true, "b", [&ran] { ran += 'b'; });
  all_wait.set_value();
  ASSERT_TRUE(workers.wait(10s));
  EXPECT_EQ(ran, "ab" + std::string(19, 'a'));
}

TEST(Workers, WhatThrowsEndsNoThread) {
  Workers workers(1);
  std::atomic<int> ran{0};
  for (const bool large : {false, true}) {
    for (int i = 0; i < 3; ++i) workers.post(large, "a", [] { throw std::bad_alloc(); });
    workers.post(large, "a", [&ran] { ++ran; });
  }
  ASSERT_TRUE(workers.wait(10s)) << "work that threw is over, too";
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace volley::serve::transport
