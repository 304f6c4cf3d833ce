// Protects the bound on memory behind a slow client, and that no news and no wake is lost or late.
#include "serve/http/mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

namespace volley::serve {
namespace {

Event text_event(std::string text) {
  Event event;
  event.text = std::move(text);
  return event;
}

Event last_event() {
  Event event;
  event.finish.emplace().usage.completion_tokens = 7;
  return event;
}

TEST(Mailbox, WakesOnceUntilTaken) {
  int wakes = 0;
  Mailbox box(10000, [&] { ++wakes; });
  EXPECT_TRUE(box.push(0, text_event("a")));
  EXPECT_TRUE(box.push(1, text_event("b")));
  EXPECT_EQ(wakes, 1);
  const auto items = box.take();
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1].choice, 1);
  EXPECT_EQ(items[1].event.text, "b");
  EXPECT_TRUE(box.push(0, text_event("c")));
  EXPECT_EQ(wakes, 2);
}

TEST(Mailbox, CountsLastEventsTakenOrNot) {
  Mailbox box(10000, [] {});
  EXPECT_TRUE(box.push(0, text_event("a")));
  EXPECT_EQ(box.finished(), 0u);
  EXPECT_TRUE(box.push(0, last_event()));
  EXPECT_TRUE(box.push(1, last_event()));
  EXPECT_EQ(box.finished(), 2u);
  box.take();
  EXPECT_EQ(box.finished(), 2u);
}

TEST(Mailbox, OverflowDropsTextButNeverTheLastEvent) {
  Mailbox box(2000, [] {});
  EXPECT_TRUE(box.push(0, text_event(std::string(1500, 'x'))));
  EXPECT_FALSE(box.overflowed());
  EXPECT_FALSE(box.push(0, text_event(std::string(1500, 'x'))));
  EXPECT_TRUE(box.overflowed());
  EXPECT_FALSE(box.push(0, text_event("y"))) << "a stream with a hole must not go on";
  EXPECT_FALSE(box.push(0, last_event()));
  const auto items = box.take();
  ASSERT_EQ(items.size(), 2u);
  ASSERT_TRUE(items[1].event.finish);
  EXPECT_EQ(items[1].event.finish->usage.completion_tokens, 7);
  EXPECT_FALSE(box.push(0, text_event("later")));
}

TEST(Mailbox, LogprobsCountToo) {
  Mailbox box(2000, [] {});
  Event event;
  event.logprobs.resize(30);
  EXPECT_FALSE(box.push(0, event));
}

TEST(Mailbox, ClosedTakesNothingAndWakesNobody) {
  int wakes = 0;
  Mailbox box(10000, [&] { ++wakes; });
  box.close();
  EXPECT_FALSE(box.push(0, last_event()));
  EXPECT_EQ(wakes, 0);
  EXPECT_TRUE(box.take().empty());
}

TEST(Mailbox, EveryEventArrivesInOrderAcrossThreads) {
  constexpr int kEvents = 20000;
  std::atomic<bool> awake{false};
  Mailbox box(std::numeric_limits<size_t>::max(), [&] { awake = true; });
  std::thread pusher([&] {
    for (int i = 0; i < kEvents; ++i) EXPECT_TRUE(box.push(i, text_event("t")));
  });
  int next = 0;
  while (next < kEvents) {
    if (!awake.exchange(false)) {
      std::this_thread::yield();
      continue;
    }
    for (const auto& item : box.take()) EXPECT_EQ(item.choice, next++);
  }
  pusher.join();
}

}  // namespace
}  // namespace volley::serve
