#include "engine/run/rank_threads.h"

#include <utility>

namespace volley::engine {

RankThreads::RankThreads(int ranks, std::function<void(int)> abort) : abort_(std::move(abort)) {
  try {
    for (int rank = 1; rank < ranks; ++rank) threads_.emplace_back([this, rank] { work(rank); });
  } catch (...) {
    stop();
    throw;
  }
}

RankThreads::~RankThreads() {
  stop();
}

void RankThreads::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::run(const std::function<void(int)>& f) {
  if (threads_.empty()) return f(0);
  {
    const std::lock_guard lock(mutex_);
    call_ = &f;
    failure_ = nullptr;
    running_ = static_cast<int>(threads_.size());
    ++calls_;
  }
  posted_.notify_all();
  call(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// A failing rank stops the others, so their exceptions are not the cause.
void RankThreads::call(int rank) {
  try {
    (*call_)(rank);
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    abort_(rank);
  }
}

void RankThreads::work(int rank) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return stopping_ || calls_ > seen; });
    if (stopping_) return;
    seen = calls_;
    lock.unlock();
    call(rank);
    lock.lock();
    if (--running_ == 0) done_.notify_all();
  }
}

}  // namespace volley::engine
