#include "device/cpu/thread_pool.h"

#include "base/check.h"
#include "device/cpu/work_hook_for_test.h"

namespace volley {
namespace {

std::atomic<const std::function<void()>*> g_work_hook{nullptr};

constexpr uint64_t kTasksMask = 0xffffffffu;

// Waiting has three steps. First the thread pauses for some 5 µs, which is longer than the work between two regions of
// a step. Then it yields its core for some 50 µs more: if another program makes two of the pool's threads share a core,
// the waiting one would otherwise block the working one (a region took 187 µs that way). Workers then sleep; the thread
// that started the region keeps yielding.
constexpr int kPauses = 256;
constexpr int kYields = 128;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void wait_a_little(int waits) {
  if (waits < kPauses) {
    pause_cpu();
  } else {
    std::this_thread::yield();
  }
}

}  // namespace

void set_work_hook(const std::function<void()>* hook) {
  g_work_hook.store(hook, std::memory_order_release);
}

ThreadPool::ThreadPool(int threads) {
  VOLLEY_CHECK_GE(threads, 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// A worker that the system has descheduled does not delay a region unless it took a task: the region ends when the
// tasks are done, not when every worker has looked.
void ThreadPool::run(int64_t tasks, void* context, TaskFn fn) {
  VOLLEY_CHECK_LE(tasks, static_cast<int64_t>(kTasksMask));
  if (const auto* hook = g_work_hook.load(std::memory_order_acquire)) (*hook)();
  fn_.store(fn, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (region_.load(std::memory_order_relaxed) | kTasksMask) + 1;
  // Sequentially consistent with the sleeper's increment and its second look at region_: one of the two sees the other.
  region_.store(number | static_cast<uint64_t>(tasks));
  if (sleepers_.load() > 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  take_tasks(0);
  for (int waits = 0; done_.load(std::memory_order_acquire) != tasks;) {
    wait_a_little(waits);
    if (waits < kPauses) ++waits;
  }
}

// Runs tasks until none is left; returns whether it ran any. The region's number in region_ keeps a thread that was
// slow between its look and its exchange from taking a task of a later region by mistake.
bool ThreadPool::take_tasks(int worker) {
  int64_t ran = 0;
  uint64_t region = region_.load(std::memory_order_acquire);
  while ((region & kTasksMask) != 0) {
    if (!region_.compare_exchange_weak(region, region - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    const int64_t task = tasks_.load(std::memory_order_relaxed) - static_cast<int64_t>(region & kTasksMask);
    fn_.load(std::memory_order_relaxed)(context_.load(std::memory_order_relaxed), task, worker);
    ++ran;
    region = region_.load(std::memory_order_acquire);
  }
  if (ran > 0) done_.fetch_add(ran, std::memory_order_release);
  return ran > 0;
}

void ThreadPool::work(int worker) {
  int waits = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (take_tasks(worker)) {
      waits = 0;
    } else if (waits < kPauses + kYields) {
      wait_a_little(waits++);
    } else {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return (region_.load() & kTasksMask) != 0 || stop_.load(); });
      sleepers_.fetch_sub(1);
      waits = 0;
    }
  }
}

}  // namespace volley
