// Lists all options of a round, with their expected costs and gains.
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
  double tokens = 0;            // expected number in the round
  double seconds = 0;           // predicted time of the round
  // Seconds of the round without the time that its prompts would add to plain decoding. It is at least the predicted
  // time without prompts, because more rows are never cheaper, even if the difference of two predictions says so.
  double charged = 0;
  int32_t drafter = 0;  // 0 for plain decoding, too
  double rate() const { return tokens / charged; }
};

struct RoundToChoose {
  int32_t requests = 0;
  int32_t most_draft = 0;  // the most that any request can use
  int32_t other_rows = 0;
  int64_t kv_tokens = 0;
  int32_t joining = 0;                                            // requests that decode from the next round on
  double most_seconds = std::numeric_limits<double>::infinity();  // see PassPrompts
};

class Options {
 public:
  explicit Options(const BudgetConfig& config) : config_(config) {}  // config must outlive this
  explicit Options(BudgetConfig&&) = delete;

  // Computes all options. replays: one for each drafter, which have begun. Then of_length(0) is plain decoding, and
  // each length of each drafter that a request can use has an option, in their order.
  void evaluate(const RoundToChoose& round, const CostModel& costs, std::span<Replay> replays);

  size_t lengths() const { return begins_.size() - 1; }
  std::span<const Option> of_length(size_t i) const {  // ascending rows
    return std::span(options_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
  }
  const Option& plain() const { return options_.front(); }
  // Among equal rates fewer drafted tokens win, then fewer rows. best() keeps to most_seconds.
  const Option& best_of_length(size_t i) const;
  const Option& best() const;
  // Whether best() charges for the time of requests that wait to join. It does so when plain decoding of all requests
  // would give more tokens a second than any option: each second then costs that many tokens.
  bool others_wait() const { return worth_ > 0; }
  bool allowed(const Option& option) const { return option.draft == 0 || option.charged <= most_seconds_; }
  // Whether RoundToChoose::most_seconds forbids some of the options.
  bool bounded() const { return bounded_; }

  // The shape that actually runs, which the costs are for: only some sizes of drafts and passes are recorded.
  RoundShape shape(const RoundToChoose& round, int32_t drafter, int32_t draft, int32_t rows) const;

 private:
  // A number of rows to consider with every longer draft, and its cost after the drafter's pass.
  struct Size {
    int32_t rows = 0;
    double seconds = 0;
    double alone = 0;  // seconds without the prompts
  };
  Size size(const RoundToChoose& round, int32_t rows, const CostModel& costs) const;
  void fill_sizes(const RoundToChoose& round, const CostModel& costs);
  // Adds the lengths of a drafter. others: seconds that the prompts add.
  void add_drafter(int32_t drafter, const RoundToChoose& round, double others, const CostModel& costs, Replay& replay);

  const BudgetConfig& config_;
  std::vector<Option> options_;
  std::vector<size_t> begins_;
  std::vector<Size> sizes_;  // ascending rows
  double most_seconds_ = 0;
  bool bounded_ = false;
  double worth_ = 0;  // tokens a second; 0: no request waits, or haste gains nothing
};

}  // namespace volley::decode
