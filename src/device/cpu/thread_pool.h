// The CPU kernels' threads. A step of a small model is some fifty parallel regions of a few microseconds each, so
// workers spin for a while between regions before they sleep. Starting a region then costs about 0.1 µs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace volley {

// One region at a time, started by one thread (the engine's). A task's result must not depend on the worker that runs
// it.
class ThreadPool {
 public:
  // The calling thread included; >= 1. Throws std::system_error when the system gives no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs f(task, worker) for every task in [0, tasks), and returns when all are done. Free threads take tasks one by
  // one; worker is in [0, threads()).
  template <typename F>
  void parallel_for(int64_t tasks, F&& f) {
    if (tasks <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < tasks; ++i) f(i, 0);
      return;
    }
    run(tasks, const_cast<void*>(static_cast<const void*>(&f)), [](void* context, int64_t task, int worker) {
      (*static_cast<std::remove_reference_t<F>*>(context))(task, worker);
    });
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task, int worker);

  void run(int64_t tasks, void* context, TaskFn fn);
  void work(int worker);
  void stop();  // ends and joins the workers
  bool take_tasks(int worker);

  std::vector<std::thread> workers_;
  // The region in flight: its number in the upper half, the number of tasks not yet taken in the lower. A thread that
  // takes a task keeps the region in flight until the task is done, so the members below belong to that region.
  alignas(64) std::atomic<uint64_t> region_{0};
  std::atomic<TaskFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> tasks_{0};
  alignas(64) std::atomic<int64_t> done_{0};  // tasks of the region that have returned
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards sleeping on wake_
  std::condition_variable wake_;
};

}  // namespace volley
