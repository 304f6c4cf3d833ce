// Protects a ticker: it repeats, and ends with its object.
#include "apps/ticker.h"

#include <gtest/gtest.h>

#include <atomic>

namespace volley::apps {
namespace {

TEST(Ticker, GoesOnUntilItsEnd) {
  std::atomic<int> calls{0};
  {
    const Ticker ticker(std::chrono::milliseconds(1), [&calls] { ++calls; });
    while (calls < 3) std::this_thread::yield();
  }
  const int then = calls;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(calls, then);
}

TEST(Ticker, DoesNotWaitForItsTimeToEnd) {
  const Ticker ticker(std::chrono::hours(1), [] { FAIL(); });
}

}  // namespace
}  // namespace volley::apps
