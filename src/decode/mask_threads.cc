#include "decode/mask_threads.h"

#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <system_error>

#include "device/device.h"

namespace volley::decode {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostOfUse = 8;
// Additional threads, for those that late jobs hold. A late source is cancelled, so few are held at once.
constexpr int kMostLate = 8;
// Looks per limit that a step takes at jobs that wait for a processor.
constexpr int kLooks = 8;

std::chrono::nanoseconds computed(clockid_t thread) {
  timespec time{};
  clock_gettime(thread, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

struct MaskThreads::Job {
  enum class State { kOpen, kCopying, kDone, kGivenUp };

  std::shared_ptr<MaskSource> source;
  std::vector<TokenId> drafted;
  std::vector<uint32_t> words;  // the job's own copy, because a late job outlives the step's words
  uint32_t* destination = nullptr;
  int32_t mask_words = 0;
  State state = State::kOpen;  // guarded by MaskThreads::mutex_, like all below
  bool running = false;
  clockid_t thread{};                // the thread's CPU clock, while it runs
  std::chrono::nanoseconds begin{};  // the begin, on that clock
  MaskSource::Why why{};             // set with kGivenUp
};

Result<std::unique_ptr<MaskThreads>> MaskThreads::create(std::chrono::milliseconds limit) {
  try {
    return std::make_unique<MaskThreads>(std::min(kMostOfUse, usable_cores()), limit);
  } catch (const std::system_error&) {
    return resource_exhausted("The system gives this process no more threads, which grammars need.");
  }
}

MaskThreads::MaskThreads(int threads, std::chrono::milliseconds limit) : width_(threads), limit_(limit) {
  start_thread();
}

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::start_thread() {
  threads_.emplace_back([this] { work(); });
}

// REQUIRES: mutex_ is held. Keeps one thread for each job up to the width, beside those that late jobs hold.
void MaskThreads::start_threads(size_t jobs) {
  const int useful = std::min(width_, static_cast<int>(jobs)) + std::min(late_, kMostLate);
  try {
    while (std::ssize(threads_) < useful) start_thread();
  } catch (const std::system_error&) {
    // The existing threads do the work.
  }
}

void MaskThreads::fill(std::span<const Task> tasks, int32_t mask_words) {
  std::vector<std::shared_ptr<Job>> jobs;
  for (const Task& task : tasks) {
    auto job = std::make_shared<Job>();
    job->source = task.source;
    job->drafted.assign(task.drafted.begin(), task.drafted.end());
    job->destination = task.words;
    job->mask_words = mask_words;
    jobs.push_back(std::move(job));
  }
  std::ranges::stable_sort(jobs, {}, [](const auto& job) { return job->source->last_time; });
  std::vector<MaskSource*> sources;  // the tasks own the sources, because a late job drops its reference at any time
  for (const auto& job : jobs) sources.push_back(job->source.get());
  const auto begin = Clock::now(), end = begin + kMaskPatience * limit_;
  std::unique_lock lock(mutex_);
  start_threads(jobs.size());
  waiting_.assign(jobs.begin(), jobs.end());
  open_ = jobs.size();
  wake_.notify_all();
  const auto all_done = [&] { return open_ == 0; };
  for (Clock::time_point next = begin + limit_; !finished_.wait_until(lock, next, all_done);
       next += std::chrono::nanoseconds(limit_) / kLooks) {
    if (give_up_late(jobs, Clock::now() >= end)) break;
    start_threads(jobs.size());  // replaces threads that late jobs hold
    wake_.notify_all();
  }
  waiting_.clear();
  finished_.wait(lock, [&] { return open_ == 0; });  // waits for results that are being copied
  lock.unlock();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = *jobs[i];
    if (job.state != Job::State::kGivenUp) continue;
    sources[i]->give_up(job.why);
    std::fill_n(job.destination, (job.drafted.size() + 1) * static_cast<size_t>(mask_words), ~0u);
  }
}

// REQUIRES: mutex_ is held. Returns true when every job has its masks or is given up.
bool MaskThreads::give_up_late(std::span<const std::shared_ptr<Job>> jobs, bool all) {
  bool none_left = true;
  for (const auto& job : jobs) {
    if (job->state != Job::State::kOpen) continue;
    const bool late = job->running && computed(job->thread) - job->begin >= limit_;
    if (!late && !all) {
      none_left = false;
      continue;
    }
    job->state = Job::State::kGivenUp;
    job->why = late ? MaskSource::Why::kLate : MaskSource::Why::kBusy;
    --open_;
    if (job->running) {
      --running_;
      ++late_;
    }
  }
  return none_left;
}

void MaskThreads::discard(std::shared_ptr<MaskSource> source) {
  {
    const std::lock_guard lock(mutex_);
    discarded_.push_back(std::move(source));
  }
  wake_.notify_one();
}

void MaskThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !discarded_.empty() || (!waiting_.empty() && running_ < width_); });
    if (!waiting_.empty() && running_ < width_) {
      const std::shared_ptr<Job> job = std::move(waiting_.front());
      waiting_.pop_front();
      run(job, lock);
    } else if (!discarded_.empty()) {
      std::vector<std::shared_ptr<MaskSource>> drop;
      drop.swap(discarded_);
      lock.unlock();
      drop.clear();
      lock.lock();
    } else if (stopping_) {
      return;
    }
  }
}

void MaskThreads::run(const std::shared_ptr<Job>& job, std::unique_lock<std::mutex>& lock) {
  pthread_getcpuclockid(pthread_self(), &job->thread);
  job->begin = computed(job->thread);
  job->running = true;
  ++running_;
  lock.unlock();
  const auto begin = Clock::now();
  job->words.resize((job->drafted.size() + 1) * static_cast<size_t>(job->mask_words));
  job->source->fill(job->drafted, job->words.data(), job->mask_words);
  const auto time = Clock::now() - begin;
  lock.lock();
  if (job->state == Job::State::kGivenUp) {
    lock.unlock();
    job->source.reset();
    lock.lock();
    --late_;
    return;
  }
  job->state = Job::State::kCopying;
  --running_;
  lock.unlock();
  wake_.notify_one();
  std::ranges::copy(job->words, job->destination);
  job->source->last_time = time;
  lock.lock();
  job->state = Job::State::kDone;
  if (--open_ == 0) finished_.notify_one();
}

}  // namespace volley::decode
