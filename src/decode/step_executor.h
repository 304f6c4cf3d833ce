// What runs a step of the engine over all its slots: one round, or the rounds of a tensor-parallel group, which get the
// same commands in the same order. A command is a struct that says what it returns, and what its fields are, in the
// order in which they go to another process (nodes/calls.cc). A new one stands here, in Round::Perform (round.cc) and
// where it is given: everything between passes all of them on. Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "decode/mask_source.h"
#include "kv/layout.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"

namespace volley::decode {

// Acceptance that is simulated, to measure with random weights: a drafted token whose predecessors were accepted is
// accepted with probability `p`, whatever the target chose; `confidence` is what the drafter is said to have said.
struct SimulatedAcceptance {
  float p = 0, confidence = 0;
};

// How many rows of the target's pass the decoding segments get.
struct VerifyBudget {
  static constexpr int32_t kAll = ops::SharePlan::kAll;
  int32_t rows = kAll;                        // last tokens included; kAll: every drafted token is verified
  const ops::SurvivalTable* table = nullptr;  // unless kAll; copied by Enqueue
};

// What ends a request on the device.
struct SlotLimits {
  std::vector<TokenId> end_ids;  // end-of-sequence (unless ignored) and stop ids; at most ops::kMaxEndIds
  int32_t min_tokens = 0;        // end ids do not count before
  int32_t max_tokens = 0;
};

struct SlotStart {
  ops::SlotSampling sampling;
  SlotLimits limits;
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;  // of a resumed request
  int32_t draft_context = 0;        // windows of the drafter have no K and V before this position
};

// Known tokens whose K and V are not there yet, then drafted ones.
struct RoundSegment {
  static constexpr int32_t kLastToken = ops::StepSegment::kFromSlot;
  int32_t slot = 0;
  int32_t start = kLastToken;      // sequence index of known[0]; kLastToken: the slot's last token, known is empty
  std::span<const TokenId> known;  // copied by Enqueue
  int32_t draft = 0;               // tokens to draft; all or some are verified; REQUIRES start == kLastToken when > 0
  bool chooses = false;            // a token is chosen after the last known row
  // For a request with a grammar, else null; asked while the target runs: by Enqueue, or where two steps may be under
  // way by FillMasks. Its answers depend on all committed tokens.
  std::shared_ptr<MaskSource> masks;
  // Logprobs of a prompt: for as many of the first known rows the tokens that follow them. Copied by Enqueue.
  std::span<const TokenId> scored;
  float shift = 0;  // the request's, for VerifyBudget::table
  std::optional<SimulatedAcceptance> simulate;
};

struct RoundResult {
  std::vector<TokenId> tokens;             // committed; empty when the segment does not choose, or its slot was done
  int32_t drafted = 0;                     // tokens that were drafted and verified
  std::vector<float> confidence;           // of each token that was drafted, verified or not
  int32_t accepted = 0;                    // of `tokens`, how many were drafted
  bool ended = false;                      // the last one is an end id
  bool exhausted = false;                  // max_tokens reached
  bool finite = true;                      // false: after `tokens` there was nothing to choose; the slot is done
  std::vector<PositionLogprobs> logprobs;  // one a token, for slots that asked
  std::vector<PositionLogprobs> scores;    // one for each of RoundSegment::scored, with the ops::kMaxLogprobs highest
};

// Seconds, summed over steps. The first four are only counted with RoundConfig::profile and on the CPU.
struct PhaseTimes {
  double draft = 0, target = 0, choose = 0, commit = 0;
  double device = 0;  // from the start of each step's work to its end
  double idle = 0;    // from the end of a step's work to the start of the next one's, where one followed at once
};

// Seconds of one step on the device.
struct StepTimes {
  double draft = 0;                                    // the drafter's pass
  double rest = 0;                                     // everything after it
  std::chrono::steady_clock::time_point arrived = {};  // when the host saw its end
};

// What Wait brings.
struct StepResults {
  std::vector<RoundResult> results;  // results[i] belongs to the step's segments[i]
  StepTimes times;
  PhaseTimes phases;            // StepExecutor::times()
  int64_t experts_touched = 0;  // StepExecutor::experts_touched()
};

// kResourceExhausted when there is no memory for what the request's sampling needs; the slot is then clear.
struct StartSlot {
  using Returns = Status;
  int32_t slot = 0;
  SlotStart start;
  void fields(auto& f) { f.slot(slot), f.start(start); }
};

struct ClearSlot {
  using Returns = void;
  int32_t slot = 0;
  void fields(auto& f) { f.slot(slot); }
};

// page_table of the group [slot][index] = page. Asks nothing of a device.
struct SetPage {
  using Returns = void;
  int32_t slot = 0;
  int32_t group = 0;
  int32_t index = 0;
  PageId page;
  void fields(auto& f) { f.slot(slot), f.group(group), f.index(index), f.page(group, page); }
};

// In the order of the commands, behind the steps that are enqueued and before those that will be. The host does not
// wait.
struct CopyMemory {
  using Returns = void;
  kv::MemoryCopy copy;
  void fields(auto& f) { f.copy(copy); }
};

// The memory that Enqueue of these segments asks for: afterwards it asks for none. REQUIRES and errors as there.
struct Reserve {
  using Returns = Status;
  std::span<const RoundSegment> segments;
  void fields(auto& f) { f.segments(segments); }
};

// REQUIRES: under_way() < depth(); a slot in at most one segment; with a budget, segments that decode come first, and
// its rows are at least as many as they and at most most_shared_rows().
// kResourceExhausted when there is no memory for a prompt's logprobs, or there are no threads for
// grammar masks; nothing was enqueued then.
struct Enqueue {
  using Returns = Status;
  std::span<const RoundSegment> segments;
  VerifyBudget budget;
  void fields(auto& f) { f.step(segments, budget); }
};

// The masks of the oldest step, for which the device waits. REQUIRES: depth() > 1; that step has some; the mask sources
// know the results of all steps before. To be given before Wait.
struct FillMasks {
  using Returns = void;
  void fields(auto&) {}
};

// Waits for the oldest step. REQUIRES: under_way() > 0.
struct Wait {
  using Returns = StepResults;
  void fields(auto&) {}
};

// A pass of the target without rows, for those of replicas that share its experts (RoundConfig::exchange). On a GPU it
// is under way on return, behind at most one other; throws DeviceFault once another replica is gone. REQUIRES: there
// are such; no step is under way.
struct TakePart {
  using Returns = void;
  void fields(auto& f) { f.of_one_process(); }
};
// Waits for the last of these passes: what it touched is counted, and that nobody is gone is known.
struct Settle {
  using Returns = void;
  void fields(auto& f) { f.of_one_process(); }
};

using Command =
    std::variant<StartSlot, ClearSlot, SetPage, CopyMemory, Reserve, Enqueue, FillMasks, Wait, TakePart, Settle>;
// To a command that returns nothing: monostate.
using Answer = std::variant<std::monostate, Status, StepResults>;

inline bool is_refusal(const Answer& answer) {
  const auto* status = std::get_if<Status>(&answer);
  return status != nullptr && !status->ok();
}
// Whether it is of the command's type.
inline bool fits(const Answer& answer, const Command& command) {
  return std::visit(
      [&]<typename C>(const C&) {
        using Returns = typename C::Returns;
        return std::holds_alternative<std::conditional_t<std::is_void_v<Returns>, std::monostate, Returns>>(answer);
      },
      command);
}
// Whether another process answers it. Enqueue cannot be refused there: Reserve has come first.
inline bool is_answered(const Command& command) {
  return !fits({}, command) && !std::holds_alternative<Enqueue>(command);
}

// What stays as it is while there is the executor.
struct StepTraits {
  int32_t depth = 1;       // steps that may be under way at once
  int32_t block_size = 1;  // 1: no drafting
  // What a verify budget may be: rows above most_shared_rows cannot be shared out (one chunk of logits holds no more),
  // and row_buckets are the sizes that are recorded (empty: any size is as good).
  int32_t most_shared_rows = 0;
  std::vector<int32_t> row_buckets;
  std::vector<int32_t> draft_lengths;  // RoundConfig::draft_lengths
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Any command; the answer fits it. Throws DeviceFault.
  virtual Answer perform(const Command& command) = 0;
  // One command, with what it returns.
  template <typename C>
  typename C::Returns execute(C command) {
    Answer answer = perform(std::move(command));
    if constexpr (!std::is_void_v<typename C::Returns>) return std::get<typename C::Returns>(std::move(answer));
  }
  Status enqueue(std::span<const RoundSegment> segments, const VerifyBudget& budget = {}) {
    return execute(Enqueue{segments, budget});
  }
  StepTimes wait(std::vector<RoundResult>& results) {
    StepResults step = execute(Wait{});
    results = std::move(step.results);
    return step.times;
  }

  const StepTraits& traits() const { return traits_; }
  int32_t depth() const { return traits_.depth; }
  int32_t block_size() const { return traits_.block_size; }
  int32_t most_shared_rows() const { return traits_.most_shared_rows; }
  const std::vector<int32_t>& row_buckets() const { return traits_.row_buckets; }
  const std::vector<int32_t>& draft_lengths() const { return traits_.draft_lengths; }

  virtual const std::vector<kv::Group>& page_groups() const = 0;  // of one rank
  virtual int32_t under_way() const = 0;                          // steps
  // Drops a mask source where that delays no step.
  virtual void discard(std::shared_ptr<MaskSource> source) = 0;
  virtual const PhaseTimes& times() const = 0;
  // Distinct experts that the target's passes touched, summed over layers and the steps that Wait brought.
  virtual int64_t experts_touched() const = 0;

 protected:
  StepTraits traits_;
};

}  // namespace volley::decode
