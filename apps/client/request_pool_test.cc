// The in-process client returns every submitted request exactly once.
#include "apps/client/request_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "serve/testing/fake_engine.h"

namespace volley::apps {
namespace {

using serve::FakeEngine;
using serve::FakeScript;

GenerateRequest request_of(int tokens) {
  GenerateRequest request;
  request.prompt.assign(static_cast<size_t>(tokens), 1);
  return request;
}

TEST(RequestPool, EveryRequestComesBackOnce) {
  FakeEngine engine;
  RequestPool pool(engine);
  std::set<int64_t> seen;
  int64_t next = 0;
  while (seen.size() < 40) {
    while (next < 40 && pool.open() < 7) ASSERT_TRUE(pool.submit(next++, request_of(2)).ok());
    for (const Completion& completion : pool.wait(std::chrono::milliseconds(100)).done) {
      EXPECT_TRUE(seen.insert(completion.index).second);
      EXPECT_EQ(completion.text, "Hello world");
      EXPECT_EQ(completion.tokens.size(), completion.text.size());
    }
  }
  EXPECT_EQ(pool.open(), 0);
  EXPECT_EQ(pool.summary().requests, 40);
  EXPECT_EQ(pool.summary().completion_tokens, 40 * 11);
  EXPECT_GT(pool.summary().decode_s, 0);
}

TEST(RequestPool, StreamedEventsAddUpToTheCompletion) {
  FakeEngine engine;
  RequestPool pool(engine);
  ASSERT_TRUE(pool.submit(5, request_of(1), true).ok());
  std::string streamed;
  for (;;) {
    const RequestPool::News news = pool.wait(std::chrono::seconds(1));
    for (const Event& event : news.streamed) streamed += event.text;
    if (news.done.empty()) continue;
    EXPECT_EQ(news.done[0].index, 5);
    EXPECT_EQ(news.done[0].text, streamed);
    break;
  }
}

TEST(RequestPool, ARefusedRequestIsCountedAndNotAwaited) {
  FakeEngine engine;
  RequestPool pool(engine);
  engine.refuse_submits(resource_exhausted("full"));
  EXPECT_FALSE(pool.submit(0, request_of(1)).ok());
  EXPECT_EQ(pool.open(), 0);
  EXPECT_EQ(pool.summary().requests, 1);
  EXPECT_EQ(pool.summary().errors, 1);
}

TEST(RequestPool, LeavingCancelsWhatRuns) {
  FakeEngine engine([](const GenerateRequest&) { return FakeScript{.endless = true}; });
  {
    RequestPool pool(engine);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(pool.submit(i, request_of(1)).ok());
  }
  EXPECT_EQ(engine.cancelled(), 4);
}

}  // namespace
}  // namespace volley::apps
