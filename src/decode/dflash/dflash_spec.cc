#include <algorithm>

#include "decode/dflash/config.h"
#include "decode/dflash/network.h"
#include "decode/dflash/vocabulary.h"

namespace volley::decode::dflash {
namespace {

Status check_equal(const char* what, int32_t target, int32_t draft) {
  if (target == draft) return {};
  return failed_precondition(std::string("The drafter does not fit the target: ") + what + " is " +
                             std::to_string(draft) + " in the drafter's config.json and " + std::to_string(target) +
                             " in the target's. Use a drafter that was trained for this target.");
}

// A layer of the form W [.., h, ..] + b: its columns of the hidden state h are multiplied for all rows at once, the
// others, read where the checkpoint has them, from left to right.
void append_layer(std::vector<model::Param>& list, const std::string& role, const std::string& name, int64_t outputs,
                  int64_t hidden, int64_t others, int64_t first) {
  using Kind = model::Param::Kind;
  model::Param product = {role + ".hidden", Kind::kMatrix, hidden, {{name + ".weight", outputs}}};
  product.parts[0].stored = {outputs, hidden + others};
  product.codes = model::Param::Codes::kNone;
  product.first_column = first;
  product.again = others > 0;
  if (others > 0) {
    list.push_back({role + ".others", Kind::kTable, hidden + others, {{name + ".weight", outputs}}});
    list.back().codes = model::Param::Codes::kNone;
  }
  list.push_back(std::move(product));
  list.push_back({role + ".bias", Kind::kVector, 0, {{name + ".bias", outputs}}});
}

std::vector<model::Param> selector_params(const Facts& facts) {
  using Kind = model::Param::Kind;
  const Selector& selector = facts.selector;
  const int64_t rank = selector.rank, hidden = facts.decoder.hidden;
  const bool product = selector.scoring == ops::Scoring::kProduct;
  if (rank == 0) return {};
  const auto table = [&](const char* role, const char* name, int64_t rows) {
    return model::Param{role, Kind::kTable, rank, {{name, rows}}, false, model::Param::Codes::kNone};
  };
  if (product) {
    return {{"selector.hidden", Kind::kMatrix, hidden, {{"candidate_selector.hidden_projection.weight", rank}}},
            table("selector.predecessor", "candidate_selector.predecessor_codebook", facts.decoder.vocab),
            table("selector.successor", "candidate_selector.successor_codebook", facts.decoder.vocab)};
  }
  std::vector<model::Param> list = {table("selector.predecessor", "markov_head.markov_w1.weight", facts.decoder.vocab),
                                    table("selector.successor", "markov_head.markov_w2.weight", facts.own_vocab())};
  if (const auto sizes = ops::sizes_of(selector.scoring); sizes.inputs > 0) {
    const bool gated = selector.scoring == ops::Scoring::kGated;
    append_layer(list, "selector", gated ? "markov_head.gate_proj" : "markov_head.joint_proj", sizes.hidden * rank,
                 hidden, sizes.inputs * rank, gated ? 0 : sizes.inputs * rank);
  }
  if (selector.confidence) {
    append_layer(list, "confidence", "confidence_head.proj", 1, hidden, *selector.confidence ? rank : 0, 0);
  }
  return list;
}

class DFlashSpec final : public ProposerSpec {
 public:
  explicit DFlashSpec(Facts facts) : facts_(std::move(facts)) {}

  const Facts& facts() const override { return facts_; }
  Status check_target(const model::Decoder& target) const override;

  Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const override {
    VOLLEY_ASSIGN(auto network, Network::load(load, facts_));
    return make_proposer(std::move(network), load);
  }

