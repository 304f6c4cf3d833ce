// One step of the engine over all its slots: draft, verify (with prefill chunks in the same target pass), choose,
// accept, commit. Plain decoding is a block without drafts and a prompt's last chunk is one whose known rows are many:
// the same code.
//
// The step knows nothing of requests, pages' owners or text; the engine does. Threads: one.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "model/target.h"
#include "ops/choice/choice.h"
#include "spec/proposer.h"

namespace volley::spec {

struct RoundConfig {
  int32_t slots = 0;
  int32_t max_rows = 0;       // rows of one target pass
  int32_t max_positions = 0;  // of a sequence, a block past its end included
  int32_t page_size = 0;
  std::optional<double> simulate_acceptance;
};

// What ends a request on the device.
struct SlotLimits {
  std::vector<TokenId> end_ids;  // end-of-sequence (unless ignored) and stop ids
  int32_t min_tokens = 0;        // end ids do not count before
  int32_t max_tokens = 0;
};

struct SlotStart {
  ops::SlotSampling sampling;
  SlotLimits limits;
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;  // of a resumed request
};

// Known tokens whose K and V are not there yet, then drafted ones.
struct RoundSegment {
  int32_t slot = 0;
  int32_t start = 0;               // sequence index of known[0]
  std::span<const TokenId> known;  // at least one
  int32_t draft = 0;               // tokens to draft and verify; REQUIRES known.size() == 1 when > 0
  bool chooses = false;            // a token is chosen after the last known row
};

struct RoundResult {
  std::vector<TokenId> tokens;             // committed; empty when the segment does not choose
  int32_t accepted = 0;                    // of those, how many were drafted
  bool ended = false;                      // the last one is an end id
  bool exhausted = false;                  // max_tokens reached
  bool finite = true;                      // false: the logits held NaN or infinity; tokens are not to be used
  std::vector<PositionLogprobs> logprobs;  // one a token, for slots that asked
};

// Seconds spent in each phase, summed over rounds.
struct PhaseTimes {
  double draft = 0, target = 0, choose = 0, commit = 0;
};

class Round {
 public:
  // proposer may be null: plain decoding. References must outlive the round.
  static Result<std::unique_ptr<Round>> create(Device& device, const model::Target& target, const model::KvMemory& kv,
                                               std::unique_ptr<Proposer> proposer, const RoundConfig& config);

  void start_slot(int32_t slot, const SlotStart& start);
  void clear_slot(int32_t slot);
  void set_page(int32_t slot, int32_t index, PageId page);

  // results[i] belongs to segments[i].
  void run(std::span<const RoundSegment> segments, std::vector<RoundResult>& results);

  // 1: no drafting.
  int32_t block_size() const { return proposer_ ? proposer_->block_size() : 1; }
  const PhaseTimes& times() const { return times_; }

 private:
  struct Slot {
    SlotLimits limits;
    uint64_t seed = 0;
    int32_t prompt_length = 0;
    bool wants_logprobs = false;
    bool running = false;
  };
  struct Verify;  // what the phases of one round hand on

  Round(Device& device, const model::Target& target, const model::KvMemory& kv, std::unique_ptr<Proposer> proposer,
        const RoundConfig& config, Buffer page_table, Buffer scratch);

  void draft(std::span<const RoundSegment> segments, Verify& verify);
  void verify(std::span<const RoundSegment> segments, Verify& verify);
  void choose(std::span<const RoundSegment> segments, Verify& verify, std::vector<RoundResult>& results);
  void accept(std::span<const RoundSegment> segments, Verify& verify, std::vector<RoundResult>& results);
  void commit(std::span<const RoundSegment> segments, const Verify& verify, const std::vector<RoundResult>& results);

  Stream& stream_;
  const model::Target& target_;
  const model::KvMemory& kv_;
  std::unique_ptr<Proposer> proposer_;
  RoundConfig config_;
  ops::SamplerState sampler_;
  std::vector<Slot> slots_;
  Buffer page_table_memory_;
  TensorView page_table_;  // [slots, max pages]
  Arena scratch_;
  PhaseTimes times_;
};

}  // namespace volley::spec
