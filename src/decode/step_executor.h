// Runs a step of the engine over all its slots: one round, or the rounds of a tensor-parallel group, which get the same
// commands in the same order. A command is a struct that lists its answer and its fields, in the order in which they go
// to another process (nodes/calls.cc). A new command needs this file, Round::Perform (round.cc) and its caller;
// everything between passes all commands on. Threads: one at a time.
#pragma once

#include <array>
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
#include "ops/rope_angles/rope_angles.h"
#include "ops/step/step.h"

namespace volley::decode {

// Simulates acceptance, to measure with random weights. A drafted token whose predecessors were accepted is accepted
// with probability `p`, whatever the target chose. The drafter is taken to have stated `confidence`.
struct SimulatedAcceptance {
  float p = 0, confidence = 0;
};

// Drafters of one engine.
inline constexpr int32_t kMostDrafters = 2;

// Who drafts a step's blocks, and the rows of the target's pass for the decoding segments.
struct VerifyBudget {
  static constexpr int32_t kAll = ops::SharePlan::kAll;
  int32_t rows = kAll;                        // last tokens included; kAll: verify every drafted token
  const ops::SurvivalTable* table = nullptr;  // required unless kAll; Enqueue copies it
  int32_t drafter = 0;                        // index among the round's
};

// Limits that the device applies to a request.
struct SlotLimits {
  std::vector<TokenId> end_ids;  // end-of-sequence (unless ignored) and stop ids; at most ops::kMaxEndIds
  int32_t min_tokens = 0;        // outputs before which end ids do not count
  int32_t max_tokens = 0;
};

struct SlotStart {
  ops::SlotSampling sampling;
  SlotLimits limits;
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;  // tokens of a resumed request
  int32_t draft_context = 0;        // windows of the drafter have no K and V before this position
  int32_t rope_offset = 0;          // the target's rotary position of each token after the prompt, minus its index
};

// A token's rotary positions in time, height and width.
using RopeAxes = std::array<int32_t, ops::kRopeAxes>;

// Consecutive known tokens that bring vectors in place of their rows of the embedding.
struct GivenRows {
  int32_t begin = 0;  // the first of them, counted from the segment's first token
  // Each [rows, hidden]: the embeddings, then what is added after each of the target's first layers
  // (model::Decoder::added_layers).
  std::vector<std::span<const float>> vectors;
};

// Known tokens without K and V yet, then drafted ones.
struct RoundSegment {
  static constexpr int32_t kLastToken = ops::StepSegment::kFromSlot;
  int32_t slot = 0;
  int32_t start = kLastToken;      // sequence index of known[0]; kLastToken: the slot's last token, known is empty
  std::span<const TokenId> known;  // Enqueue copies it
  int32_t draft = 0;               // tokens to draft; all or some are verified; REQUIRES start == kLastToken when > 0
  bool chooses = false;            // chooses a token after the last known row
  // The request's grammar, or null. Enqueue asks it while the target runs, or FillMasks where two steps may be under
  // way. Its answers depend on all committed tokens.
  std::shared_ptr<MaskSource> masks;
  // Asks for a prompt's logprobs: the tokens that follow the first known rows. Enqueue copies it.
  std::span<const TokenId> scored;
  // The rotary positions of the known tokens; empty: their indices. REQUIRES: not empty where SlotStart::rope_offset is
  // not 0. Enqueue copies them.
  std::span<const RopeAxes> axes;
  std::vector<GivenRows> given;  // Enqueue copies the vectors
  float shift = 0;               // the request's shift in VerifyBudget::table
  std::optional<SimulatedAcceptance> simulate;
};

struct RoundResult {
  // committed tokens; empty when the segment does not choose, or its slot was done
  std::vector<TokenId> tokens;
  int32_t drafted = 0;                     // tokens that were drafted and verified
  std::vector<float> confidence;           // one for each drafted token, verified or not
  int32_t accepted = 0;                    // drafted tokens among `tokens`
  bool ended = false;                      // the last token is an end id
  bool exhausted = false;                  // max_tokens is reached
  bool finite = true;                      // false: no token could be chosen after `tokens`, and the slot is done
  std::vector<PositionLogprobs> logprobs;  // one for each token, for slots that asked
  // one for each token of RoundSegment::scored, with the ops::kMaxLogprobs highest
  std::vector<PositionLogprobs> scores;
};

// Seconds, summed over steps. The first four count only with RoundConfig::profile and on the CPU.
struct PhaseTimes {
  double draft = 0, target = 0, choose = 0, commit = 0;
  double device = 0;  // from the start of each step's work to its end
  double idle = 0;    // between the end of a step's work and the start of the next, where one followed at once
};

// Seconds of one step on the device.
struct StepTimes {
  double draft = 0;                                    // the drafter's pass
  double rest = 0;                                     // the rest of the step
  std::chrono::steady_clock::time_point arrived = {};  // when the host saw the step's end
};

// The answer to Wait.
struct StepResults {
  std::vector<RoundResult> results;  // results[i] belongs to the step's segments[i]
  StepTimes times;
  PhaseTimes phases;            // StepExecutor::times()
  int64_t experts_touched = 0;  // see StepExecutor::experts_touched()
};

// The answer to TakeSeen.
struct Seen {
  std::shared_ptr<std::vector<float>> vectors;  // [vectors of a token, tokens, hidden], as GivenRows; not to be changed
  double seconds = 0;                           // of the device, for the whole picture
};

// kResourceExhausted when memory for the request's sampling is missing; the slot is then clear.
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

// Sets page_table of the group [slot][index] = page, without any work on the device.
struct SetPage {
  using Returns = void;
  int32_t slot = 0;
  int32_t group = 0;
  int32_t index = 0;
  PageId page;
  void fields(auto& f) { f.slot(slot), f.group(group), f.index(index), f.page(group, page); }
};

// Copies in the commands' order, behind the enqueued steps and before later ones. The host does not wait.
struct CopyMemory {
  using Returns = void;
  kv::MemoryCopy copy;
  void fields(auto& f) { f.copy(copy); }
};

// Allocates what Enqueue of these segments needs; afterwards Enqueue allocates nothing. REQUIRES and errors as there.
struct Reserve {
  using Returns = Status;
  std::span<const RoundSegment> segments;
  void fields(auto& f) { f.segments(segments); }
};

// REQUIRES: under_way() < depth(); a slot in at most one segment; with a budget, decoding segments first, and a row for
// each of them, at most most_shared_rows(). kResourceExhausted when memory for a prompt's logprobs or threads for
// grammar masks are missing; no step was enqueued then.
struct Enqueue {
  using Returns = Status;
  std::span<const RoundSegment> segments;
  VerifyBudget budget;
  void fields(auto& f) { f.step(segments, budget); }
};

// Fills the masks of the oldest step, for which the device waits. Give it before Wait. REQUIRES: depth() > 1; that step
// has masks; the mask sources know the results of all steps before.
struct FillMasks {
  using Returns = void;
  void fields(auto&) {}
};

// Waits for the oldest step. REQUIRES: under_way() > 0.
struct Wait {
  using Returns = StepResults;
  void fields(auto&) {}
};

// Runs units [begin, end) of the vision tower's work over a picture (model::TowerUnits), behind the enqueued steps. The
// host waits for the units before alone. REQUIRES: units follow those, or begin a picture, with its pixels; the target
// has a tower.
struct See {
  using Returns = void;
  int32_t width = 0, height = 0;
  std::span<const uint8_t> rgb;  // [height, width, 3] with unit 0; else empty
  int32_t begin = 0, end = 0;
  void fields(auto& f) { f.see(*this); }
};

// Waits for the picture's vectors. REQUIRES: its last unit was enqueued.
struct TakeSeen {
  using Returns = Seen;
  void fields(auto&) {}
};

// Runs a target pass without rows, for replicas that share its experts (RoundConfig::exchange). On a GPU it is under
// way on return, behind at most one other; throws DeviceFault once another replica is gone. REQUIRES: such replicas; no
// step is under way.
struct TakePart {
  using Returns = void;
  void fields(auto& f) { f.of_one_process(); }
};
// Waits for the last of these passes. Then its experts are counted. Throws DeviceFault if a replica was gone.
struct Settle {
  using Returns = void;
  void fields(auto& f) { f.of_one_process(); }
};

using Command = std::variant<StartSlot, ClearSlot, SetPage, CopyMemory, Reserve, Enqueue, FillMasks, Wait, TakePart,
                             Settle, See, TakeSeen>;
// monostate answers a command that returns nothing.
using Answer = std::variant<std::monostate, Status, StepResults, Seen>;

inline bool is_refusal(const Answer& answer) {
  const auto* status = std::get_if<Status>(&answer);
  return status != nullptr && !status->ok();
}
// Whether the answer is of the command's type.
inline bool fits(const Answer& answer, const Command& command) {
  return std::visit(
      [&]<typename C>(const C&) {
        using Returns = typename C::Returns;
        return std::holds_alternative<std::conditional_t<std::is_void_v<Returns>, std::monostate, Returns>>(answer);
      },
      command);
}
// Whether another process answers the command. It cannot refuse Enqueue, because Reserve has come first.
inline bool is_answered(const Command& command) {
  return !fits({}, command) && !std::holds_alternative<Enqueue>(command);
}

// Constant for the executor's life.
struct StepTraits {
  int32_t depth = 1;       // steps that may be under way at once
  int32_t block_size = 1;  // 1: no drafting
  // Bounds of a verify budget: more rows than most_shared_rows cannot be shared out, because one chunk of logits holds
  // no more. row_buckets are the recorded sizes (empty: any size is as good).
  int32_t most_shared_rows = 0;
  std::vector<int32_t> row_buckets;
  // By drafter: tokens that a block may draft, ascending; the last is the drafter's most.
  std::vector<std::vector<int32_t>> draft_lengths;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Performs any command; the answer fits it. Throws DeviceFault.
  virtual Answer perform(const Command& command) = 0;
  // Performs one command, and returns its type of answer.
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
  const std::vector<std::vector<int32_t>>& draft_lengths() const { return traits_.draft_lengths; }

  virtual const std::vector<kv::Group>& page_groups() const = 0;  // pages of one rank
  virtual int32_t under_way() const = 0;                          // number of enqueued steps
  // Drops a mask source where that delays no step.
  virtual void discard(std::shared_ptr<MaskSource> source) = 0;
  virtual const PhaseTimes& times() const = 0;
  // Distinct experts that the target's passes touched, summed over layers and the steps that Wait returned.
  virtual int64_t experts_touched() const = 0;

 protected:
  StepTraits traits_;
};

}  // namespace volley::decode
