#include "spec/dflash/dflash_proposer.h"

#include "spec/pass.h"

namespace volley::spec::dflash {
namespace {

ops::Visibility visibility_of(const model::Decoder& decoder, const ProposerLoad& load) {
  ops::Visibility visibility = block_visibility(decoder, load.context_window);
  if (load.window_mask) visibility.window_mask = *load.window_mask;
  return visibility;
}

class DFlashProposer final : public Proposer {
 public:
  DFlashProposer(std::unique_ptr<Network> network, const ProposerLoad& load)
      : network_(std::move(network)),
        target_(load.target),
        kv_(load.kv),
        block_size_(load.block_size),
        visibility_(visibility_of(network_->facts().decoder, load)) {
    VOLLEY_CHECK_GE(block_size_, 2);
  }

  int32_t block_size() const override { return block_size_; }
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
  const int32_t block_size_;
  const ops::Visibility visibility_;
};

// A pass drafts one length for everybody, even where a request can use fewer tokens: what it proposes then depends on
// the step's choice alone, not on how much of a request's budget is left.
void DFlashProposer::draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) {
  if (pass.drafts == 0) return;
  ArenaScope scope(scratch);
  PassShape shape;
  VOLLEY_CHECK(pass.block_size >= 2 && pass.block_size <= block_size_);
  shape.rows = pass.step.blocks * pass.block_size;
  shape.segments = pass.step.blocks;
  shape.max_segment_rows = pass.block_size;
  shape.choices = pass.drafts;
  shape.max_positions = pass.max_positions;
  const PassMemory memory = take_pass(shape, visibility_, pass.page_tables, scratch);
  ops::fill_draft_rows(stream, pass.step, pass.block_size, network_->facts().mask_token, visibility_, memory.rows,
                       memory.choices);
  model::Pass blocks{stream, memory.rows, kv_, scratch};
  network_->plan(blocks);
  const TensorView x = scratch.take(DType::kF32, {shape.rows, network_->facts().decoder.hidden});
  target_.embed(stream, memory.rows.token_ids, x);
  network_->forward(blocks, x);
  for (const LogitChunk& chunk : pass.chunks) propose(stream, pass, memory.choices, chunk, x, sampler, scratch);
}

void DFlashProposer::propose(Stream& stream, const DraftPass& pass, const ops::PassChoices& choices,
                             const LogitChunk& chunk, TensorView x, const ops::SamplerState& sampler, Arena& scratch) {
  ArenaScope scope(scratch);
  const TensorView logits = scratch.take(DType::kF32, {chunk.rows, target_.spec().vocab});
  ops::ChoiceTask task;
  task.rows = chunk.rows;
  task.segments = {choices.segments + chunk.segment_begin,
                   static_cast<size_t>(chunk.segment_end - chunk.segment_begin)};
  task.state = &sampler;
  task.out.tokens = pass.tokens + chunk.row_begin;
  if (pass.confidence != nullptr) task.out.probability = pass.confidence + chunk.row_begin;
  const ops::ChoicePlan plan = ops::plan_choices(stream, task, network_->head_summarises(stream), scratch);
  network_->logits(stream, x, choices.logit_rows.rows(chunk.row_begin, chunk.rows), logits, scratch, plan.summaries);
  ops::choose(stream, plan, logits, scratch);
}

}  // namespace

std::unique_ptr<Proposer> make_dflash_proposer(std::unique_ptr<Network> network, const ProposerLoad& load) {
  return std::make_unique<DFlashProposer>(std::move(network), load);
}

}  // namespace volley::spec::dflash
