#include "spec/budget/options.h"

#include <algorithm>

namespace volley::spec {
namespace {

// Sizes to look at where any is possible: between two of them the gain is nearly linear.
constexpr int32_t kRowSteps = 16;

const Option& better(const Option& a, const Option& b) {
  constexpr double kEqual = 1e-9;
  return b.tokens * a.charged > a.tokens * b.charged * (1 + kEqual) ? b : a;  // of rates, without dividing
}

}  // namespace

RoundShape Options::shape(const RoundToChoose& round, int32_t draft, int32_t rows) const {
  RoundShape shape = {round.requests, draft, rows, round.other_rows, round.kv_tokens};
  const auto length = std::ranges::lower_bound(config_.draft_lengths, draft);
  if (draft > 0 && length != config_.draft_lengths.end()) shape.draft = *length;
  if (config_.row_buckets.empty() || round.other_rows > 0 || draft == 0) return shape;
  // Too many rows to be shared out: whole blocks run.
  if (rows > config_.most_shared_rows) {
    shape.verify_rows = round.requests * (config_.max_draft + 1);
    return shape;
  }
  const auto bucket = std::ranges::lower_bound(config_.row_buckets, rows);
  if (bucket != config_.row_buckets.end()) shape.verify_rows = *bucket;
  return shape;
}

// total: rows for all that is drafted. most: that the pass has room for.
void Options::fill_rows(int32_t requests, int32_t total, int32_t most) {
  rows_.clear();
  const int32_t shared = std::min({config_.most_shared_rows, most, total - 1});
  if (config_.row_buckets.empty()) {
    const int32_t step = std::max(1, (shared - requests + kRowSteps) / kRowSteps);
    for (int32_t rows = requests + 1; rows <= shared; rows += step) rows_.push_back(rows);
  } else {
    for (const int32_t rows : config_.row_buckets) {
      if (rows > requests && rows <= shared) rows_.push_back(rows);
    }
  }
  if (total <= most) rows_.push_back(total);
}

void Options::evaluate(const RoundToChoose& round, const CostModel& costs, Replay& replay) {
  options_.clear();
  begins_.assign(1, 0);
  RoundToChoose alone = round;
  alone.other_rows = 0;
  const double plain = costs.predict(shape(round, 0, round.requests)).total();
  // What prompts add. The same for every option, or else the prompts would seem to pay for long drafts.
  const double others = round.other_rows > 0 ? plain - costs.predict(shape(alone, 0, round.requests)).total() : 0;
  options_.push_back({0, round.requests, static_cast<double>(round.requests), plain, plain - others});
  begins_.push_back(1);
  int32_t before = 0;
  for (const int32_t length : config_.draft_lengths) {
    if (before >= round.most_draft) break;
    before = length;
    replay.extend(length);
    fill_rows(round.requests, round.requests + replay.places(), config_.max_rows - round.other_rows);
    if (rows_.empty()) break;
    const double draft = costs.predict_draft(shape(round, length, round.requests));
    for (const int32_t rows : rows_) {
      const double seconds = draft + costs.predict_rest(shape(round, length, rows));
      const double tokens = round.requests + replay.accepted(rows - round.requests);
      options_.push_back({length, rows, tokens, seconds, std::max(seconds, plain) - others});
    }
    begins_.push_back(options_.size());
  }
}

const Option& Options::best_of_length(size_t i) const {
  const std::span<const Option> options = of_length(i);
  const Option* best = &options.front();
  for (const Option& option : options) best = &better(*best, option);
  return *best;
}

const Option& Options::best() const {
  const Option* best = &options_.front();
  for (const Option& option : options_) best = &better(*best, option);
  return *best;
}

}  // namespace volley::spec
