#include "apps/tensor_check.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace volley::apps {
namespace {

// Asks for tensors as model::WeightLoader does, by the first of the prefixes that there is.
class TensorCheck {
 public:
  TensorCheck(const weights::Checkpoint& checkpoint, std::vector<std::string> prefixes)
      : checkpoint_(checkpoint), prefixes_(std::move(prefixes)) {}

  struct Part {
    std::string name;
    int64_t rows = 0;
  };

  // Its dtype; empty where it is wrong.
  std::optional<DType> ask(const std::string& name, const std::vector<int64_t>& shape) {
    std::string full = prefixes_.front() + name;
    for (const std::string& prefix : prefixes_) {
      if (!checkpoint_.has(prefix + name)) continue;
      full = prefix + name;
      break;
    }
    ++found_.count;
    auto tensor = checkpoint_.get(full, shape);
    if (!tensor.ok()) {
      ++wrong_;
      if (!first_) first_ = tensor.error();
      return std::nullopt;
    }
    int64_t bytes = static_cast<int64_t>(dtype_size(tensor->dtype));
    for (const int64_t dim : shape) bytes *= dim;
    found_.bytes[tensor->dtype] += bytes;
    return tensor->dtype;
  }

  // Matrices [rows, k] that are stacked into one. Where one is wrong, nobody looks at the rest.
  NeededMatrix ask_matrix(const std::vector<Part>& parts, int64_t k) {
    NeededMatrix matrix;
    for (const Part& part : parts) {
      matrix.parts.push_back(ask(part.name, {part.rows, k}).value_or(DType::kBF16));
      matrix.values += part.rows * k;
    }
    found_.matrices.push_back(matrix);
    return matrix;
  }

  void ask_layers(const model::DecoderSpec& spec) {
    const int64_t q_rows = int64_t{spec.heads} * spec.head_dim, kv_rows = int64_t{spec.kv_heads} * spec.head_dim;
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".", attention = layer + "self_attn.";
      ask(layer + "input_layernorm.weight", {spec.hidden});
      ask(layer + "post_attention_layernorm.weight", {spec.hidden});
      if (spec.qk_norm) {
        ask(attention + "q_norm.weight", {spec.head_dim});
        ask(attention + "k_norm.weight", {spec.head_dim});
      }
      const NeededMatrix qkv = ask_matrix({{attention + "q_proj.weight", q_rows},
                                           {attention + "k_proj.weight", kv_rows},
                                           {attention + "v_proj.weight", kv_rows}},
                                          spec.hidden);
      injection_.parts.insert(injection_.parts.end(), qkv.parts.begin() + 1, qkv.parts.end());
      injection_.values += 2 * kv_rows * spec.hidden;
      ask_matrix({{attention + "o_proj.weight", spec.hidden}}, q_rows);
      ask_matrix(
          {{layer + "mlp.gate_proj.weight", spec.intermediate}, {layer + "mlp.up_proj.weight", spec.intermediate}},
          spec.hidden);
      ask_matrix({{layer + "mlp.down_proj.weight", spec.hidden}}, spec.intermediate);
    }
  }

  // A drafter's k and v of all layers once more, which the injection of context multiplies with.
  void add_injection() { found_.matrices.push_back(injection_); }
  void add_matrix(const NeededMatrix& matrix) { found_.matrices.push_back(matrix); }

  void use_prefixes(std::vector<std::string> prefixes) { prefixes_ = std::move(prefixes); }

  Result<NeededTensors> result() const {
    if (!first_) return found_;
    if (wrong_ == 1) return *first_;
    return Error{first_->code, std::to_string(wrong_) + " of " + std::to_string(found_.count) +
                                   " tensors are wrong: " + first_->message};
  }

 private:
  const weights::Checkpoint& checkpoint_;
  std::vector<std::string> prefixes_;
  NeededTensors found_;
  NeededMatrix injection_;
  int64_t wrong_ = 0;
  std::optional<Error> first_;
};

}  // namespace

Result<NeededTensors> check_tensors(const weights::Checkpoint& checkpoint, const model::DecoderSpec& target) {
  TensorCheck check(checkpoint, {"model.", ""});
  const auto embedding = check.ask("embed_tokens.weight", {target.vocab, target.hidden});
  check.ask_layers(target);
  check.ask("norm.weight", {target.hidden});
  if (target.tied_embeddings) {
    check.add_matrix({{embedding.value_or(DType::kBF16)}, int64_t{target.vocab} * target.hidden});
  } else {
    check.use_prefixes({""});  // the head stands beside "model.", not in it
    check.ask_matrix({{"lm_head.weight", target.vocab}}, target.hidden);
  }
  return check.result();
}

Result<NeededTensors> check_tensors(const weights::Checkpoint& checkpoint, const model::DraftSpec& draft) {
  const int64_t hidden = draft.decoder.hidden;
  TensorCheck check(checkpoint, {"", "model."});
  check.ask_matrix({{"fc.weight", hidden}}, static_cast<int64_t>(draft.target_layers.size()) * hidden);
  check.ask("hidden_norm.weight", {hidden});
  check.ask("norm.weight", {hidden});
  check.ask_layers(draft.decoder);
  check.add_injection();
  return check.result();
}

BytesOfType stored_bytes(std::span<const NeededMatrix> matrices, const model::Numerics& numerics) {
  BytesOfType bytes;
  for (const NeededMatrix& matrix : matrices) {
    const DType storage = model::matrix_storage(numerics, matrix.parts);
    bytes[storage] += matrix.values * static_cast<int64_t>(dtype_size(storage));
  }
  return bytes;
}

}  // namespace volley::apps
