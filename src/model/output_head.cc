#include "model/output_head.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "model/params.h"

namespace volley::model {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 22;

float element(const weights::SourceTensor& tensor, int64_t i) {
  if (tensor.dtype == DType::kF32) return reinterpret_cast<const float*>(tensor.data)[i];
  if (tensor.dtype == DType::kF16) return to_float(reinterpret_cast<const Float16*>(tensor.data)[i]);
  return to_float(reinterpret_cast<const BFloat16*>(tensor.data)[i]);
}

bool equal(const weights::SourceTensor& a, const weights::SourceTensor& b, int64_t elements) {
  if (a.dtype == b.dtype) return std::memcmp(a.data, b.data, static_cast<size_t>(elements) * dtype_size(a.dtype)) == 0;
  for (int64_t i = 0; i < elements; ++i) {
    if (element(a, i) != element(b, i)) return false;
  }
  return true;
}

// Compares a few rows at a time: where files are not mapped, the read rows take memory.
Result<bool> equal(const weights::Checkpoint& checkpoint, const std::string& a, const std::string& b, int64_t rows,
                   int64_t columns) {
  const std::array<int64_t, 2> whole = {rows, columns};
  const int64_t step = std::max<int64_t>(1, kChunkElements / columns);
  for (int64_t row = 0; row < rows; row += step) {
    const std::array<int64_t, 2> part = {std::min(step, rows - row), columns};
    VOLLEY_ASSIGN(const weights::SourceTensor first, checkpoint.get_part(a, whole, row * columns, part));
    VOLLEY_ASSIGN(const weights::SourceTensor second, checkpoint.get_part(b, whole, row * columns, part));
    const bool same = equal(first, second, part[0] * columns);
    checkpoint.done_with(first);
    checkpoint.done_with(second);
    if (!same) return false;
  }
  return true;
}

}  // namespace

Result<std::optional<std::string>> settle_output_head(const weights::Checkpoint& checkpoint, Decoder& spec) {
  const std::optional<std::string> nothing;
  if (!spec.tied_embeddings) return nothing;
  Decoder untied = spec;
  untied.tied_embeddings = false;
  const std::string embedding = embedding_param(spec).parts[0].name, head = head_param(untied).parts[0].name;
  const std::array<int64_t, 2> shape = {spec.vocab, spec.hidden};
  VOLLEY_ASSIGN(const std::optional<weights::CodeFormat> codes, checkpoint.code_format(head, shape));
  if (!codes) {
    if (!checkpoint.info(head)) return nothing;
    for (const std::string& name : {embedding, head}) VOLLEY_RETURN_IF_ERROR(checkpoint.check(name, shape));
    VOLLEY_ASSIGN(const bool same, equal(checkpoint, embedding, head, spec.vocab, spec.hidden));
    if (same) return nothing;
  }
  spec = std::move(untied);
  return std::optional(checkpoint.origin() + " holds an output head (\"" + head + "\") that " +
                       (codes ? "is quantised" : "differs from the embedding") +
                       ", though config.json says \"tie_word_embeddings\": true. That head is used, as transformers "
                       "does; set the field to false to say so.");
}

}  // namespace volley::model
