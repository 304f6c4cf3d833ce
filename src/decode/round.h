// One step of the engine over all its slots: draft, verify (with prefill chunks in the same target pass), choose,
// accept, commit. Plain decoding is a block without drafts, and a prompt's last chunk is a block with many known rows,
// so they share the code.
//
// The slots' state lives on the device, so a step can be enqueued before the host has seen the results of the one
// before. On the CPU a step is done when it is enqueued. On CUDA two steps may be under way, and steps that only decode
// replay recorded graphs.
//
// The step knows nothing of requests, owners of pages or text; the engine does. Threads: one at a time.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "decode/mask_exchange.h"
#include "decode/mask_threads.h"
#include "decode/pass.h"
#include "decode/proposer.h"
#include "decode/step_executor.h"
#include "model/network.h"
#include "ops/choice/choice.h"
#include "ops/step/step.h"

namespace volley::decode {

struct RoundConfig {
  int32_t slots = 0;
  int32_t max_rows = 0;       // per target pass
  int32_t max_positions = 0;  // longest possible sequence, with the blocks reserved past its end
  int32_t page_size = 0;
  int32_t logit_rows = 128;  // per chunk of logits; at least one block
  // steps that may be under way, 1 or 2; 0: 2 on CUDA, 1 on the CPU, which gains nothing by 2
  int32_t depth = 0;
  bool graphs = true;                           // record and replay steps where the device can
  bool profile = false;                         // fill PhaseTimes; on CUDA steps then run one at a time, without graphs
  bool simulate_routing = false;                // see EngineOptions::simulate_routing
  std::chrono::milliseconds mask_timeout{250};  // how long a step waits for grammar masks
  // By drafter: tokens that a block may draft, ascending up to Proposer::proposals(). A step drafts the least that
  // suffices for all its requests. Empty: whole blocks only.
  std::vector<std::vector<int32_t>> draft_lengths;
  // For rounds of a tensor-parallel group: rank 0 decides the masks of a step, and the other ranks take them from here.
  // Null: there is one rank. Must outlive the round.
  MaskExchange* masks = nullptr;
  int rank = 0;
  // For replicas that divide the target's experts (Pass::exchange): a pass meets the pass of the same number of all
  // others. Null: the round has all experts. Must outlive the round. On a GPU passes under way wait for passes that
  // others have yet to enqueue, and freeing memory could wait for them, too. So memory is allocated when the round is
  // made. (Token counts of penalties are allocated slot by slot, and kept.)
  comm::RowExchange* exchange = nullptr;
};

class Round final : public StepExecutor {
 public:
  // drafters: empty for plain decoding. A step drafts with one of them; all of them learn from its rows. References
  // must outlive the round. progress: fraction of the graphs recorded. On a dry device the round only measures memory.
  static Result<std::unique_ptr<Round>> create(Device& device, const model::Network& target, const model::KvMemory& kv,
                                               std::vector<Drafter> drafters, const RoundConfig& config,
                                               const std::function<void(double)>& progress = {});
  ~Round() override;

  Answer perform(const Command& command) override;
  const std::vector<kv::Group>& page_groups() const override { return kv_.groups(); }
  int32_t under_way() const override { return static_cast<int32_t>(flights_.size()); }
  void discard(std::shared_ptr<MaskSource> source) override;
  const PhaseTimes& times() const override { return times_; }
  // Working memory of steps, and the most that a step has used so far.
  const Arena& scratch() const { return *scratch_; }
  int64_t experts_touched() const override { return experts_touched_; }

 private:
  static constexpr int32_t kMostSharedTokens = 24'000;  // 96 KB

  // Performs one command each.
  struct Perform;
  // Host memory of one step: its upload, and the place for its results.
  struct Flight;
  // A step's layout: host bounds, and the chunks of its logits.
  struct Layout;
  // The host's part of a slot's state.
  struct Slot {
    bool wants_logprobs = false;
    bool running = false;
    bool shifts_rope = false;  // SlotStart::rope_offset is not 0
  };
  // Kinds of recorded target passes.
  enum class VerifyKind {
    kPlain,   // one row for each slot
    kShared,  // rows are shared out among the slots
    kBlocks,  // a whole block for each slot, where the rows are too many to be shared out
  };
  struct VerifyKey {
    VerifyKind kind = VerifyKind::kPlain;
    int32_t slots = 0;
    int32_t rows = 0;  // for kShared alone
    auto operator<=>(const VerifyKey&) const = default;
  };
  struct DraftKey {
    int32_t drafter = 0, length = 0, slots = 0;  // length: drafted tokens for each slot; 0: the step does not draft
    auto operator<=>(const DraftKey&) const = default;
  };
  // Recorded graphs that serve a step.
  struct GraphPlan {
    DraftKey draft;
    VerifyKey verify;
  };

