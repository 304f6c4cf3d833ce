#include "apps/bench/occupancy.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace volley::apps {
namespace {

using std::chrono::microseconds;

// Short enough to end an interrupted run at once, long enough to leave the cores to the engine.
constexpr microseconds kShortest{200}, kLongest{50'000};

// Waits for half of the remaining work, by the speed so far.
microseconds pause(Clock::duration elapsed, int64_t done, int64_t left) {
  if (done <= 0) return kShortest;
  return std::clamp(std::chrono::duration_cast<microseconds>(elapsed) * left / done / 2, kShortest, kLongest);
}

}  // namespace

Occupancy::Occupancy(Engine& engine, InterruptWatch* interrupt, Sample sample)
    : engine_(engine), interrupt_(*interrupt), sample_(std::move(sample)), pool_(engine), scope_(interrupt, [this] {
        pool_.wake();
      }) {}

Occupancy::~Occupancy() {
  drain();
}

Status Occupancy::fill(std::vector<GenerateRequest> requests) {
  requests_ = static_cast<int64_t>(requests.size());
  if (requests_ > engine_.info().max_num_seqs) {
    return failed_precondition(std::to_string(requests_) + " requests cannot decode at once with --max-num-seqs " +
                               std::to_string(engine_.info().max_num_seqs) + ": raise it, or lower --concurrency.");
  }
  for (int64_t i = 0; i < requests_; ++i) {
    VOLLEY_RETURN_IF_ERROR(pool_.submit(i, std::move(requests[static_cast<size_t>(i)])));
  }
  while (!interrupt_.interrupted()) {
    const EngineStats stats = look();
    if (pool_.open() < requests_) return check_all_run(stats);
    if (pool_.answering() == requests_ && stats.requests_running == requests_) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

Result<EngineStats> Occupancy::wait_for(int64_t steps) {
  const auto begin = Clock::now();
  EngineStats stats = look();
  for (const int64_t first = stats.steps;; stats = look()) {
    if (interrupt_.interrupted()) return stats;
    VOLLEY_RETURN_IF_ERROR(check_all_run(stats));
    if (stats.steps >= steps) return stats;
    const auto wait = pause(Clock::now() - begin, stats.steps - first, steps - stats.steps);
    std::this_thread::sleep_for(sample_ ? kShortest : wait);
  }
}

void Occupancy::drain() {
  pool_.cancel_all();
  while (pool_.open() > 0) pool_.wait(std::chrono::milliseconds(20));
  // The last event comes a little before the counters include it.
  while (look().requests_running > 0) std::this_thread::sleep_for(kShortest);
}

Status Occupancy::check_all_run(const EngineStats& stats) const {
  if (pool_.open() < requests_) {
    return failed_precondition("A request ended before the measurement did: raise --max-model-len, or lower --rounds.");
  }
  if (stats.requests_running == requests_) return {};
  return failed_precondition("The memory for KV does not hold " + std::to_string(requests_) +
                             " such requests: lower --concurrency, --rounds or --prompt-tokens.");
}

EngineStats Occupancy::look() {
  EngineStats stats = engine_.stats();
  if (sample_) sample_(stats);
  return stats;
}

}  // namespace volley::apps
