// Shows on stderr how far a batch is and when it will be done. Threads: one.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "apps/console.h"

namespace volley::apps {

// "48 s", "3 min 20 s", "2 h 05 min".
std::string describe_duration(double seconds);

class BatchProgress {
 public:
  // `done`, `failed`: lines, among the file's `lines`, that an earlier run answered.
  BatchProgress(Console* console, int64_t lines, int64_t done, int64_t failed);

  void count(bool failed);            // one more answered line
  void count_tokens(int64_t tokens);  // tokens of an answer
  // Redraws the line on a terminal; elsewhere prints one every half minute.
  void show(int64_t running);
  // Clears the line and sums up. `stats` belong to an engine without other work; the last step may be missing.
  void finish(const EngineStats& stats);

  int64_t failed() const { return failed_; }

 private:
  std::string describe(int64_t running) const;

  using Clock = std::chrono::steady_clock;
  Console& console_;
  const int64_t lines_, done_before_;
  int64_t done_, failed_, tokens_ = 0;
  const Clock::time_point begin_;
  Clock::time_point last_note_;
};

}  // namespace volley::apps