  Round(Device& device, const model::Network& target, const model::KvMemory& kv, std::vector<Drafter> drafters,
        const RoundConfig& config);
  Status allocate();
  // Scratch memory of the largest step.
  int64_t largest_scratch();
  std::vector<GraphPlan> graph_plans() const;
  void record_graphs(const std::function<void(double)>& progress);

  // Tokens that the drafter's pass drafts for each block when a request wants `most`.
  int32_t draft_length(int32_t drafter, int32_t most) const;
  Layout lay_out(std::span<const RoundSegment> segments, const VerifyBudget& budget, ops::StepSegment* out) const;
  Layout lay_out_recorded(std::span<const RoundSegment> segments, const GraphPlan& plan, ops::StepSegment* out) const;
  std::optional<GraphPlan> graphs_for(std::span<const RoundSegment> segments, const VerifyBudget& budget) const;
  void add_block(const RoundSegment& segment, Layout& layout, ops::StepSegment& s) const;
  void put_given(const RoundSegment& segment, int32_t row_begin, Layout& layout) const;
  void put_shared_chunk_first(Layout& layout) const;
  static void set_chunks(const Layout& layout, ops::StepSegment* segments);
  void upload(Flight& flight, const Layout& layout, std::span<const RoundSegment> segments,
              const ops::SurvivalTable* table);

  Status start_slot(int32_t slot, const SlotStart& start);
  Status reserve(std::span<const RoundSegment> segments);
  Status enqueue_step(std::span<const RoundSegment> segments, const VerifyBudget& budget);
  Status reserve_masks(bool wanted);
  Status take_all_memory();
  void take_part();
  void settle();
  void pass_without_rows();
  Status reserve_scores(int32_t rows, Flight& flight);
  void upload_scores(const Layout& layout, Flight& flight);
  void fill_masks(Flight& flight);
  void ask_for_masks(const Flight& flight, std::span<uint32_t> words);
  void let_masks_pass(uint64_t step);
  void count_times(Flight& flight);
  StepResults take_results();

  // Puts a step's work on the stream: draft(), then verify(), which does the rest.
  ops::Step step_of(const Layout& layout) const;
  void draft(const Layout& layout);
  void verify(const Layout& layout);
  void share(const Layout& layout);
  void choose(const Layout& layout, const PassMemory& pass, TensorView x);
  std::vector<model::AddedRows> take_given(const Layout& layout, TensorView x);
  void score(const Layout& layout, TensorView x);
  void accept(const Layout& layout);
  void commit(const Layout& layout, const PassMemory& pass, std::vector<model::Capture> captures);
  // Gives each drafter its features, in their order.
  void teach(ops::Rows rows, std::span<const TensorView> features);
  bool may_wait(const Layout& layout) const;
  void let_wait(const ops::Rows& rows, std::span<const TensorView> features);
  void teach_waiting();
  TensorView pick(const TensorView& from, std::span<int32_t> index);

  Device& device_;
  Stream& stream_;
  const model::Network& target_;
  const model::KvMemory& kv_;
  const std::vector<Drafter> drafters_;
  const RoundConfig config_;
  const ops::Visibility visibility_;
  std::unique_ptr<ops::SamplerState> sampler_;
  std::vector<Slot> slots_;
  std::vector<ops::PageTableEdit> edits_;  // edits since the last step

  // Device memory at fixed addresses, because recorded graphs hold them.
  struct Memory;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<model::TowerPass> tower_;  // null: the target sees no pictures
  std::unique_ptr<Arena> scratch_;
  std::unique_ptr<MaskThreads> mask_threads_;  // null before the first request with a grammar
  std::map<DraftKey, std::unique_ptr<StepGraph>> draft_graphs_;
  std::map<VerifyKey, std::unique_ptr<StepGraph>> verify_graphs_;
  // A pass without rows on a GPU; two may be under way.
  struct IdlePass;
  std::vector<std::unique_ptr<IdlePass>> idle_passes_;  // used in turn
  std::unique_ptr<StepGraph> idle_graph_;               // null: idle passes are not recorded
  size_t idle_count_ = 0;                               // idle passes enqueued so far

  Flight* enqueued_ = nullptr;  // the step that is being enqueued; null while a graph is recorded
  std::vector<std::unique_ptr<Flight>> free_;
  std::deque<std::unique_ptr<Flight>> flights_;
  std::unique_ptr<Fence> last_end_;
  bool last_end_set_ = false;
  PhaseTimes times_;
  int64_t experts_touched_ = 0;
  // steps that were enqueued with masks, and those whose masks are filled
  uint64_t masked_steps_ = 0, filled_steps_ = 0;
  // Rows of plain steps that no drafter has learned yet.
  struct Waiting;
  std::unique_ptr<Waiting> waiting_;
};

}  // namespace volley::decode
