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

  void ask(const std::string& name, const std::vector<int64_t>& shape) {
    std::string full = prefixes_.front() + name;
    for (const std::string& prefix : prefixes_) {
      if (!checkpoint_.has(prefix + name)) continue;
      full = prefix + name;
      break;
    }
    ++asked_;
    auto tensor = checkpoint_.get(full, shape);
    if (tensor.ok()) return;
    ++wrong_;
    if (!first_) first_ = tensor.error();
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
      ask(attention + "q_proj.weight", {q_rows, spec.hidden});
      ask(attention + "k_proj.weight", {kv_rows, spec.hidden});
      ask(attention + "v_proj.weight", {kv_rows, spec.hidden});
      ask(attention + "o_proj.weight", {spec.hidden, q_rows});
      ask(layer + "mlp.gate_proj.weight", {spec.intermediate, spec.hidden});
      ask(layer + "mlp.up_proj.weight", {spec.intermediate, spec.hidden});
      ask(layer + "mlp.down_proj.weight", {spec.hidden, spec.intermediate});
    }
  }

  void use_prefixes(std::vector<std::string> prefixes) { prefixes_ = std::move(prefixes); }

  Result<int64_t> result() const {
    if (!first_) return asked_;
    if (wrong_ == 1) return *first_;
    return Error{first_->code,
                 std::to_string(wrong_) + " of " + std::to_string(asked_) + " tensors are wrong: " + first_->message};
  }

 private:
  const weights::Checkpoint& checkpoint_;
  std::vector<std::string> prefixes_;
  int64_t asked_ = 0, wrong_ = 0;
  std::optional<Error> first_;
};

}  // namespace

Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, const model::DecoderSpec& target) {
  TensorCheck check(checkpoint, {"model.", ""});
  check.ask("embed_tokens.weight", {target.vocab, target.hidden});
  check.ask_layers(target);
  check.ask("norm.weight", {target.hidden});
  if (!target.tied_embeddings) {
    check.use_prefixes({""});  // the head stands beside "model.", not in it
    check.ask("lm_head.weight", {target.vocab, target.hidden});
  }
  return check.result();
}

Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, const model::DraftSpec& draft) {
  const int64_t hidden = draft.decoder.hidden;
  TensorCheck check(checkpoint, {"", "model."});
  check.ask("fc.weight", {hidden, static_cast<int64_t>(draft.target_layers.size()) * hidden});
  check.ask("hidden_norm.weight", {hidden});
  check.ask("norm.weight", {hidden});
  check.ask_layers(draft.decoder);
  return check.result();
}

}  // namespace volley::apps
