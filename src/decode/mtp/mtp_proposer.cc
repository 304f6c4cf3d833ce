#include "decode/mtp/mtp.h"
#include "decode/pass.h"
#include "model/shard.h"
#include "ops/chain/chain.h"
#include "ops/embedding/embedding.h"
#include "ops/latent/latent.h"
#include "ops/logits/logits.h"

namespace volley::decode::mtp {
namespace {

class MtpProposer final : public Proposer {
 public:
  MtpProposer(const ProposerLoad& load, const ProposerFacts& facts)
      : target_(load.target),
        head_copy_(load.head_copy),
        kv_(load.kv),
        proposals_(load.proposals),
        feature_layers_(facts.feature_layers) {
    VOLLEY_CHECK(proposals_ >= 1 && load.slots >= 1);
  }
  Status load(const ProposerLoad& load, const ProposerFacts& facts);

  int32_t proposals() const override { return proposals_; }
  std::span<const int32_t> feature_layers() const override { return feature_layers_; }
  int64_t packed_bytes() const override { return packed_bytes_; }
  int64_t slot_bytes() const override { return static_cast<int64_t>(carried_.bytes() + carried_positions_.bytes()); }
  void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) override;
  void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) override;

 private:
  int64_t hidden() const { return target_.spec().hidden; }
  // x = fc [norm(embedding of ids) | norm(h)]. h and x: [rows, hidden] fp32; h is overwritten.
  void fuse(Stream& stream, TensorView ids, TensorView h, TensorView x, Arena& scratch) const;
  // A token for each row of x.
  void choose(Stream& stream, TensorView x, const ops::PassChoices& choices, const ops::SamplerState& sampler,
              const ops::ChoiceOutput& out, Arena& scratch) const;

  const model::Network& target_;
  const std::shared_ptr<const ops::LinearWeight> head_copy_;
  std::span<const ops::KvLayer> kv_;
  const int32_t proposals_;
  const std::vector<int32_t> feature_layers_;
  std::unique_ptr<model::Network> body_;
  ops::LinearWeight fc_, injection_;
  model::Vector embedding_norm_, hidden_norm_, input_norm_, k_norm_, kv_bias_;
  Buffer carried_, carried_positions_;
  ops::HiddenCarry carry_;
  int64_t packed_bytes_ = 0;
};

Status MtpProposer::load(const ProposerLoad& load, const ProposerFacts& facts) {
  const int rank = load.group == nullptr ? 0 : load.group->rank();
  const int ranks = load.group == nullptr ? 1 : load.group->ranks();
  const std::vector<model::Param> params = model::shard(facts.params, rank, ranks);
  model::WeightLoader loader(load.device, *load.checkpoint, load.numerics, params);
  loader.on_packed = load.on_packed;
  VOLLEY_ASSIGN(fc_, loader.linear("fc"));
  VOLLEY_ASSIGN(embedding_norm_, loader.vector("embedding_norm"));
  VOLLEY_ASSIGN(hidden_norm_, loader.vector("hidden_norm"));
  VOLLEY_ASSIGN(body_, model::Network::load(loader, load.checkpoint, model::shard_of(facts.decoder, rank, ranks),
                                            load.numerics, load.positions, load.group));
  VOLLEY_ASSIGN(injection_, loader.linear("injection.kv"));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector("injection.kv_bias", kv_bias_));
  VOLLEY_RETURN_IF_ERROR(loader.optional_vector("injection.k_norm", k_norm_));
  VOLLEY_ASSIGN(input_norm_, loader.vector("injection.input_norm"));
  packed_bytes_ = loader.packed_bytes();

  carry_.depth = 1 + std::max(proposals_, load.longest_draft);
  const int64_t entries = int64_t{load.slots} * carry_.depth;
  const DType dtype = target_.activation();
  VOLLEY_ASSIGN(carried_, load.device.allocate(static_cast<size_t>(entries * hidden()) * dtype_size(dtype)));
  VOLLEY_ASSIGN(carried_positions_, load.device.allocate(static_cast<size_t>(entries) * sizeof(int32_t)));
  carry_.hidden = carried_.view(dtype, {entries, hidden()});
  carry_.positions = carried_positions_.view(DType::kI32, {entries});
  const std::vector<int32_t> none(static_cast<size_t>(entries), -1);
  load.device.upload(carried_positions_.data(), none.data(), none.size() * sizeof(int32_t));
  return {};
}

void MtpProposer::fuse(Stream& stream, TensorView ids, TensorView h, TensorView x, Arena& scratch) const {
  ArenaScope scope(scratch);
  const int64_t rows = x.dim(0);
  const float eps = body_->spec().norm_eps;
  const TensorView embedded = scratch.take(DType::kF32, {rows, hidden()});
  const TensorView both = scratch.take(body_->activation(), {rows, 2 * hidden()});
  target_.embed(stream, ids, embedded);
  ops::rms_norm(stream, embedded, embedding_norm_.view, eps, {}, embedded);
  ops::rms_norm(stream, h, hidden_norm_.view, eps, {}, h);
  ops::capture_feature(stream, embedded, 0, both);
  ops::capture_feature(stream, h, hidden(), both);
  ops::linear(stream, fc_, both, x, {}, scratch);
}

