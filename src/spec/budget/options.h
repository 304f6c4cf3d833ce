// Everything that a round could do, with what it is expected to cost and to gain.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "spec/budget/policy.h"
#include "spec/budget/replay.h"

namespace volley::spec {

struct Option {
  int32_t draft = 0, rows = 0;  // as in Decision
  double tokens = 0;            // expected of the round
  double seconds = 0;           // of the round
  // Seconds of the round without what prompts in the pass add to plain decoding. At least what the round would take
  // without prompts: rows are no cheaper for being many, even if the difference of two predictions says so.
  double charged = 0;
  double rate() const { return tokens / charged; }
};

// The coming round.
struct RoundToChoose {
  int32_t requests = 0;
  int32_t most_draft = 0;  // of any request
  int32_t other_rows = 0;
  int64_t kv_tokens = 0;
  int32_t joining = 0;                                            // requests that decode from the next round on
  double most_seconds = std::numeric_limits<double>::infinity();  // PassPrompts
};

class Options {
 public:
  explicit Options(const BudgetConfig& config) : config_(config) {}

  // `replay` has begun. Afterwards of_length(0) is plain decoding, and there is one for each length of drafts that
  // somebody can use.
  void evaluate(const RoundToChoose& round, const CostModel& costs, Replay& replay);

  size_t lengths() const { return begins_.size() - 1; }
  std::span<const Option> of_length(size_t i) const {  // ascending rows
    return std::span(options_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
  }
  const Option& plain() const { return options_.front(); }
  // Among equal rates the one with fewer drafted tokens, then with fewer rows. best(): of those that most_seconds
  // allows.
  const Option& best_of_length(size_t i) const;
  const Option& best() const;
  // Whether best() goes by what time is worth to requests that wait to join: where plain decoding of all of them gives
  // more tokens a second than anything now, each second costs so many, and what is left of the tokens counts.
  bool others_wait() const { return worth_ > 0; }
  bool allowed(const Option& option) const { return option.draft == 0 || option.charged <= most_seconds_; }
  // Whether RoundToChoose::most_seconds forbids some of the options.
  bool bounded() const { return bounded_; }

  // The shape that runs, which is what costs are counted by: drafts and recorded passes come in some sizes only.
  RoundShape shape(const RoundToChoose& round, int32_t draft, int32_t rows) const;

 private:
  // Rows to look at with every length that drafts more, and what they cost after the drafter's pass.
  struct Size {
    int32_t rows = 0;
    double seconds = 0;
    double alone = 0;  // without the prompts
  };
  Size size(const RoundToChoose& round, int32_t rows, const CostModel& costs) const;
  void fill_sizes(const RoundToChoose& round, const CostModel& costs);

  const BudgetConfig& config_;
  std::vector<Option> options_;
  std::vector<size_t> begins_;
  std::vector<Size> sizes_;  // ascending
  double most_seconds_ = 0;
  bool bounded_ = false;
  double worth_ = 0;  // tokens a second, 0 where nobody waits or nothing is gained by haste
};

}  // namespace volley::spec
