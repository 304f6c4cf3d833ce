// The CPU kernels' threads. A step of a small model is some fifty parallel regions of a few microseconds each, so
// workers spin for a while between regions before they sleep, and a region costs two atomic exchanges.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace volley {

// One region at a time, started by one thread (the engine's). What a task computes must not depend on which worker
// runs it.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the calling thread included; >= 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs f(task, worker) for every task in [0, tasks), and returns when all are done. Tasks are handed out one by one
  // to whoever is free; worker is in [0, threads()).
  template <typename F>
  void parallel_for(int64_t tasks, F&& f) {
    if (tasks <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < tasks; ++i) f(i, 0);
      return;
    }
    run(tasks, const_cast<void*>(static_cast<const void*>(&f)),
        [](void* context, int64_t task, int worker) { (*static_cast<std::remove_reference_t<F>*>(context))(task, worker); });
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task, int worker);

  void run(int64_t tasks, void* context, TaskFn fn);
  void work(int worker);
  void take_tasks(int worker);

  std::vector<std::thread> workers_;
  // The region in flight: written by run() before epoch_ moves, read by workers after they see it move.
  TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int> busy_{0};        // workers that have not finished the region
  alignas(64) std::atomic<uint64_t> epoch_{0};  // counts regions
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;  // guards sleeping on wake_
  std::condition_variable wake_;
};

}  // namespace volley
