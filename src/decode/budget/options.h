// All options of a round, with their expected costs and gains.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "decode/budget/policy.h"
#include "decode/budget/replay.h"

namespace volley::decode {

struct Option {
  int32_t draft = 0, rows = 0;  // as in Decision
  double tokens = 0;            // expected in the round
  double seconds = 0;           // of the round
  // Seconds of the round, less the time that its prompts would add to plain decoding. At least the predicted time of
  // the round without prompts: more rows are never cheaper, even if the difference of two predictions says so.
  double charged = 0;
  double rate() const { return tokens / charged; }
};

// The coming round.
struct RoundToChoose {
  int32_t requests = 0;
  int32_t most_draft = 0;  // the most that any request can use
  int32_t other_rows = 0;
  int64_t kv_tokens = 0;
  int32_t joining = 0;                                            // requests that decode from the next round on
  double most_seconds = std::numeric_limits<double>::infinity();  // PassPrompts
};

class Options {
 public:
  explicit Options(const BudgetConfig& config) : config_(config) {}  // which must outlive it
  explicit Options(BudgetConfig&&) = delete;

  // Call after `replay` has begun. Afterwards of_length(0) is plain decoding, and there is an option for each length of
  // drafts that a request can use.
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
  // Whether best() counts time as a cost to requests that wait to join. If plain decoding of all requests would give
  // more tokens a second than any current option, each second costs so many tokens, and the remaining gain counts.
  bool others_wait() const { return worth_ > 0; }
  bool allowed(const Option& option) const { return option.draft == 0 || option.charged <= most_seconds_; }
  // Whether RoundToChoose::most_seconds forbids some of the options.
  bool bounded() const { return bounded_; }

  // The shape that actually runs, by which costs are counted: drafts and recorded passes have only some sizes.
  RoundShape shape(const RoundToChoose& round, int32_t draft, int32_t rows) const;

 private:
  // Numbers of rows to consider with every length that drafts more, and their cost after the drafter's pass.
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
  double worth_ = 0;  // tokens a second; 0 if no request waits or haste gains nothing
};

}  // namespace volley::decode
