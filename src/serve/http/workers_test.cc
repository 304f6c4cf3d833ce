// Protects the threads that read bodies: clients take turns, and lanes do not wait for each other.
#include "serve/http/workers-inl.h"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "serve/testing/server_helpers.h"

namespace volley::serve::transport {
namespace {

using namespace std::chrono_literals;

constexpr Workers::Lane kLanes[] = {Workers::kGrammar, Workers::kDisk, Workers::kUsual, Workers::kPictures,
                                    Workers::kLarge};

// Each of a's works waits for b, so the threads' order does not matter.
TEST(Workers, AClientWithManyRequestsDelaysAnotherByOne) {
  for (const auto lane : kLanes) {
    Workers workers({});
    std::promise<void> all_wait, b_runs;
    const auto begin = all_wait.get_future().share(), b_ran = b_runs.get_future().share();
    std::mutex mutex;
    std::string ran;
    const auto note = [&](char whose) {
      const std::lock_guard lock(mutex);
      ran += whose;
    };
    for (const char* whose : {"first", "second"}) workers.post(lane, whose, [begin] { begin.wait(); });
    for (int i = 0; i < 20; ++i) {
      workers.post(lane, "a", [&note, b_ran] {
        note('a');
        b_ran.wait_for(10s);
      });
    }
    workers.post(lane, "b", [&] {
      note('b');
      b_runs.set_value();
    });
    all_wait.set_value();
    ASSERT_TRUE(workers.wait(60s));
    EXPECT_LE(ran.find('b'), 1u) << ran;
  }
}

TEST(Workers, NobodyTakesAllThreadsOfALane) {
  Workers workers({.grammar = 2, .disk = 2, .usual = 2, .pictures = 2, .large = 2});
  for (const auto lane : kLanes) {
    std::promise<void> end;
    const auto ended = end.get_future().share();
    std::atomic<int> begun{0}, others{0};
    for (int i = 0; i < 5; ++i) {
      workers.post(lane, "a", [&begun, ended] {
        ++begun;
        ended.wait();
      });
    }
    for (const char* whose : {"b", "c", "b"}) workers.post(lane, whose, [&others] { ++others; });
    EXPECT_TRUE(eventually([&] { return others == 3 && begun >= 2; }));
    EXPECT_EQ(begun, 2);
    end.set_value();
    ASSERT_TRUE(workers.wait(10s));
    EXPECT_EQ(begun, 5);
  }
}

// An end makes room for two: its thread takes one, and the others had found nothing before.
TEST(Workers, AnEndThatMakesRoomForTwoStartsBoth) {
  Workers workers({.grammar = 2, .disk = 2, .usual = 2, .pictures = 2, .large = 2});
  for (const auto lane : kLanes) {
    std::promise<void> first_end, all_end;
    const auto ended = first_end.get_future().share(), all_ended = all_end.get_future().share();
    std::atomic<int> begun{0}, others{0};
    const auto hold = [&](const char* whose, const std::shared_future<void>& until) {
      workers.post(lane, whose, [&begun, until] {
        ++begun;
        until.wait();
      });
    };
    hold("a", all_ended);
    ASSERT_TRUE(eventually([&] { return begun == 1; }));
    hold("b", ended);
    ASSERT_TRUE(eventually([&] { return begun == 2; }));
    workers.post(lane, "c", [&others] { ++others; });
    ASSERT_TRUE(eventually([&] { return others == 1; }));
    hold("a", all_ended);
    workers.post(lane, "b", [&others] { ++others; });
    std::this_thread::sleep_for(20ms);  // for the third thread to find nothing
    first_end.set_value();
    EXPECT_TRUE(eventually([&] { return begun == 3 && others == 2; }));
    all_end.set_value();
    ASSERT_TRUE(workers.wait(10s));
  }
}

TEST(Workers, ALaneWaitsForNoOther) {
  Workers workers({});
  for (const auto held : kLanes) {
    std::promise<void> end;
    workers.post(held, "a", [ended = end.get_future().share()] { ended.wait(); });
    std::atomic<int> ran{0};
    for (const auto lane : kLanes) {
      if (lane != held) workers.post(lane, "a", [&ran] { ++ran; });
    }
    EXPECT_TRUE(eventually([&] { return ran == std::ssize(kLanes) - 1; })) << held;
    end.set_value();
    ASSERT_TRUE(workers.wait(10s));
  }
}

// Work that began in one lane continues in an earlier one, also while the workers end.
TEST(Workers, ALanePostsToOneBeforeIt) {
  std::atomic<int> ran{0}, begun{0};
  {
    Workers workers({});
    workers.post(Workers::kLarge, "a", [&] { workers.post(Workers::kGrammar, "a", [&ran] { ++ran; }); });
    ASSERT_TRUE(workers.wait(10s));
    EXPECT_EQ(ran, 1);
    workers.post(Workers::kLarge, "a", [&] {
      ++begun;
      std::this_thread::sleep_for(50ms);
      workers.post(Workers::kGrammar, "a", [] {});
      ++begun;
    });
    EXPECT_TRUE(eventually([&] { return begun == 1; }));
  }
  EXPECT_EQ(begun, 2) << "what had begun was not waited for";
}

}  // namespace
}  // namespace volley::serve::transport
