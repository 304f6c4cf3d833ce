#include "spec/dflash/dflash_proposer.h"

#include <vector>

#include "spec/logit_chunks.h"

namespace volley::spec {
namespace {

class DFlashProposer final : public Proposer {
 public:
  DFlashProposer(std::unique_ptr<model::DraftNetwork> network, const model::Target& target, const model::KvMemory& kv,
                 DFlashOptions options)
      : network_(std::move(network)), target_(target), kv_(kv), options_(options) {
    VOLLEY_CHECK_GE(options_.block_size, 2);
    visibility_ = block_visibility(network_->spec().decoder, options_.context_window);
  }

  int32_t block_size() const override { return options_.block_size; }
  std::span<const int32_t> feature_layers() const override { return network_->spec().target_layers; }

  void draft(Stream& stream, std::span<const DraftRequest> requests, const ops::SamplerState& sampler,
             TensorView page_table, Arena& scratch) override;
  void commit(Stream& stream, const CommitRows& rows, TensorView page_table, Arena& scratch) override;

  int64_t scratch_bytes(int64_t max_slots, int64_t max_commit_rows, int64_t max_positions) const override {
    const int64_t hidden = network_->spec().decoder.hidden, vocab = target_.spec().vocab;
    const int64_t block_rows = max_slots * options_.block_size;
    const int64_t rows = std::max(block_rows, max_commit_rows);
    const int64_t logit_rows = logit_chunk_rows(options_.block_size);
    return model::DraftNetwork::scratch_bytes(network_->spec(), rows, max_positions) + rows * (hidden * 8 + 6 * 4) +
           logit_rows * (vocab * 4 + hidden * 4 + 16) + 32 * 64;
  }

 private:
  void propose(Stream& stream, std::span<const DraftRequest> requests, std::span<const int32_t> counts, size_t first,
               int32_t rows, TensorView x, const ops::SamplerState& sampler, Arena& scratch);

  std::unique_ptr<model::DraftNetwork> network_;
  const model::Target& target_;
  const model::KvMemory& kv_;
  DFlashOptions options_;
  Visibility visibility_;
  // Of the call in progress.
  std::vector<RowRun> runs_;
  std::vector<ops::RowSegment> segments_;
  std::vector<int32_t> counts_;
};

// The whole block always runs, even where fewer proposals are wanted: the network was trained on whole blocks, and what
// it proposes must not depend on how much of the request's budget is left.
void DFlashProposer::draft(Stream& stream, std::span<const DraftRequest> requests, const ops::SamplerState& sampler,
                           TensorView page_table, Arena& scratch) {
  if (requests.empty()) return;
  ArenaScope scope(scratch);
  const int32_t block = options_.block_size;
  runs_.clear();
  counts_.clear();
  for (const DraftRequest& request : requests) {
    runs_.push_back({request.slot, SequenceIndex(request.start), block});
    counts_.push_back(request.count);
  }
  model::RowBatch batch = build_rows(runs_, visibility_, page_table, segments_, scratch);
  batch.token_ids = scratch.take(DType::kI32, {batch.rows});
  int32_t* ids = batch.token_ids.as<int32_t>();
  std::fill_n(ids, batch.rows, network_->spec().mask_token);
  for (size_t i = 0; i < requests.size(); ++i) ids[i * block] = requests[i].last_token;

  const TensorView x = scratch.take(DType::kF32, {batch.rows, network_->spec().decoder.hidden});
  target_.embed(stream, batch.token_ids, x);
  network_->forward(stream, batch, kv_, x, scratch);
  for_logit_chunks(counts_, logit_chunk_rows(block), [&](size_t first, size_t last, int32_t rows) {
    propose(stream, requests.subspan(0, last), counts_, first, rows, x, sampler, scratch);
  });
}

// Proposals of requests [first, requests.size()): position 0 of a block proposes nothing, position i the token after
// start + i - 1.
void DFlashProposer::propose(Stream& stream, std::span<const DraftRequest> requests, std::span<const int32_t> counts,
                             size_t first, int32_t rows, TensorView x, const ops::SamplerState& sampler,
                             Arena& scratch) {
  ArenaScope scope(scratch);
  const TensorView index = scratch.take(DType::kI32, {rows});
  std::vector<ops::ChoiceSegment> segments;
  int32_t row = 0;
  for (size_t i = first; i < requests.size(); ++i) {
    segments.push_back({requests[i].slot, row, counts[i], requests[i].start + 1});
    for (int32_t j = 1; j <= counts[i]; ++j) {
      index.as<int32_t>()[row++] = static_cast<int32_t>(i) * options_.block_size + j;
    }
  }
  const TensorView h = scratch.take(network_->activation(), {rows, network_->spec().decoder.hidden});
  network_->final_norm(stream, x, index, h);
  const TensorView logits = scratch.take(DType::kF32, {rows, target_.spec().vocab});
  target_.head(stream, h, logits, scratch);

  ops::ChoiceOutput out;
  out.tokens = scratch.take(DType::kI32, {rows}).as<int32_t>();
  const bool confident = requests[first].confidence != nullptr;
  if (confident) out.probability = scratch.take(DType::kF32, {rows}).as<float>();
  ops::choose(stream, logits, segments, sampler, out, scratch);
  for (const ops::ChoiceSegment& segment : segments) {
    const DraftRequest& request = requests[first + static_cast<size_t>(&segment - segments.data())];
    std::copy_n(out.tokens + segment.row_begin, segment.rows, request.tokens);
    if (confident) std::copy_n(out.probability + segment.row_begin, segment.rows, request.confidence);
  }
}

void DFlashProposer::commit(Stream& stream, const CommitRows& rows, TensorView page_table, Arena& scratch) {
  ArenaScope scope(scratch);
  const model::RowBatch batch = build_rows(rows.runs, Visibility{}, page_table, segments_, scratch);
  network_->inject(stream, batch, rows.features, kv_, scratch);
}

}  // namespace

std::unique_ptr<Proposer> make_dflash_proposer(std::unique_ptr<model::DraftNetwork> network,
                                               const model::Target& target, const model::KvMemory& kv,
                                               DFlashOptions options) {
  return std::make_unique<DFlashProposer>(std::move(network), target, kv, options);
}

}  // namespace volley::spec
