// Threads that fill masks, and how long a step waits for them. A grammar can take any time, so its work runs on a
// thread and in memory that the step can leave behind.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "decode/mask_source.h"

namespace volley::decode {

// The time that a step waits for masks, in limits, where other work keeps the processors.
inline constexpr int kMaskPatience = 2;

// fill() and discard(): one thread, the engine's.
class MaskThreads {
 public:
  struct Task {
    std::shared_ptr<MaskSource> source;
    std::span<const TokenId> drafted;
    uint32_t* words = nullptr;  // [drafted + 1][mask_words]
  };

  // As many as are of use. kResourceExhausted: the system gives no thread at all.
  static Result<std::unique_ptr<MaskThreads>> create(std::chrono::milliseconds limit);
  // Throws std::system_error for that.
  MaskThreads(int threads, std::chrono::milliseconds limit);
  ~MaskThreads();  // waits for what was left behind
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Returns when every task's words are filled. A source that has computed for `limit` is given up then, and its words
  // allow everything. One that waits for a processor may take kMaskPatience times that by the clock. Who was quick last
  // time goes first, so that a slow source is late alone.
  void fill(std::span<const Task> tasks, int32_t mask_words);

  // Drops the reference on one of the threads: what a grammar leaves behind takes a while to free.
  void discard(std::shared_ptr<MaskSource> source);

 private:
  struct Job;

  void start_thread();
  void start_threads(size_t jobs);
  bool give_up_late(std::span<const std::shared_ptr<Job>> jobs, bool all);
  void work();
  void run(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock);

  const int width_;  // jobs that run at once, late ones not counted
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<std::shared_ptr<Job>> waiting_;            // guarded by mutex_, as all below
  std::vector<std::shared_ptr<MaskSource>> discarded_;  // to be dropped
  int running_ = 0;                                     // jobs that a step waits for
  int late_ = 0;                                        // threads with a job that was left behind
  size_t open_ = 0;                                     // jobs of the step that are neither done nor given up
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace volley::decode
