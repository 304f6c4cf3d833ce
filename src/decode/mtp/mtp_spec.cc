#include <algorithm>
#include <nlohmann/json.hpp>

#include "decode/mtp/mtp.h"
#include "families/family.h"
#include "families/fields.h"
#include "model/params.h"

namespace volley::decode::mtp {
namespace {

using families::ConfigFields;

// Tokens of a pass: published figures are best for two to four, and each costs a pass of the head and the output head.
constexpr int32_t kProposals = 3;

// Checks what config.json says of the head; key: its number of layers. Qwen3-Next's says nothing.
Status read_head_fields(const std::string& dir, const char* key) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const ConfigFields root(json, dir + "/config.json");
  VOLLEY_ASSIGN(const std::optional<ConfigFields> text, root.object("text_config"));
  const ConfigFields& config = text ? *text : root;
  VOLLEY_ASSIGN(const int32_t layers, config.integer(key, 0, INT32_MAX, 1));
  if (layers == 0) return config.wrong(key, "is 0: this model has no MTP head to draft with");
  if (layers > 1) {
    return config.unbuilt(key, "is " + std::to_string(layers) + "; built is a head of one layer, which is run again");
  }
  VOLLEY_ASSIGN(const bool own, config.boolean("mtp_use_dedicated_embeddings", false));
  if (own) return config.unbuilt("mtp_use_dedicated_embeddings", "is true, which is not built");
  return {};
}

// Where a target's files have the head as one layer more, it has these names in that layer, and copies of the target's
// embedding and output head.
void name_as_layer(const std::string& layer, weights::NameRules& names) {
  names.aliases = {{"mtp.fc.", layer + "eh_proj."},
                   {"mtp.pre_fc_norm_embedding.", layer + "enorm."},
                   {"mtp.pre_fc_norm_hidden.", layer + "hnorm."},
                   {"mtp.norm.", layer + "shared_head.norm."},
                   {"mtp.layers.0.", layer}};
  names.copies = {"mtp.layers.0.embed_tokens.weight", "mtp.layers.0.shared_head.head.weight"};
  names.skipped = {};
  for (const char* other : {"layers.", "embed_tokens.", "norm.", "lm_head."}) {
    names.skipped.push_back({other, "the target"});
  }
}

// The head's tensors. K and V of known tokens need no more of its layer than their projections, which are one product.
std::vector<model::Param> head_params(const model::Decoder& decoder) {
  using Kind = model::Param::Kind;
  const int64_t hidden = decoder.hidden;
  const auto norm = [&](const char* role, const char* name) {
    model::Param param = {role, Kind::kVector, 0, {{name, hidden}}};
    param.plus = decoder.norms_above_one ? 1.0f : 0.0f;
    return param;
  };
  std::vector<model::Param> list = {{"fc", Kind::kMatrix, 2 * hidden, {{"mtp.fc.weight", hidden}}},
                                    norm("embedding_norm", "mtp.pre_fc_norm_embedding.weight"),
                                    norm("hidden_norm", "mtp.pre_fc_norm_hidden.weight")};
  std::vector<model::Param> body = model::body_params(decoder);
  for (model::Param& param : body) {
    for (model::Param::Part& part : param.parts) part.name = "mtp." + part.name;
  }
  std::vector<model::Param> injection;
  for (const auto& [of, role] : {std::pair{"qkv", "injection.kv"},
                                 {"qkv_bias", "injection.kv_bias"},
                                 {"kv_a", "injection.kv"},
                                 {"k_norm", "injection.k_norm"},
                                 {"kv_a_norm", "injection.k_norm"},
                                 {"input_norm", "injection.input_norm"}}) {
    const auto own = std::ranges::find(body, std::string("layers.0.") + of, &model::Param::role);
    if (own == body.end()) continue;
    model::Param& copy = injection.emplace_back(*own);
    copy.role = role;
    copy.again = true;
    if (copy.parts.size() > 1) copy.parts = {copy.parts[1], copy.parts[2]};  // leaves out q and a gate
  }
  model::append(list, std::move(body));
  model::append(list, std::move(injection));
  return list;
}

class MtpSpec final : public ProposerSpec {
 public:
  MtpSpec(ProposerFacts facts, int32_t target_layers) : facts_(std::move(facts)), target_layers_(target_layers) {}

  const ProposerFacts& facts() const override { return facts_; }
  Status check_target(const model::Decoder& target) const override {
    if (target.hidden == facts_.decoder.hidden && target.vocab == facts_.decoder.vocab &&
        std::ssize(target.layers) == target_layers_) {
      return {};
    }
    return failed_precondition("The MTP head does not fit the target: it is of a model of " +
                               std::to_string(target_layers_) + " layers of " + std::to_string(facts_.decoder.hidden) +
                               " and " + std::to_string(facts_.decoder.vocab) + " tokens, and the target has " +
                               std::to_string(target.layers.size()) + " of " + std::to_string(target.hidden) + " and " +
                               std::to_string(target.vocab) + ". Use --draft mtp, which takes the target's own.");
  }
  Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const override {
    return load_proposer(load, facts_);
  }

 private:
  const ProposerFacts facts_;
  const int32_t target_layers_;
};

}  // namespace

Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  VOLLEY_ASSIGN(families::TargetConfig target, families::read_target(dir));
  // A target leaves the head out by the beginning of its tensors' names.
  const auto head =
      std::ranges::find(target.names.skipped, "multi-token prediction", &weights::NameRules::Skipped::what);
  VOLLEY_CHECK(head != target.names.skipped.end());
  const std::string begins = head->begins;
  const bool as_layer = begins != "mtp.";
  VOLLEY_RETURN_IF_ERROR(read_head_fields(dir, as_layer ? "num_nextn_predict_layers" : "mtp_num_hidden_layers"));
  const auto layers = static_cast<int32_t>(target.decoder.layers.size());
  ProposerFacts facts;
  facts.architecture = target.architecture + " (MTP)";
  facts.decoder = target.decoder;
  const auto full = std::ranges::find_if(target.decoder.layers, [](const model::Layer& layer) {
    return !std::holds_alternative<model::GatedDelta>(layer.mixer);
  });
  VOLLEY_CHECK(full != target.decoder.layers.end());
  facts.decoder.layers = {{full->mixer, target.decoder.layers.back().ffn}};
  facts.proposals = kProposals;
  facts.feature_layers = {layers - 1};
  facts.borrows_head = true;
  facts.params = head_params(facts.decoder);
  facts.names = std::move(target.names);
  if (as_layer) {
    name_as_layer(begins, facts.names);
    return std::shared_ptr<const ProposerSpec>(std::make_shared<MtpSpec>(std::move(facts), layers));
  }
  facts.names.prefixes = {""};
  facts.names.aliases.clear();
  facts.names.skipped = {{"model.", "the target"}, {"lm_head.", "the target"}};
  return std::shared_ptr<const ProposerSpec>(std::make_shared<MtpSpec>(std::move(facts), layers));
}

}  // namespace volley::decode::mtp
