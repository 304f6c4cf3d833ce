// Fills masks on threads, and bounds how long a step waits. A grammar can take any time, so its work uses a thread and
// memory that the step can leave behind.
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

// On a busy machine a step waits for masks this many limits.
inline constexpr int kMaskPatience = 2;

// Threads: one calls fill() and discard(), the engine's.
class MaskThreads {
 public:
  struct Task {
    std::shared_ptr<MaskSource> source;
    std::span<const TokenId> drafted;
    uint32_t* words = nullptr;  // [drafted + 1][mask_words]
  };

  // Makes as many threads as are useful. kResourceExhausted: the system gives no thread at all.
  static Result<std::unique_ptr<MaskThreads>> create(std::chrono::milliseconds limit);
  // Throws std::system_error if the system gives no thread.
  MaskThreads(int threads, std::chrono::milliseconds limit);
  ~MaskThreads();  // waits for jobs that were left behind
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Returns when every task's words are filled. A source that has computed for `limit` is given up, and its words then
  // allow everything. A source that waits for a processor may take kMaskPatience limits of wall time. Sources that were
  // quick last time go first, so that a slow source makes no other late.
  void fill(std::span<const Task> tasks, int32_t mask_words);

  // Drops the reference on one of the threads, because freeing a grammar's data takes a while.
  void discard(std::shared_ptr<MaskSource> source);

 private:
  struct Job;

  void start_thread();
  void start_threads(size_t jobs);
  bool give_up_late(std::span<const std::shared_ptr<Job>> jobs, bool all);
  void work();
  void run(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock);

  const int width_;  // jobs that run at once, without late ones
  const std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  std::deque<std::shared_ptr<Job>> waiting_;            // guarded by mutex_, like all below
  std::vector<std::shared_ptr<MaskSource>> discarded_;  // waiting to be dropped
  int running_ = 0;                                     // jobs that a step waits for
  int late_ = 0;                                        // threads that late jobs hold
  size_t open_ = 0;                                     // jobs of the step that are neither done nor given up
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace volley::decode
