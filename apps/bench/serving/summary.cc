#include "apps/bench/serving/summary.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "apps/client/statistics.h"

namespace volley::apps {
namespace {

constexpr size_t kErrorTexts = 3;

// Verify steps and the tokens that they gave: all but each answer's first, which the prompt's last position gives.
class Acceptance {
 public:
  void add(const AnswerRecord& record) {
    if (record.completion_tokens < 2) return;
    const int64_t tokens = record.completion_tokens - 1;
    if (record.verify_steps) {
      exact_steps_ += *record.verify_steps;
      exact_tokens_ += tokens;
    }
    if (record.accepted_tokens) {
      // At least one step however many tokens it accepted.
      steps_ += std::max<int64_t>(1, tokens - *record.accepted_tokens);
      tokens_ += tokens;
    }
  }
  void write(ServingSummary* summary) const {
    summary->acceptance_exact = exact_steps_ > 0;
    if (exact_steps_ > 0) {
      summary->acceptance_length = static_cast<double>(exact_tokens_) / static_cast<double>(exact_steps_);
    } else if (steps_ > 0) {
      summary->acceptance_length = static_cast<double>(tokens_) / static_cast<double>(steps_);
    }
  }

 private:
  int64_t exact_steps_ = 0, exact_tokens_ = 0, steps_ = 0, tokens_ = 0;
};

}  // namespace

Distribution distribution(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  Distribution d;
  d.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  d.p50 = at_rank(values, 0.50);
  d.p90 = at_rank(values, 0.90);
  d.p95 = at_rank(values, 0.95);
  d.p99 = at_rank(values, 0.99);
  return d;
}

ServingSummary summarize(const LoadResult& result, const Dataset& dataset) {
  ServingSummary s;
  s.wall_s = result.wall_s;
  std::vector<double> ttft, tpot, itl, e2e;
  Acceptance acceptance;
  for (const AnswerRecord& record : result.records) {
    ++s.requests;
    if (!record.error.empty()) {
      ++s.errors;
      const bool known = std::find(s.error_texts.begin(), s.error_texts.end(), record.error) != s.error_texts.end();
      if (!known && s.error_texts.size() < kErrorTexts) s.error_texts.push_back(record.error);
      continue;
    }
    s.prompt_tokens += record.prompt_tokens;
    s.cached_tokens += record.cached_tokens;
    s.completion_tokens += record.completion_tokens;
    e2e.push_back(record.e2e_s * 1e3);
    if (!record.text.empty()) ttft.push_back(record.ttft_s * 1e3);
    if (record.completion_tokens > 1 && !record.text.empty()) {
      tpot.push_back((record.last_s - record.ttft_s) * 1e3 / static_cast<double>(record.completion_tokens - 1));
    }
    for (const float gap : record.gaps_s) itl.push_back(static_cast<double>(gap) * 1e3);
    acceptance.add(record);
    if (record.accepted_tokens && record.rejected_tokens) {
      s.drafted_tokens = s.drafted_tokens.value_or(0) + *record.accepted_tokens + *record.rejected_tokens;
    }
    const auto& expected = dataset.samples[record.sample % dataset.samples.size()].expected;
    if (!expected) continue;
    ++s.judged;
    s.right += is_right(*expected, record.text);
  }
  if (s.wall_s > 0) {
    s.output_tok_s = static_cast<double>(s.completion_tokens) / s.wall_s;
    s.requests_s = static_cast<double>(s.requests - s.errors) / s.wall_s;
  }
  s.ttft_ms = distribution(std::move(ttft));
  s.tpot_ms = distribution(std::move(tpot));
  s.itl_ms = distribution(std::move(itl));
  s.e2e_ms = distribution(std::move(e2e));
  acceptance.write(&s);
  return s;
}

SameText compare_texts(const LoadResult& a, const LoadResult& b) {
  std::map<size_t, const std::string*> texts;
  for (const AnswerRecord& record : a.records) {
    if (record.error.empty()) texts.emplace(record.sample, &record.text);
  }
  SameText result;
  for (const AnswerRecord& record : b.records) {
    const auto other = texts.find(record.sample);
    if (!record.error.empty() || other == texts.end()) continue;
    ++result.compared;
    result.same += record.text == *other->second;
  }
  return result;
}

}  // namespace volley::apps
