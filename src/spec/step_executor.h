// What runs a step of the engine over all its slots: one round, or the rounds of a tensor-parallel group, which get the
// same calls in the same order. enqueue() says which slots take part, wait() brings the results of the oldest step.
// Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kv/layout.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"
#include "spec/mask_source.h"

namespace volley::spec {

// Acceptance that is simulated, to measure with random weights: a drafted token whose predecessors were accepted is
// accepted with probability `p`, whatever the target chose; `confidence` is what the drafter is said to have said.
struct SimulatedAcceptance {
  float p = 0, confidence = 0;
};

// How many rows of the target's pass the decoding segments get.
struct VerifyBudget {
  static constexpr int32_t kAll = ops::SharePlan::kAll;
  int32_t rows = kAll;                        // last tokens included; kAll: every drafted token is verified
  const ops::SurvivalTable* table = nullptr;  // unless kAll; copied by enqueue()
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
  std::span<const TokenId> known;  // copied by enqueue()
  int32_t draft = 0;               // tokens to draft; all or some are verified; REQUIRES start == kLastToken when > 0
  bool chooses = false;            // a token is chosen after the last known row
  // For a request with a grammar, else null; asked while the target runs. Its answers depend on all committed tokens,
  // so REQUIRES under_way() == 0.
  std::shared_ptr<MaskSource> masks;
  // Logprobs of a prompt: for as many of the first known rows the tokens that follow them. Copied by enqueue().
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

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // kResourceExhausted when there is no memory for what the request's sampling needs; the slot is then clear.
  virtual Status start_slot(int32_t slot, const SlotStart& start) = 0;
  virtual void clear_slot(int32_t slot) = 0;
  // page_table of the group [slot][index] = page.
  virtual void set_page(int32_t slot, size_t group, int32_t index, PageId page) = 0;
  // The slot's recurrent state to a snapshot and back, and a page of a group to another one: in the order of the calls,
  // behind the steps that are enqueued and before those that will be. The host does not wait.
  virtual void save_state(int32_t slot, PageId snapshot) = 0;
  virtual void restore_state(PageId snapshot, int32_t slot) = 0;
  virtual void copy_page(size_t group, PageId from, PageId to) = 0;
  virtual const std::vector<kv::Group>& page_groups() const = 0;  // of one rank

  // Steps that may be under way at once.
  virtual int32_t depth() const = 0;
  virtual int32_t under_way() const = 0;

  // REQUIRES: under_way() < depth(); a slot in at most one segment; with a budget, segments that decode come first, and
  // its rows are at least as many as they and at most most_shared_rows().
  // kResourceExhausted when there is no memory for grammar masks or a prompt's logprobs; nothing was enqueued then.
  virtual Status enqueue(std::span<const RoundSegment> segments, const VerifyBudget& budget) = 0;
  Status enqueue(std::span<const RoundSegment> segments) { return enqueue(segments, {}); }
  // Results of the oldest step: results[i] belongs to its segments[i]. REQUIRES: under_way() > 0.
  virtual StepTimes wait(std::vector<RoundResult>& results) = 0;

  // Drops a mask source where that delays no step.
  virtual void discard(std::shared_ptr<MaskSource> source) = 0;

  // What a verify budget may be: rows above most_shared_rows() cannot be shared out (one chunk of logits holds no
  // more), and row_buckets() are the sizes that are recorded (empty: any size is as good).
  virtual int32_t most_shared_rows() const = 0;
  virtual const std::vector<int32_t>& row_buckets() const = 0;
  virtual const std::vector<int32_t>& draft_lengths() const = 0;

  // 1: no drafting.
  virtual int32_t block_size() const = 0;
  virtual const PhaseTimes& times() const = 0;
  // Distinct experts that the target's passes touched, summed over layers and the steps that wait() brought.
  virtual int64_t experts_touched() const = 0;
};

}  // namespace volley::spec
