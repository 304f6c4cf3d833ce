#include "model/params.h"

#include <numeric>
#include <set>

namespace volley::model {
namespace {

using Kind = Param::Kind;

Param vector(std::string role, std::string name, int64_t n) {
  return {std::move(role), Kind::kVector, 0, {{std::move(name), n}}};
}

// The parts of one layer's mixer and feed-forward network.
class LayerList {
 public:
  LayerList(const Decoder& spec, int layer)
      : spec_(spec), prefix_("layers." + std::to_string(layer) + "."), layer_(spec.layers[layer]) {}

  std::vector<Param> list() && {
    add(Kind::kVector, "input_norm", 0, {{"input_layernorm.weight", spec_.hidden}});
    std::visit([&](const auto& mixer) { add_mixer(mixer); }, layer_.mixer);
    add(Kind::kVector, "post_norm", 0, {{"post_attention_layernorm.weight", spec_.hidden}});
    std::visit([&](const auto& ffn) { add_ffn(ffn); }, layer_.ffn);
    return std::move(list_);
  }

 private:
  void add(Kind kind, const char* role, int64_t columns, std::vector<Param::Part> parts) {
    for (Param::Part& part : parts) part.name = prefix_ + part.name;
    list_.push_back({prefix_ + role, kind, columns, std::move(parts)});
  }

  void add_mixer(const Attention& a) {
    const int64_t q = a.q_width(), kv = a.kv_width();
    if (a.qk_norm) {
      add(Kind::kVector, "q_norm", 0, {{"self_attn.q_norm.weight", a.head_dim}});
      add(Kind::kVector, "k_norm", 0, {{"self_attn.k_norm.weight", a.head_dim}});
    }
    const auto qkv = [&](const char* what) -> std::vector<Param::Part> {
      return {{std::string("self_attn.q_proj.") + what, q, Split::kOutputs},
              {std::string("self_attn.k_proj.") + what, kv, Split::kKvHeads},
              {std::string("self_attn.v_proj.") + what, kv, Split::kKvHeads}};
    };
    add(Kind::kMatrix, "qkv", spec_.hidden, qkv("weight"));
    if (a.bias) add(Kind::kVector, "qkv_bias", 0, qkv("bias"));
    add(Kind::kMatrix, "o", q, {{"self_attn.o_proj.weight", spec_.hidden, Split::kInputs}});
    if (a.o_bias) add(Kind::kVector, "o_bias", 0, {{"self_attn.o_proj.bias", spec_.hidden}});
  }

  void add_ffn(const Dense& dense) {
    add(Kind::kGateUp, "gate_up", spec_.hidden,
        {{"mlp.gate_proj.weight", dense.inner, Split::kOutputs}, {"mlp.up_proj.weight", dense.inner, Split::kOutputs}});
    add(Kind::kMatrix, "down", dense.inner, {{"mlp.down_proj.weight", spec_.hidden, Split::kInputs}});
  }

  void add_ffn(const Experts& experts) {
    const int32_t count = experts.router.experts;
    add(Kind::kMatrix, "router", spec_.hidden, {{"mlp.gate.weight", count}});
    std::vector<Param::Part> gate_up, down;
    for (int32_t e = 0; e < count; ++e) {
      const std::string expert = "mlp.experts." + std::to_string(e) + ".";
      gate_up.push_back({expert + "gate_proj.weight", experts.inner, Split::kExperts});
      gate_up.push_back({expert + "up_proj.weight", experts.inner, Split::kExperts});
      down.push_back({expert + "down_proj.weight", spec_.hidden, Split::kExperts});
    }
    add(Kind::kExpertsGateUp, "experts_gate_up", spec_.hidden, std::move(gate_up));
    add(Kind::kExperts, "experts_down", experts.inner, std::move(down));
  }

  const Decoder& spec_;
  const std::string prefix_;
  const Layer& layer_;
  std::vector<Param> list_;
};

constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// What old writers left in a checkpoint and nobody reads.
bool is_inert(const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".masked_bias");
}

}  // namespace

ops::LinearLayout layout_of(const Param& param) {
  return param.kind == Kind::kGateUp || param.kind == Kind::kExpertsGateUp ? ops::LinearLayout::kGateUp
                                                                           : ops::LinearLayout::kPlain;
}

int64_t Param::rows() const {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const Part& part) { return sum + part.rows; });
}

std::vector<Param> layer_params(const Decoder& spec, int layer) {
  return LayerList(spec, layer).list();
}

Param embedding_param(const Decoder& spec) {
  return {"embedding", Kind::kTable, spec.hidden, {{kEmbedding, spec.vocab, Split::kVocab}}};
}

Param head_param(const Decoder& spec) {
  return {"head",
          Kind::kMatrix,
          spec.hidden,
          {{spec.tied_embeddings ? kEmbedding : kHead, spec.vocab, Split::kVocab}},
          spec.tied_embeddings};
}

std::vector<Param> body_params(const Decoder& spec) {
  std::vector<Param> list;
  for (size_t i = 0; i < spec.layers.size(); ++i) append(list, layer_params(spec, static_cast<int>(i)));
  list.push_back(vector("norm", "norm.weight", spec.hidden));
  return list;
}

std::vector<Param> params(const Decoder& spec) {
  std::vector<Param> list = {embedding_param(spec)};
  append(list, body_params(spec));
  list.push_back(head_param(spec));
  return list;
}

void append(std::vector<Param>& list, std::vector<Param> more) {
  list.insert(list.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

int64_t count(std::span<const Param> list) {
  int64_t sum = 0;
  for (const Param& param : list) sum += param.again || param.kind == Kind::kIndex ? 0 : param.elements();
  return sum;
}

Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, std::span<const Param> list) {
  std::set<std::string, std::less<>> asked;
  std::optional<Error> first;
  int64_t wrong = 0;
  for (const Param& param : list) {
    for (const Param::Part& part : param.parts) {
      if (!asked.insert(part.name).second) continue;
      std::vector<int64_t> shape = {part.rows};
      if (param.columns > 0) shape.push_back(param.columns);
      const Status status = param.kind == Kind::kIndex ? checkpoint.check_integers(part.name, part.rows)
                                                       : checkpoint.check(part.name, shape);
      if (status.ok()) continue;
      ++wrong;
      if (!first) first = status.error();
    }
  }
  if (wrong == 1) return *first;
  if (wrong > 1) {
    return Error{first->code, std::to_string(wrong) + " of " + std::to_string(asked.size()) +
                                  " tensors are wrong: " + first->message};
  }
  for (const std::string& name : checkpoint.names()) {
    if (asked.contains(name) || is_inert(name)) continue;
    if (name == kHead && asked.contains(kEmbedding)) continue;  // of a tied model: the embedding once more
    return unimplemented(checkpoint.origin() + " holds the tensor \"" + name +
                         "\", which this architecture does not read: what it is for is not built, and without it "
                         "results would differ from those of the model's makers.");
  }
  return static_cast<int64_t>(asked.size());
}

}  // namespace volley::model
