// The threads of a tensor-parallel group: what all ranks do at once, because they exchange sums while they do it.
// Threads: run() by one at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace volley::engine {

class RankThreads {
 public:
  // A thread for each rank but the first, which runs on the caller's: with one rank there are none. abort(rank) is
  // called when a rank fails, on its thread, so that nobody waits for it. Throws std::system_error when the system
  // gives no more threads.
  RankThreads(int ranks, std::function<void(int)> abort);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // f(rank) on every rank's thread; returns when all have returned. What the first rank to fail threw is thrown again.
  void run(const std::function<void(int)>& f);

 private:
  void work(int rank);
  void call(int rank);
  void stop();

  const std::function<void(int)> abort_;
  std::mutex mutex_;
  std::condition_variable posted_, done_;
  const std::function<void(int)>* call_ = nullptr;  // guarded by mutex_, as all below
  uint64_t calls_ = 0;
  int running_ = 0;  // threads that have not returned from the last call
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace volley::engine