 private:
  const Facts facts_;
};

Status DFlashSpec::check_target(const model::Decoder& target) const {
  const int32_t layers = static_cast<int32_t>(target.layers.size());
  const Facts& draft = facts_;
  VOLLEY_RETURN_IF_ERROR(check_equal("hidden_size", target.hidden, draft.decoder.hidden));
  VOLLEY_RETURN_IF_ERROR(check_equal("vocab_size", target.vocab, draft.decoder.vocab));
  if (draft.target_layers > 0) {
    VOLLEY_RETURN_IF_ERROR(
        check_equal("the target's number of layers (num_target_layers)", layers, draft.target_layers));
  }
  for (const int32_t id : draft.feature_layers) {
    if (id < 0 || id >= layers) {
      return failed_precondition("The drafter reads layer " + std::to_string(id) +
                                 " of the target (target_layer_ids), but the target has layers 0 to " +
                                 std::to_string(layers - 1) + ". Use a drafter that was trained for this target.");
    }
    if (std::count(draft.feature_layers.begin(), draft.feature_layers.end(), id) > 1) {
      return failed_precondition("The drafter's target_layer_ids name layer " + std::to_string(id) +
                                 " twice. Use a drafter whose config.json is right.");
    }
  }
  if (draft.mask_token < 0 || draft.mask_token >= target.vocab) {
    return failed_precondition("The drafter's mask_token_id is " + std::to_string(draft.mask_token) +
                               ", but the target's vocabulary ends at " + std::to_string(target.vocab - 1) +
                               ". Use a drafter that was trained for this target.");
  }
  return {};
}

}  // namespace

std::vector<size_t> injected_layers(const model::Decoder& decoder, bool windowed) {
  std::vector<size_t> layers;
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    if ((decoder.attention(i)->window > 0) == windowed) layers.push_back(i);
  }
  return layers;
}

std::vector<model::Param> draft_params(const Facts& facts) {
  using Kind = model::Param::Kind;
  const model::Decoder& decoder = facts.decoder;
  const int64_t hidden = decoder.hidden, wide = std::ssize(facts.feature_layers) * hidden;
  std::vector<model::Param> list = {{"fc", Kind::kMatrix, wide, {{"fc.weight", hidden}}},
                                    {"hidden_norm", Kind::kVector, 0, {{"hidden_norm.weight", hidden}}}};
  model::append(list, model::body_params(decoder));
  model::Param kv = {"injection.kv", Kind::kMatrix, hidden, {}, true};
  model::Param norm = {"injection.k_norm", Kind::kVector, 0, {}, true};
  model::Param bias = {"injection.kv_bias", Kind::kVector, 0, {}, true};
  std::vector<size_t> order = injected_layers(decoder, false);
  for (const size_t i : injected_layers(decoder, true)) order.push_back(i);
  for (const size_t i : order) {
    const model::Attention& a = *decoder.attention(i);
    const std::string attention = "layers." + std::to_string(i) + ".self_attn.";
    for (const char* name : {"k_proj.", "v_proj."}) {
      if (a.v_from_k && name[0] == 'v') continue;
      for (model::Param* param : {&kv, &bias}) {
        if (param == &bias && !a.bias) continue;
        const char* what = param == &kv ? "weight" : "bias";
        param->parts.push_back({attention + name + what, a.kv_width(), model::Split::kOutputs});
        param->parts.back().runs = {{a.kv_width(), a.kv_heads}};
      }
    }
    if (a.qk_norm) norm.parts.push_back({attention + "k_norm.weight", a.head_dim});
  }
  list.push_back(std::move(kv));
  for (model::Param* vector : {&norm, &bias}) {
    if (!vector->parts.empty()) list.push_back(std::move(*vector));
  }
  if (facts.draft_vocab > 0) {
    list.push_back({"head", Kind::kMatrix, hidden, {{"lm_head.weight", facts.draft_vocab, model::Split::kVocab}}});
    list.push_back({"target_offsets", Kind::kIndex, 0, {{kTargetOffsets, facts.draft_vocab}}});
  }
  model::append(list, selector_params(facts));
  return list;
}

std::shared_ptr<const ProposerSpec> make_spec(Facts facts) {
  return std::make_shared<DFlashSpec>(std::move(facts));
}

Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  VOLLEY_ASSIGN(Facts facts, read_config(dir));
  return make_spec(std::move(facts));
}

}  // namespace volley::decode::dflash
