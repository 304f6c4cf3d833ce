// DFlash: one pass of the draft network proposes a whole block (docs/dflash.md).
#include "decode/dflash/network.h"
#include "decode/pass.h"

namespace volley::decode::dflash {
namespace {

class DFlashProposer final : public Proposer {
 public:
  DFlashProposer(std::unique_ptr<Network> network, const ProposerLoad& load)
      : network_(std::move(network)),
        target_(load.target),
        kv_(load.kv),
        proposals_(load.proposals),
        visibility_(visibility_of(network_->facts().decoder, load.context_window)) {
    VOLLEY_CHECK_GE(proposals_, 1);
    if (load.window_mask) visibility_.window_mask = *load.window_mask;
  }

  int32_t proposals() const override { return proposals_; }
  std::span<const int32_t> feature_layers() const override { return network_->facts().feature_layers; }
  int64_t packed_bytes() const override { return network_->packed_bytes(); }

  void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) override;
  void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) override {
    model::Pass pass{stream, rows, kv_, scratch};
    network_->inject(pass, features);
  }

 private:
  void propose(Stream& stream, const DraftPass& pass, const ops::PassChoices& choices, const LogitChunk& chunk,
               TensorView x, const ops::SamplerState& sampler, Arena& scratch);

  std::unique_ptr<Network> network_;
  const model::Network& target_;
  std::span<const ops::KvLayer> kv_;
  const int32_t proposals_;
  ops::Visibility visibility_;
};

// A pass drafts one length for all requests, even where one can use fewer tokens. The proposals then depend on the
// step's choice alone, not on a request's remaining budget.
void DFlashProposer::draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) {
  if (pass.drafts == 0) return;
  ArenaScope scope(scratch);
  PassShape shape;
  VOLLEY_CHECK(pass.length >= 1 && pass.length <= proposals_);
  ops::DraftBlock block;
  block.first_proposal = network_->facts().first_proposal;
  block.rows = block.first_proposal + pass.length;
  block.mask_token = network_->facts().mask_token;
  shape.rows = pass.step.blocks * block.rows;
  shape.segments = pass.step.blocks;
  shape.max_segment_rows = block.rows;
  shape.choices = pass.drafts;
  shape.max_positions = pass.max_positions;
  const PassMemory memory = take_pass(shape, visibility_, pass.page_tables, scratch);
  ops::fill_draft_rows(stream, pass.step, block, visibility_, memory.rows, memory.choices);
  model::Pass blocks{stream, memory.rows, kv_, scratch};
  network_->plan(blocks);
  const TensorView x = scratch.take(DType::kF32, {shape.rows, network_->facts().decoder.hidden});
  network_->embed(stream, memory.rows.token_ids, x);
  network_->forward(blocks, x);
  for (const LogitChunk& chunk : pass.chunks) propose(stream, pass, memory.choices, chunk, x, sampler, scratch);
}

void DFlashProposer::propose(Stream& stream, const DraftPass& pass, const ops::PassChoices& choices,
                             const LogitChunk& chunk, TensorView x, const ops::SamplerState& sampler, Arena& scratch) {
  ArenaScope scope(scratch);
  const TensorView rows = choices.logit_rows.rows(chunk.row_begin, chunk.rows);
  const std::span<const ops::ChoiceSegment> segments(choices.segments + chunk.segment_begin,
                                                     static_cast<size_t>(chunk.segment_end - chunk.segment_begin));
  TokenId* const tokens = pass.tokens + chunk.row_begin;
  float* const confidence = pass.confidence + chunk.row_begin;
  if (network_->facts().selector.rank > 0) {
    ops::SelectorTask task;
    task.segments = segments;
    task.slots = pass.step.slots;
    task.state = &sampler;
    task.tokens = tokens;
    task.probability = confidence;
    return network_->select(stream, x, rows, task, scratch);
  }
  const TensorView logits = scratch.take(DType::kF32, {chunk.rows, network_->vocab(stream)});
  ops::ChoiceTask task;
  task.rows = chunk.rows;
  task.segments = segments;
  task.state = &sampler;
  task.out.tokens = tokens;
  task.out.probability = confidence;
  const ops::ChoicePlan plan = ops::plan_choices(stream, task, network_->head_summarises(stream), scratch);
  network_->logits(stream, x, rows, logits, scratch, plan.summaries);
  ops::choose(stream, plan, logits, scratch);
}

}  // namespace

std::unique_ptr<Proposer> make_proposer(std::unique_ptr<Network> network, const ProposerLoad& load) {
  return std::make_unique<DFlashProposer>(std::move(network), load);
}

}  // namespace volley::decode::dflash
