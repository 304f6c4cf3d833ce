#include "decode/budget/options.h"

#include <algorithm>

namespace volley::decode {
namespace {

// Row counts to consider where any count is possible. The gain is nearly linear between two of them. With blocks of 16,
// each step gives every request one more token.
constexpr int32_t kRowSteps = 15;

const Option& better(const Option& a, const Option& b) {
  constexpr double kEqual = 1e-9;
  return b.tokens * a.charged > a.tokens * b.charged * (1 + kEqual) ? b : a;  // compares rates without dividing
}

}  // namespace

RoundShape Options::shape(const RoundToChoose& round, int32_t drafter, int32_t draft, int32_t rows) const {
  RoundShape shape = {round.requests, draft, rows, round.other_rows, round.kv_tokens};
  if (draft > 0) {
    const std::vector<int32_t>& lengths = config_.draft_lengths[drafter];
    const auto length = std::ranges::lower_bound(lengths, draft);
    if (length != lengths.end()) shape.draft = *length;
    shape.drafter = drafter;
  }
  if (config_.row_buckets.empty() || round.other_rows > 0 || draft == 0) return shape;
  // These rows are too many to be shared out, so whole blocks run.
  if (rows > config_.most_shared_rows) {
    shape.verify_rows = round.requests * (config_.max_draft + 1);
    return shape;
  }
  const auto bucket = std::ranges::lower_bound(config_.row_buckets, rows);
  if (bucket != config_.row_buckets.end()) shape.verify_rows = *bucket;
  return shape;
}

// Drafter and length do not matter, because the drafter's pass is not in this cost.
Options::Size Options::size(const RoundToChoose& round, int32_t rows, const CostModel& costs) const {
  const double seconds = costs.predict_rest(shape(round, 0, config_.max_draft, rows));
  if (round.other_rows == 0) return {rows, seconds, seconds};
  RoundToChoose alone = round;
  alone.other_rows = 0;
  return {rows, seconds, costs.predict_rest(shape(alone, 0, config_.max_draft, rows))};
}

void Options::fill_sizes(const RoundToChoose& round, const CostModel& costs) {
  sizes_.clear();
  const int32_t whole = round.requests * (1 + round.most_draft);
  const int32_t most = std::min({config_.most_shared_rows, config_.max_rows - round.other_rows, whole - 1});
  const auto add = [&](int32_t rows) { sizes_.push_back(size(round, rows, costs)); };
  if (config_.row_buckets.empty()) {
    const int32_t step = (whole - round.requests + kRowSteps - 1) / kRowSteps;
    if (step > 1 && round.requests + step / 2 <= most)
      add(round.requests + step / 2);  // keeps probes from being larger than they must be
    for (int32_t rows = round.requests + step; rows <= most; rows += step) add(rows);
    const bool limited = most > round.requests && most < whole - 1;
    if (limited && (sizes_.empty() || sizes_.back().rows < most)) add(most);
  } else {
    for (const int32_t rows : config_.row_buckets) {
      if (rows > round.requests && rows <= most) add(rows);
    }
  }
}

void Options::add_drafter(int32_t drafter, const RoundToChoose& round, double others, const CostModel& costs,
                          Replay& replay) {
  const double plain = options_.front().seconds;
  int32_t before = 0;
  for (const int32_t length : config_.draft_lengths[drafter]) {
    if (before >= round.most_draft) break;
    before = length;
    replay.extend(length);
    const int32_t total = round.requests + replay.places();
    const bool whole_fits = total <= config_.max_rows - round.other_rows;
    // No drafted token fits. No such round could be measured, so the cost of drafting may be unknown.
    if (sizes_.empty() && !whole_fits) break;
    const double draft = costs.predict_draft(shape(round, drafter, length, round.requests));
    const auto add = [&](const Size& size) {
      const double tokens = round.requests + replay.accepted(size.rows - round.requests);
      const double seconds = draft + size.seconds;
      const double charged = std::max({seconds - others, draft + size.alone, plain - others});
      options_.push_back({length, size.rows, tokens, seconds, charged, drafter});
    };
    for (const Size& shared : sizes_) {
      if (shared.rows < total) add(shared);
    }
    if (whole_fits) add(size(round, total, costs));
    if (options_.size() == begins_.back()) break;
    begins_.push_back(options_.size());
  }
}

void Options::evaluate(const RoundToChoose& round, const CostModel& costs, std::span<Replay> replays) {
  options_.clear();
  begins_.assign(1, 0);
  RoundToChoose alone = round;
  alone.other_rows = 0;
  const double plain = costs.predict(shape(round, 0, 0, round.requests)).total();
  // Computes once what the prompts add. Every option is charged the same, or prompts would seem to pay for long drafts.
  const double others = round.other_rows > 0 ? plain - costs.predict(shape(alone, 0, 0, round.requests)).total() : 0;
  options_.push_back({0, round.requests, static_cast<double>(round.requests), plain, plain - others});
  begins_.push_back(1);
  fill_sizes(round, costs);
  for (size_t i = 0; i < replays.size(); ++i) add_drafter(static_cast<int32_t>(i), round, others, costs, replays[i]);
  most_seconds_ = round.most_seconds;
  bounded_ = !std::ranges::all_of(options_, [&](const Option& option) { return allowed(option); });
  worth_ = 0;
  if (round.joining == 0) return;
  alone.requests += round.joining;
  alone.kv_tokens += alone.kv_tokens / round.requests * round.joining;
  const double together = alone.requests / costs.predict(shape(alone, 0, 0, alone.requests)).total();
  if (together > best().rate()) worth_ = together;
}

const Option& Options::best_of_length(size_t i) const {
  const std::span<const Option> options = of_length(i);
  const Option* best = &options.front();
  for (const Option& option : options) best = &better(*best, option);
  return *best;
}

const Option& Options::best() const {
  const Option* best = &options_.front();
  const auto left = [&](const Option& option) { return option.tokens - worth_ * option.charged; };
  for (const Option& option : options_) {
    if (!allowed(option)) continue;
    if (others_wait()) {
      best = left(option) > left(*best) ? &option : best;
    } else {
      best = &better(*best, option);
    }
  }
  return *best;
}

}  // namespace volley::decode
