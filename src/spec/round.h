// One step of the engine over all its slots: draft, verify (with prefill chunks in the same target pass), choose,
// accept, commit. Plain decoding is a block without drafts and a prompt's last chunk is one whose known rows are many:
// the same code.
//
// The state of the slots lives on the device, so a step can be enqueued before the host has seen what the one before it
// committed: enqueue() says which slots take part, wait() brings the results of the oldest step. On the CPU a step is
// done when it is enqueued; on CUDA two may be under way, and steps that only decode are replays of recorded graphs.
//
// The step knows nothing of requests, pages' owners or text; the engine does. Threads: one.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "model/network.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"
#include "spec/mask_threads.h"
#include "spec/pass.h"
#include "spec/proposer.h"

namespace volley::spec {

struct RoundConfig {
  int32_t slots = 0;
  int32_t max_rows = 0;       // rows of one target pass
  int32_t max_positions = 0;  // of a sequence, the blocks reserved past its end included
  int32_t page_size = 0;
  int32_t logit_rows = 128;       // of one chunk of logits; at least one block
  int32_t depth = 0;              // steps under way at once, 1 or 2; 0: 1 on the CPU, which gains nothing by 2, else 2
  bool graphs = true;             // record and replay where the device can
  bool profile = false;           // fill PhaseTimes: on CUDA steps then run one at a time and without graphs
  bool simulate_routing = false;  // of experts: EngineOptions::simulate_routing
  std::chrono::milliseconds mask_timeout{250};  // how long a step waits for grammar masks
  // Tokens that a block may draft, ascending, the last is block_size - 1: a step drafts the least of these that is
  // enough for everybody. Empty: whole blocks only.
  std::vector<int32_t> draft_lengths;
};

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
  double draft = 0;  // the drafter's pass
  double rest = 0;   // everything after it
};

class Round {
 public:
  // proposer may be null: plain decoding. References must outlive the round. progress: fraction of the graphs recorded.
  // On a dry device it comes to know what it takes, and can do nothing else.
  static Result<std::unique_ptr<Round>> create(Device& device, const model::Network& target, const model::KvMemory& kv,
                                               std::unique_ptr<Proposer> proposer, const RoundConfig& config,
                                               const std::function<void(double)>& progress = {});
  ~Round();

  // kResourceExhausted when there is no memory for what the request's sampling needs; the slot is then clear.
  Status start_slot(int32_t slot, const SlotStart& start);
  void clear_slot(int32_t slot);
  // page_table of the group [slot][index] = page.
  void set_page(int32_t slot, size_t group, int32_t index, PageId page);
  // The slot's recurrent state to a snapshot and back, and a page of a group to another one: in the order of the calls,
  // behind the steps that are enqueued and before those that will be. The host does not wait.
  void save_state(int32_t slot, PageId snapshot);
  void restore_state(PageId snapshot, int32_t slot);
  void copy_page(size_t group, PageId from, PageId to);
  const std::vector<kv::Group>& page_groups() const { return kv_.groups(); }

  // Steps that may be under way at once.
  int32_t depth() const { return depth_; }
  int32_t under_way() const { return static_cast<int32_t>(flights_.size()); }

  // REQUIRES: under_way() < depth(); a slot in at most one segment; with a budget, segments that decode come first, and
  // its rows are at least as many as they and at most most_shared_rows().
  // kResourceExhausted when there is no memory for grammar masks or a prompt's logprobs; nothing was enqueued then.
  Status enqueue(std::span<const RoundSegment> segments, const VerifyBudget& budget = {});
  // Results of the oldest step: results[i] belongs to its segments[i]. REQUIRES: under_way() > 0.
  StepTimes wait(std::vector<RoundResult>& results);

  // Drops a mask source where that delays no step.
  void discard(std::shared_ptr<MaskSource> source);

  // What a verify budget may be: rows above most_shared_rows() cannot be shared out (one chunk of logits holds no
  // more), and row_buckets() are the sizes that are recorded (empty: any size is as good).
  int32_t most_shared_rows() const { return std::min(config_.logit_rows, kMostSharedTokens / block_size()); }
  const std::vector<int32_t>& row_buckets() const { return row_buckets_; }
  const std::vector<int32_t>& draft_lengths() const { return config_.draft_lengths; }

  // 1: no drafting.
  int32_t block_size() const { return proposer_ ? proposer_->block_size() : 1; }
  const PhaseTimes& times() const { return times_; }
  // The memory that steps work in, and the most that one has taken of it so far.
  const Arena& scratch() const { return *scratch_; }
  // Distinct experts that the target's passes touched, summed over layers and the steps that wait() brought.
  int64_t experts_touched() const { return experts_touched_; }

