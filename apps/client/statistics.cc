#include "apps/client/statistics.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace volley::apps {
namespace {

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

double at_rank(const std::vector<double>& sorted, double fraction) {
  const double rank = fraction * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (rank - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {at_rank(values, 0.50), at_rank(values, 0.99)};
}

std::string describe_summary(const RunSummary& s) {
  if (s.requests == 0) return "0 requests";
  char line[256];
  const int used = std::snprintf(line, sizeof line, "%lld request%s", static_cast<long long>(s.requests),
                                 s.requests == 1 ? "" : "s");
  std::string text(line, static_cast<size_t>(used));
  if (s.errors > 0) text += ", " + std::to_string(s.errors) + " failed";
  std::snprintf(line, sizeof line,
                ": %lld token%s in %.3g s, %.0f tok/s, %.2f tokens a step, first token after %.1f ms (p50)",
                static_cast<long long>(s.completion_tokens), s.completion_tokens == 1 ? "" : "s", s.wall_s,
                s.decode_tok_s, s.acceptance_length, s.ttft_ms.p50);
  return text + line;
}

void RunRecorder::on_start(Clock::time_point now) {
  if (!begun_) begin_ = end_ = now;
  begun_ = true;
  ++sums_.requests;
}

void RunRecorder::on_first_token(Clock::time_point now) {
  if (decoding_++ == 0) decoding_since_ = now;
}

void RunRecorder::on_finish(Clock::time_point now, const Finish& finish, bool had_tokens) {
  end_ = now;
  if (had_tokens && --decoding_ == 0) sums_.decode_s += seconds(now - decoding_since_);
  const Usage& usage = finish.usage;
  if (finish.reason == FinishReason::kError) ++sums_.errors;
  sums_.prompt_tokens += usage.prompt_tokens;
  sums_.cached_tokens += usage.cached_tokens;
  sums_.completion_tokens += usage.completion_tokens;
  sums_.steps += static_cast<int64_t>(finish.tokens_per_step.size());
  committed_ = std::accumulate(finish.tokens_per_step.begin(), finish.tokens_per_step.end(), committed_);
  if (usage.completion_tokens > 0) ttft_ms_.push_back(usage.ttft_s * 1e3);
  const double after_first_ms = (usage.total_s - usage.ttft_s) * 1e3;
  if (usage.completion_tokens > 1) {
    after_first_ += usage.completion_tokens - 1;
    tpot_ms_.push_back(after_first_ms / (usage.completion_tokens - 1));
  }
  if (!finish.tokens_per_step.empty()) {
    step_ms_.push_back(after_first_ms / static_cast<double>(finish.tokens_per_step.size()));
  }
}

void RunRecorder::on_start_failed() {
  ++sums_.errors;
}

void RunRecorder::on_refused() {
  ++sums_.requests;
  ++sums_.errors;
}

RunSummary RunRecorder::summary() const {
  RunSummary summary = sums_;
  summary.wall_s = seconds(end_ - begin_);
  summary.decode_tok_s = summary.decode_s > 0 ? static_cast<double>(after_first_) / summary.decode_s : 0;
  summary.acceptance_length = sums_.steps > 0 ? static_cast<double>(committed_) / static_cast<double>(sums_.steps) : 0;
  summary.ttft_ms = percentiles(ttft_ms_);
  summary.step_ms = percentiles(step_ms_);
  summary.tpot_ms = percentiles(tpot_ms_);
  return summary;
}

}  // namespace volley::apps
