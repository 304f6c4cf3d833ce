#include "sched/prompt_budget.h"

#include <algorithm>
#include <cmath>

namespace volley::sched {
namespace {

// However long the others' part of a step is, so much of the target is the prompts'.
constexpr double kLeastPromptShare = 0.2;
// So much of it is the others' with their drafts, even where prompts could use it. No more, as drafted tokens can wait
// for later steps, and what a new request waits for cannot. With 0.35, 128 requests with prompts of 1,024 tokens on an
// H200 waited 1.8 times as long for their first token, and tokens a second in all were no more.
constexpr double kLeastDecodingShare = 0.15;

}  // namespace

PromptBudget TargetStep::prompts(double decoding_s, double row, double position) const {
  if (seconds <= 0) return {};
  return {std::max(seconds - decoding_s, kLeastPromptShare * seconds), row, position};
}

double TargetStep::decoding(double prompts_s) const {
  if (seconds <= 0) return std::numeric_limits<double>::infinity();
  return std::max(seconds - prompts_s, kLeastDecodingShare * seconds);
}

double PromptBudget::cost(int32_t start, int32_t rows) const {
  const double n = rows;
  const double positions = n * start + n * (n + 1) / 2;
  return n * row + positions * position;
}

int32_t PromptBudget::rows_within(double allowed, int32_t start, int32_t most) const {
  if (cost(start, most) <= allowed) return most;
  // cost(n) = n * linear + n^2 * square, solved for n.
  const double linear = row + position * (start + 0.5), square = position / 2;
  const double root = std::sqrt(linear * linear + 4 * square * std::max(allowed, 0.0));
  const double n = 2 * std::max(allowed, 0.0) / (linear + root);  // the usual form loses precision for small squares
  auto rows = static_cast<int32_t>(std::clamp(n, 0.0, static_cast<double>(most)));
  while (rows > 0 && cost(start, rows) > allowed) --rows;  // rounding
  return rows;
}

int32_t PromptAllowance::take(int32_t start, int32_t most) {
  if (!limited_) return most;
  int32_t rows = budget_.rows_within(left_, start, most);
  if (rows < most) empty_ = true;
  const int32_t least = std::min(kLeastRows, most);
  if (rows < least) rows = first_ ? least : 0;
  first_ = false;
  left_ -= budget_.cost(start, rows);
  return rows;
}

}  // namespace volley::sched
