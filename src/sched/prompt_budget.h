// The budget for prompts in a step in which other requests decode: every stream waits for the whole step, so prompt
// rows are bounded by time, not by number. Arithmetic only; the caller chooses the unit that is called a second.
#pragma once

#include <cstdint>
#include <limits>

namespace volley::sched {

// A prompt row costs `row` seconds, plus `position` for each position that the row sees.
struct PromptBudget {
  double seconds = std::numeric_limits<double>::infinity();  // seconds for all prompt rows of a step
  double row = 0, position = 0;

  // Cost of rows at sequence indices start … start + rows - 1. A row sees all positions before it and itself.
  double cost(int32_t start, int32_t rows) const;
  // The most rows from `start` on that cost at most `allowed` seconds; at most `most`.
  int32_t rows_within(double allowed, int32_t start, int32_t most) const;
};

// The target for a step in which prompts are computed beside requests that decode, and how both share it. A target, not
// a bound: a step takes at least PromptAllowance::kLeastRows rows of a prompt, and what it takes without prompts is not
// theirs to change.
struct TargetStep {
  double seconds = 0;  // 0: none, and prompts come in whole chunks

  // decoding_s: what the requests that decode take of the step. row, position: PromptBudget's.
  PromptBudget prompts(double decoding_s, double row, double position) const;
  // What they should take at most beside prompts that cost prompts_s: drafts that take longer would keep prompts from
  // their part.
  double decoding(double prompts_s) const;
};

// Hands out one step's budget, prompt by prompt.
class PromptAllowance {
 public:
  // Rows of the first prompt that a step computes whatever they cost, so that no prompt waits for ever. Also the fewest
  // rows that are worth a segment of another prompt in the same step.
  static constexpr int32_t kLeastRows = 16;

  // limited: whether any request decodes in the step. Without one there is no bound.
  PromptAllowance(const PromptBudget& budget, bool limited) : budget_(budget), limited_(limited) {
    left_ = budget.seconds;
  }

  bool empty() const { return empty_; }
  // How many rows of a prompt to compute from `start` on, at most `most`. 0: the next prompt must wait for another
  // step.
  int32_t take(int32_t start, int32_t most);

 private:
  PromptBudget budget_;
  bool limited_;
  double left_ = 0;
  bool first_ = true, empty_ = false;
};

}  // namespace volley::sched