void MtpProposer::choose(Stream& stream, TensorView x, const ops::PassChoices& choices,
                         const ops::SamplerState& sampler, const ops::ChoiceOutput& out, Arena& scratch) const {
  ArenaScope scope(scratch);
  const int64_t rows = x.dim(0), vocab = target_.spec().vocab;
  const ops::LinearWeight& head = head_copy_ != nullptr ? *head_copy_ : target_.head();
  const ops::LogitsEnd& end = target_.spec().logits_end;
  const TensorView logits = scratch.take(DType::kF32, {rows, vocab});
  ops::ChoiceTask task;
  task.rows = rows;
  task.segments = {choices.segments, static_cast<size_t>(rows)};
  task.state = &sampler;
  task.out = out;
  const bool summarises =
      end.is_plain() && model::head_summarises(stream, head, body_->activation(), vocab, body_->group());
  const ops::ChoicePlan plan = ops::plan_choices(stream, task, summarises, scratch);
  {
    ArenaScope product(scratch);
    const ops::Input h = ops::input_for(head, body_->activation(), rows, scratch);
    body_->final_norm(stream, x, {}, h);
    model::head_logits(stream, head, h, logits, plan.summaries, body_->group(), scratch);
    ops::end_logits(stream, logits, end);
  }
  ops::choose(stream, plan, logits, scratch);
}

// The token and the normed output of one pass enter the next.
void MtpProposer::draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) {
  if (pass.drafts == 0) return;
  VOLLEY_CHECK(pass.length >= 1 && pass.length <= proposals_);
  ArenaScope scope(scratch);
  const int32_t blocks = pass.step.blocks;
  const TensorView h = scratch.take(DType::kF32, {blocks, hidden()});
  const TensorView x = scratch.take(DType::kF32, {blocks, hidden()});
  ops::ChoiceOutput out;
  out.tokens = scratch.take(DType::kI32, {blocks}).as<TokenId>();
  out.probability = scratch.take(DType::kF32, {blocks}).as<float>();
  for (int32_t j = 0; j < pass.length; ++j) {
    ArenaScope of_token(scratch);
    const PassMemory memory = take_pass({blocks, blocks, 1, blocks, pass.max_positions}, {}, pass.page_tables, scratch);
    ops::fill_chain_rows(stream, pass.step, j, out.tokens, memory.rows, memory.choices);
    if (j == 0) {
      ops::take_previous(stream, memory.rows, {}, carry_, h);
      target_.final_norm(stream, h, {}, h);
    } else {
      body_->final_norm(stream, x, {}, h);
    }
    fuse(stream, memory.rows.token_ids, h, x, scratch);
    model::Pass layer{stream, memory.rows, kv_, scratch};
    body_->plan(layer);
    body_->forward(layer, {}, x);
    choose(stream, x, memory.choices, sampler, out, scratch);
    ops::put_chain_drafts(stream, pass.step, j, out.tokens, out.probability, pass.tokens, pass.confidence);
  }
}

// Nobody reads what the layer makes of known tokens, only their K and V: their rows take its projections alone.
void MtpProposer::commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) {
  if (rows.rows == 0) return;
  ArenaScope scope(scratch);
  const model::Decoder& decoder = body_->spec();
  const TensorView h = scratch.take(DType::kF32, {rows.rows, hidden()});
  const TensorView x = scratch.take(DType::kF32, {rows.rows, hidden()});
  ops::take_previous(stream, rows, features, carry_, h);
  ops::carry_last(stream, rows, features, carry_);
  target_.final_norm(stream, h, {}, h);
  fuse(stream, rows.token_ids, h, x, scratch);
  const ops::Input normed = ops::input_for(injection_, body_->activation(), rows.rows, scratch);
  ops::rms_norm(stream, x, input_norm_.view, decoder.norm_eps, {}, normed);
  const TensorView kv = scratch.take(DType::kF32, {rows.rows, injection_.n});
  ops::linear(stream, injection_, normed, kv, {}, scratch);
  const ops::RowView& view = rows.views[ops::kWholeView];
  if (const model::Latent* latent = decoder.latent(0)) {
    ops::LatentWrite write;
    write.row = kv;
    write.norm = k_norm_.view;
    write.eps = latent->norm_eps;
    write.rope = body_->rope(latent->rope);
    write.q = TensorView(nullptr, DType::kF32, {rows.rows, 0, latent->shape.query()});  // no heads: nobody asks
    write.q_out = TensorView(nullptr, ops::attention_dtype(kv_[0].dtype), {rows.rows, 0, kv_[0].head_dim});
    write.kv = kv_[0];
    return ops::write_latent(stream, rows, view, write);
  }
  ops::QkvWrite write;
  write.qkv = kv;
  write.bias = kv_bias_.view;
  write.k_norm = k_norm_.view;
  write.eps = decoder.norm_eps;
  write.rope = body_->rope(decoder.attention(0)->rope);
  write.kv = kv_[0];
  ops::write_qkv(stream, rows, view, write);
}

}  // namespace

Result<std::unique_ptr<Proposer>> load_proposer(const ProposerLoad& load, const ProposerFacts& facts) {
  auto proposer = std::make_unique<MtpProposer>(load, facts);
  VOLLEY_RETURN_IF_ERROR(proposer->load(load, facts));
  return std::unique_ptr<Proposer>(std::move(proposer));
}

}  // namespace volley::decode::mtp
