#include "model_runner.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "spec/row_builder.h"

namespace volley::testing {
namespace {

constexpr int32_t kPageSize = 16;

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(result).value();
}

std::shared_ptr<const weights::Checkpoint> open(const std::string& dir, std::optional<uint64_t> dummy) {
  if (dummy) return weights::make_dummy_checkpoint(*dummy);
  return must(weights::open_safetensors(dir));
}

std::vector<float> to_floats(const TensorView& row) {
  std::vector<float> out(row.count());
  for (int64_t i = 0; i < row.count(); ++i) {
    out[i] = row.dtype == DType::kF32 ? row.as<float>()[i] : to_float(row.as<BFloat16>()[i]);
  }
  return out;
}

}  // namespace

ModelRunner::ModelRunner(const std::string& target_dir, const std::string& draft_dir, ComputeType dtype,
                         int32_t max_positions, std::optional<uint64_t> dummy)
    : device_(*make_cpu_device(2)) {
  const auto checkpoint = open(target_dir, dummy);
  const model::DecoderSpec spec = must(model::read_decoder_spec(target_dir));
  const model::Numerics numerics = model::resolve_numerics(dtype, checkpoint->main_dtype());
  target_ = must(model::Target::load(*device_, checkpoint, spec, numerics, max_positions, {}));
  const model::DecoderSpec* draft_decoder = nullptr;
  int64_t bytes = model::DecoderLayers::scratch_bytes(spec, max_positions, max_positions);
  if (!draft_dir.empty()) {
    const auto draft_checkpoint = open(draft_dir, dummy);
    const model::DraftSpec draft_spec = must(model::read_draft_spec(draft_dir));
    const model::Numerics draft_numerics = model::resolve_numerics(dtype, draft_checkpoint->main_dtype());
    draft_ = must(model::DraftNetwork::load(*device_, draft_checkpoint, draft_spec, draft_numerics, max_positions, {}));
    draft_decoder = &draft_->spec().decoder;
    bytes += model::DraftNetwork::scratch_bytes(draft_spec, max_positions, max_positions);
  }
  const int64_t pages = (max_positions + kPageSize - 1) / kPageSize;
  kv_ = must(model::KvMemory::allocate(*device_, spec, draft_decoder, kPageSize, pages, numerics.activation));
  bytes += int64_t{max_positions} * (spec.vocab + spec.hidden * 20) * 4 + (1 << 20);
  scratch_.emplace(must(device_->allocate(static_cast<size_t>(bytes))));
  page_table_.resize(pages);
  std::iota(page_table_.rbegin(), page_table_.rend(), 0);  // not in order: positions must go through the table
}

std::vector<std::vector<float>> ModelRunner::logits(std::span<const TokenId> ids, int32_t chunk) {
  std::vector<std::vector<float>> out;
  const TensorView table(page_table_.data(), DType::kI32, {1, static_cast<int64_t>(page_table_.size())});
  for (size_t begin = 0; begin < ids.size(); begin += chunk) {
    ArenaScope scope(*scratch_);
    const auto rows = static_cast<int32_t>(std::min<size_t>(chunk, ids.size() - begin));
    const std::vector<spec::RowRun> runs = {{0, SequenceIndex(static_cast<int32_t>(begin)), rows}};
    std::vector<ops::RowSegment> segments;
    model::RowBatch batch = spec::build_rows(runs, {}, table, segments, *scratch_);
    batch.token_ids = TensorView(const_cast<TokenId*>(ids.data() + begin), DType::kI32, {rows});
    const TensorView x = scratch_->take(DType::kF32, {rows, spec().hidden});
    target_->forward(device_->stream(), batch, *kv_, {}, x, *scratch_);
    std::vector<int32_t> index(rows);
    std::iota(index.begin(), index.end(), 0);
    const TensorView logits = scratch_->take(DType::kF32, {rows, spec().vocab});
    target_->logits(device_->stream(), x, {index.data(), DType::kI32, {rows}}, logits, *scratch_);
    for (int32_t i = 0; i < rows; ++i) out.push_back(to_floats(logits.rows(i, 1)));
  }
  return out;
}

std::vector<std::vector<float>> ModelRunner::draft_hidden(const std::vector<std::vector<float>>& features,
                                                          std::span<const TokenId> block_ids) {
  ArenaScope scope(*scratch_);
  const TensorView table(page_table_.data(), DType::kI32, {1, static_cast<int64_t>(page_table_.size())});
  const auto context = static_cast<int32_t>(features.size()), block = static_cast<int32_t>(block_ids.size());
  std::vector<ops::RowSegment> segments;
  if (context > 0) {
    const auto width = static_cast<int64_t>(features[0].size());
    const TensorView given = scratch_->take(draft_->activation(), {context, width});
    for (int64_t i = 0; i < context * width; ++i) {
      const float value = features[i / width][i % width];
      if (given.dtype == DType::kF32) {
        given.as<float>()[i] = value;
      } else {
        given.as<BFloat16>()[i] = to_bfloat16(value);
      }
    }
    const std::vector<spec::RowRun> runs = {{0, SequenceIndex(0), context}};
    draft_->inject(device_->stream(), spec::build_rows(runs, {}, table, segments, *scratch_), given, *kv_, *scratch_);
  }
  const spec::Visibility visibility = spec::block_visibility(draft_->spec().decoder, 0);
  const std::vector<spec::RowRun> runs = {{0, SequenceIndex(context), block}};
  model::RowBatch batch = spec::build_rows(runs, visibility, table, segments, *scratch_);
  batch.token_ids = TensorView(const_cast<TokenId*>(block_ids.data()), DType::kI32, {block});
  const TensorView x = scratch_->take(DType::kF32, {block, spec().hidden});
  target_->embed(device_->stream(), batch.token_ids, x);
  draft_->forward(device_->stream(), batch, *kv_, x, *scratch_);
  std::vector<int32_t> index(block);
  std::iota(index.begin(), index.end(), 0);
  const TensorView h = scratch_->take(draft_->activation(), {block, spec().hidden});
  draft_->final_norm(device_->stream(), x, {index.data(), DType::kI32, {block}}, h);
  std::vector<std::vector<float>> out;
  for (int32_t i = 0; i < block; ++i) out.push_back(to_floats(h.rows(i, 1)));
  return out;
}

}  // namespace volley::testing
