// Protects: all ranks of a group run, and a failing rank neither hangs the others nor goes unnoticed.
#include "engine/run/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <set>
#include <stdexcept>

namespace volley::engine {
namespace {

TEST(RankThreads, EveryRankRunsEveryCallAtTheSameTime) {
  RankThreads threads(4, [](int) {});
  std::vector<std::thread::id> ids(4);
  for (int call = 0; call < 200; ++call) {
    std::latch all(4);
    std::vector<int> calls(4, 0);
    threads.run([&](int rank) {
      all.arrive_and_wait();  // hangs unless four threads are here
      ++calls[static_cast<size_t>(rank)];
      if (call == 0) ids[static_cast<size_t>(rank)] = std::this_thread::get_id();
      EXPECT_EQ(ids[static_cast<size_t>(rank)], std::this_thread::get_id());
    });
    ASSERT_EQ(calls, std::vector<int>(4, 1));
  }
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 4u);
}

TEST(RankThreads, TheFirstFailureIsTheOneThatCounts) {
  for (const int failing : {0, 1, 2}) {
    std::atomic<bool> aborted = false;
    RankThreads threads(3, [&](int rank) {
      EXPECT_TRUE(rank == failing || aborted);
      aborted = true;
      aborted.notify_all();
    });
    const auto call = [&](int rank) {
      if (rank == failing) throw std::logic_error("the cause");
      aborted.wait(false);
      throw std::runtime_error("somebody else failed");
    };
    EXPECT_THROW(threads.run(call), std::logic_error) << failing;
    int calls = 0;
    threads.run([&](int rank) {
      if (rank == 0) ++calls;
    });
    EXPECT_EQ(calls, 1) << "a failure is told once";
  }
}

TEST(RankThreads, OneRankIsTheCaller) {
  RankThreads threads(1, [](int) { FAIL() << "nobody waits"; });
  std::thread::id id;
  threads.run([&](int) { id = std::this_thread::get_id(); });
  EXPECT_EQ(id, std::this_thread::get_id());
  EXPECT_THROW(threads.run([](int) { throw std::runtime_error("x"); }), std::runtime_error);
}

}  // namespace
}  // namespace volley::engine
