// Statistics of a run of requests. Threads: one at a time.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace volley::apps {

using Clock = std::chrono::steady_clock;

struct Percentiles {
  double p50 = 0, p99 = 0;
};

// The value at `fraction` of sorted values, interpolated between the two nearest ranks. REQUIRES: at least one value.
double at_rank(const std::vector<double>& sorted, double fraction);
// All zero without values.
Percentiles percentiles(std::vector<double> values);

struct RunSummary {
  int64_t requests = 0;  // failed ones included
  int64_t errors = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  double wall_s = 0;             // from the first request to the end of the last
  double decode_s = 0;           // time with at least one request past its first token
  double decode_tok_s = 0;       // tokens after each request's first, per second of decode_s
  int64_t steps = 0;             // verify steps of all requests
  double acceptance_length = 0;  // mean tokens of a verify step, the bonus token included; 0: no steps
  Percentiles ttft_ms;           // from submit to the first token
  Percentiles step_ms;           // time from a request's first to last token, divided by its verify steps
  Percentiles tpot_ms;           // the same, divided by its tokens after the first
};

// One line for people: "3 requests, 1 failed: 210 tokens in 0.31 s, …".
std::string describe_summary(const RunSummary& summary);

// Collects one run. Memory: 24 bytes a request.
class RunRecorder {
 public:
  void on_start(Clock::time_point now);
  void on_first_token(Clock::time_point now);
  // Counts the end of a request that on_start saw; `had_tokens`: on_first_token was called for it.
  void on_finish(Clock::time_point now, const Finish& finish, bool had_tokens);
  void on_start_failed();  // the engine refused the request of the last on_start
  void on_refused();       // a bad input line, which was never started

  RunSummary summary() const;

 private:
  RunSummary sums_;
  int64_t committed_ = 0;    // tokens of verify steps
  int64_t after_first_ = 0;  // tokens after each request's first
  int64_t decoding_ = 0;     // requests past their first token
  Clock::time_point begin_{}, end_{}, decoding_since_{};
  bool begun_ = false;
  std::vector<double> ttft_ms_, tpot_ms_, step_ms_;
};

}  // namespace volley::apps
