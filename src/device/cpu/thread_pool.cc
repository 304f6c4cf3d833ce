#include "device/cpu/thread_pool.h"

#include "base/check.h"

namespace volley {
namespace {

// About 100 µs of spinning before a worker sleeps: longer than the host's work between two regions of a step, shorter
// than anything a person would see as load.
constexpr int kSpins = 4000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  VOLLEY_CHECK_GE(threads, 1);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t tasks, void* context, TaskFn fn) {
  fn_ = fn;
  context_ = context;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  // Sequentially consistent with the sleeper's increment and its second look at epoch_: one of the two sees the other.
  epoch_.fetch_add(1);
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_tasks(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    // A worker that was descheduled may hold the region up: let it have this core.
    if (spins < kSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::take_tasks(int worker) {
  for (;;) {
    const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    fn_(context_, task, worker);
  }
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  for (;;) {
    int spins = 0;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (++spins < kSpins) {
        pause_cpu();
        continue;
      }
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    ++seen;
    if (stop_.load()) return;
    take_tasks(worker);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace volley
