// Threads of a tensor-parallel group. All ranks must run a call at once, because they exchange sums in it. Threads: one
// at a time calls run().
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
  // Makes a thread for each rank but rank 0, which runs on the caller's thread. abort(rank) runs on a failing rank's
  // thread, and must wake the ranks that wait for it. Throws std::system_error when the system gives no more threads.
  RankThreads(int ranks, std::function<void(int)> abort);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Runs f(rank) on every rank's thread, and returns when all have returned. Throws what the first failing rank threw.
  void run(const std::function<void(int)>& f);

 private:
  void work(int rank);
  void call(int rank);
  void stop();

  const std::function<void(int)> abort_;
  std::mutex mutex_;
  std::condition_variable posted_, done_;
  const std::function<void(int)>* call_ = nullptr;  // guarded by mutex_, like all below
  uint64_t calls_ = 0;
  int running_ = 0;  // threads that still run the last call
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace volley::engine