 private:
  static constexpr int32_t kMostSharedTokens = 24'000;  // 96 KB

  // Host memory of one step: what is uploaded for it, and where its results land.
  struct Flight;
  // How a step is laid out: host bounds, and the chunks of its logits.
  struct Layout;
  // What only the host knows of a slot.
  struct Slot {
    bool wants_logprobs = false;
    bool running = false;
  };
  // Recorded passes of the target.
  enum class VerifyKind {
    kPlain,   // a row a slot
    kShared,  // rows that are shared out among the slots
    kBlocks,  // a whole block a slot, where they are too many to be shared out
  };
  struct VerifyKey {
    VerifyKind kind = VerifyKind::kPlain;
    int32_t slots = 0;
    int32_t rows = 0;  // kShared alone
    auto operator<=>(const VerifyKey&) const = default;
  };
  using DraftKey = std::pair<int32_t, int32_t>;  // slots, drafted tokens a slot
  // Which recorded graphs a step replays.
  struct GraphPlan {
    int32_t draft_slots = 0, draft_length = 0;  // 0: it does not draft
    VerifyKey verify;
  };

  Round(Device& device, const model::Network& target, const model::KvMemory& kv, std::unique_ptr<Proposer> proposer,
        const RoundConfig& config);
  Status allocate();
  // Scratch memory of the step that takes most.
  int64_t largest_scratch();
  std::vector<GraphPlan> graph_plans() const;
  void record_graphs(const std::function<void(double)>& progress);

  // Tokens that a pass of the drafter drafts a block when somebody wants `most`.
  int32_t draft_length(int32_t most) const;
  Layout lay_out(std::span<const RoundSegment> segments, const VerifyBudget& budget, ops::StepSegment* out) const;
  Layout lay_out_recorded(std::span<const RoundSegment> segments, const GraphPlan& plan, ops::StepSegment* out) const;
  std::optional<GraphPlan> graphs_for(std::span<const RoundSegment> segments, const VerifyBudget& budget) const;
  void add_block(const RoundSegment& segment, Layout& layout, ops::StepSegment& s) const;
  void put_shared_chunk_first(Layout& layout) const;
  static void set_chunks(const Layout& layout, ops::StepSegment* segments);
  void upload(Flight& flight, const Layout& layout, std::span<const RoundSegment> segments,
              const ops::SurvivalTable* table);

  Status reserve_masks(int32_t rows);
  Status reserve_scores(int32_t rows, Flight& flight);
  void upload_scores(const Layout& layout, Flight& flight);
  void fill_masks(const Layout& layout, std::span<const RoundSegment> segments, Flight& flight);
  void count_times(Flight& flight);

  // The work of a step, on the stream: draft(), then verify(), which does the rest.
  ops::Step step_of(const Layout& layout) const;
  void draft(const Layout& layout);
  void verify(const Layout& layout, const std::function<void()>& forwarded);
  void share(const Layout& layout);
  void choose(const Layout& layout, const PassMemory& pass, TensorView x);
  void score(const Layout& layout, TensorView x);
  void accept(const Layout& layout);
  void commit(const Layout& layout, const PassMemory& pass, TensorView features);

  Device& device_;
  Stream& stream_;
  const model::Network& target_;
  const model::KvMemory& kv_;
  std::unique_ptr<Proposer> proposer_;
  const RoundConfig config_;
  const ops::Visibility visibility_;
  int32_t depth_ = 1;
  std::unique_ptr<ops::SamplerState> sampler_;
  std::vector<Slot> slots_;
  std::vector<ops::PageTableEdit> edits_;  // since the last step

  // Device memory, at fixed addresses, because recorded graphs hold them.
  struct Memory;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Arena> scratch_;
  std::unique_ptr<MaskThreads> mask_threads_;  // from the first request with a grammar on
  std::map<DraftKey, std::unique_ptr<StepGraph>> draft_graphs_;
  std::map<VerifyKey, std::unique_ptr<StepGraph>> verify_graphs_;
  std::vector<int32_t> row_buckets_;  // of kShared, ascending

  Flight* profiled_ = nullptr;  // the step that is being enqueued, unless it is a recorded one
  std::vector<std::unique_ptr<Flight>> free_;
  std::deque<std::unique_ptr<Flight>> flights_;
  std::unique_ptr<Fence> last_end_;
  bool last_end_set_ = false;
  PhaseTimes times_;
  int64_t experts_touched_ = 0;
};

}  // namespace volley::spec
