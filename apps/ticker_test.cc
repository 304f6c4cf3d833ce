// Protects what is done now and then: it goes on where memory is short for a moment, and ends when it is told to.
#include "apps/ticker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

namespace volley::apps {
namespace {

TEST(Ticker, LeavesOutACallWithoutMemory) {
  std::atomic<int> calls{0};
  {
    const Ticker ticker(std::chrono::milliseconds(1), [&calls] {
      if (++calls <= 3) throw std::bad_alloc();
    });
    while (calls < 5) std::this_thread::yield();
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
