#include "model/params.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "weights/finite.h"

namespace volley::model {
namespace {

using Kind = Param::Kind;
using Codes = Param::Codes;

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// `n` pieces that repeat every `stride` rows from `first` on, each with its rows in the order of `piece`.
Ranges repeated(int64_t n, int64_t first, int64_t stride, const Ranges& piece) {
  Ranges ranges;
  for (int64_t i = 0; i < n; ++i) {
    for (const auto& [begin, rows] : piece) ranges.emplace_back(first + i * stride + begin, rows);
  }
  return ranges;
}

void append(Ranges& to, const Ranges& more) {
  to.insert(to.end(), more.begin(), more.end());
}

float norm_plus(const Decoder& spec) {
  return spec.norms_above_one ? 1.0f : 0.0f;
}

// The tensors of one layer's mixer and feed-forward network.
class LayerList {
 public:
  LayerList(const Decoder& spec, int layer)
      : spec_(spec), prefix_("layers." + std::to_string(layer) + "."), layer_(spec.layers[layer]) {}

  std::vector<Param> list() && {
    add_norm("input_norm", {"input_layernorm.weight", spec_.hidden});
    std::visit([&](const auto& mixer) { add_mixer(mixer); }, layer_.mixer);
    if (spec_.block_conv.taps > 0) add_conv("mixer_conv", "attention_conv.");
    if (layer_.mixer_end.norm) add_norm("mixer_end_norm", {"post_self_attn_layernorm.weight", spec_.hidden});
    add_norm("post_norm", {"post_attention_layernorm.weight", spec_.hidden});
    std::visit([&](const auto& ffn) { add_ffn(ffn); }, layer_.ffn);
    if (spec_.block_conv.taps > 0) add_conv("ffn_conv", "mlp_conv.");
    if (layer_.ffn_end.norm) add_norm("ffn_end_norm", {"post_mlp_layernorm.weight", spec_.hidden});
    if (layer_.ffn_end.factor) {
      add(Kind::kVector, "ffn_end_factor", 0, {{"layer_scalar", 1}});
      list_.back().again = true;  // not counted: to its makers it is no parameter
    }
    return std::move(list_);
  }

 private:
  void add(Kind kind, const std::string& role, int64_t columns, std::vector<Param::Part> parts,
           Codes codes = Codes::kAny) {
    for (Param::Part& part : parts) part.name = prefix_ + part.name;
    list_.push_back({prefix_ + role, kind, columns, std::move(parts), false, codes});
  }

  void add_norm(const char* role, Param::Part part) {
    add(Kind::kVector, role, 0, {std::move(part)});
    list_.back().plus = norm_plus(spec_);
  }

  void add_conv(const std::string& role, const std::string& folder) {
    const int64_t taps = spec_.block_conv.taps, hidden = spec_.hidden;
    add(Kind::kVector, role + "_base", 0,
        {{folder + "base_kernel", 2 * taps * hidden, Split::kNone, {}, {2, taps, hidden}}});
    add(Kind::kMatrix, role, hidden, {{folder + "kernel_projection.weight", spec_.block_conv.coefficients(hidden)}});
  }

  // Empty without a rotary embedding, too.
  Ranges order_of(int32_t rope) const {
    const auto index = static_cast<size_t>(rope);
    return index < spec_.ropes.size() ? head_order(spec_.ropes[index]) : Ranges();
  }

  void add_mixer(const Attention& a) {
    const int64_t q = a.q_width(), kv = a.kv_width(), dim = a.head_dim;
    const Ranges order = order_of(a.rope);
    if (a.wide_norm) {
      add_norm("q_norm", {"self_attn.q_norm.weight", q, Split::kOutputs, repeated(a.heads, 0, dim, order)});
      add_norm("k_norm", {"self_attn.k_norm.weight", kv, Split::kOutputs, repeated(a.kv_heads, 0, dim, order)});
      list_.back().parts[0].runs = {{kv, a.kv_heads}};
    } else if (a.qk_norm) {
      add_norm("q_norm", {"self_attn.q_norm.weight", dim, Split::kNone, order});
      add_norm("k_norm", {"self_attn.k_norm.weight", dim, Split::kNone, order});
    }
    const Ranges whole = {{0, dim}};
    const int64_t stride = a.gate ? 2 * dim : dim;  // rows of a head in q_proj
    const Ranges of_q = a.gate || !order.empty() ? repeated(a.heads, 0, stride, order.empty() ? whole : order) : order;
    const auto qkv = [&](const char* what, int64_t columns) {
      const std::string q_proj = std::string("self_attn.q_proj.") + what;
      std::vector<int64_t> stored;  // q_proj's shape in the files
      if (a.gate) stored.push_back(2 * q);
      if (a.gate && columns > 0) stored.push_back(columns);
      std::vector<Param::Part> parts = {
          {q_proj, q, Split::kOutputs, of_q, stored},
          {std::string("self_attn.k_proj.") + what, kv, Split::kOutputs, repeated(a.kv_heads, 0, dim, order)}};
      if (!a.v_from_k) parts.push_back({std::string("self_attn.v_proj.") + what, kv, Split::kOutputs});
      for (size_t i = 1; i < parts.size(); ++i) parts[i].runs = {{kv, a.kv_heads}};
      if (a.gate) parts.push_back({q_proj, q, Split::kOutputs, repeated(a.heads, dim, stride, whole), stored});
      return parts;
    };
    add(Kind::kMatrix, "qkv", spec_.hidden, qkv("weight", spec_.hidden));
    if (a.bias) add(Kind::kVector, "qkv_bias", 0, qkv("bias", 0));
    add(Kind::kMatrix, "o", q, {{"self_attn.o_proj.weight", spec_.hidden, Split::kInputs}});
    if (a.o_bias) add(Kind::kVector, "o_bias", 0, {{"self_attn.o_proj.bias", spec_.hidden}});
    if (a.sinks) add(Kind::kVector, "sinks", 0, {{"self_attn.sinks", a.heads, Split::kOutputs}});
  }

  // A head's rows of kv_b_proj are its up-projections to keys, of which the products take the transpose, and to values.
  void add_mixer(const Latent& latent) {
    const ops::LatentShape& s = latent.shape;
    const Ranges order = order_of(latent.rope), whole = {{0, s.rope}};
    const Ranges& rotated = order.empty() ? whole : order;
    const auto then_rotated = [&](int64_t first) {
      Ranges head = {{0, first}};
      append(head, repeated(1, first, 0, rotated));
      return head;
    };
    const std::string folder = "self_attn.";
    const int64_t heads = s.heads, from = latent.q_rank > 0 ? latent.q_rank : spec_.hidden;
    if (latent.q_rank > 0) {
      add(Kind::kMatrix, "q_a", spec_.hidden, {{folder + "q_a_proj.weight", latent.q_rank}});
      add_norm("q_a_norm", {folder + "q_a_layernorm.weight", latent.q_rank});
    }
    add(Kind::kMatrix, "q", from,
        {{folder + (latent.q_rank > 0 ? "q_b_proj.weight" : "q_proj.weight"), heads * s.query(), Split::kOutputs,
          repeated(heads, 0, s.query(), then_rotated(s.nope))}});
    add(Kind::kMatrix, "kv_a", spec_.hidden,
        {{folder + "kv_a_proj_with_mqa.weight", s.key(), Split::kNone, then_rotated(s.width)}});
    add_norm("kv_a_norm", {folder + "kv_a_layernorm.weight", s.width});
    const int64_t each = s.nope + s.value;
    std::vector<Param::Part> keys, values;
    for (int64_t head = 0; head < heads; ++head) {
      Param::Part part = {folder + "kv_b_proj.weight", s.value, Split::kExperts, {}, {heads * each, s.width}};
      part.first = head * each + s.nope;
      values.push_back(part);
      part.rows = s.width;
      part.first = 0;
      part.transposed = part.codes_too = true;
      part.first_column = head * each;
      keys.push_back(std::move(part));
    }
    add(Kind::kHeads, "head_keys", s.nope, std::move(keys), Codes::kNone);
    add(Kind::kHeads, "head_values", s.width, std::move(values), Codes::kNone);
    add(Kind::kMatrix, "o", heads * s.value, {{folder + "o_proj.weight", spec_.hidden, Split::kInputs}});
  }

  void add_mixer(const ShortConv& conv) {
    const int64_t n = conv.channels;
    add(Kind::kMatrix, "conv_in", spec_.hidden, {{"conv.in_proj.weight", 3 * n, Split::kOutputs}});
    list_.back().parts[0].runs = {{n}, {n}, {n}};
    add(Kind::kVector, "conv_kernel", 0, {{"conv.conv.weight", n * conv.taps, Split::kOutputs, {}, {n, 1, conv.taps}}});
    add(Kind::kMatrix, "conv_out", n, {{"conv.out_proj.weight", spec_.hidden, Split::kInputs}});
  }

  void add_mixer(const GatedDelta& delta) {
    const ops::DeltaShape& s = delta.shape;
    const int64_t channels = s.channels(), width = s.v_width();
    const std::string folder = "linear_attn.";
    const Param::Part::Run keys = {s.k_width(), s.k_heads}, values = {width}, heads_of_v = {s.v_heads};
    std::vector<Param::Part> in, gates;
    if (delta.by_key_head) {
      // A key head brings its rows of q, k, v and z, and of b and a.
      const int64_t k = s.k_dim, v = width / s.k_heads, stride = 2 * (k + v), heads = s.v_heads / s.k_heads;
      Ranges qkvz, ba;
      for (const auto& [first, rows] : Ranges{{0, k}, {k, k}, {2 * k, v}, {2 * k + v, v}}) {
        append(qkvz, repeated(s.k_heads, first, stride, {{0, rows}}));
      }
      for (const int64_t first : {int64_t{0}, heads}) append(ba, repeated(s.k_heads, first, 2 * heads, {{0, heads}}));
      in = {{folder + "in_proj_qkvz.weight", channels + width, Split::kOutputs, std::move(qkvz)}};
      gates = {{folder + "in_proj_ba.weight", 2 * s.v_heads, Split::kOutputs, std::move(ba)}};
      in[0].runs = {keys, keys, values, values};
      gates[0].runs = {heads_of_v, heads_of_v};
    } else {
      in = {{folder + "in_proj_qkv.weight", channels, Split::kOutputs},
            {folder + "in_proj_z.weight", width, Split::kOutputs}};
      gates = {{folder + "in_proj_b.weight", s.v_heads, Split::kOutputs},
               {folder + "in_proj_a.weight", s.v_heads, Split::kOutputs}};
      in[0].runs = {keys, keys, values};
    }
    add(Kind::kMatrix, "delta_in", spec_.hidden, std::move(in));
    add(Kind::kMatrix, "delta_gates", spec_.hidden, std::move(gates), Codes::kNone);
    add(Kind::kVector, "delta_conv", 0,
        {{folder + "conv1d.weight", channels * s.taps, Split::kOutputs, {}, {channels, 1, s.taps}}});
    const Param::Part::Run keys_taps = {s.k_width() * s.taps, s.k_heads};
    list_.back().parts[0].runs = {keys_taps, keys_taps, {width * s.taps}};
    add(Kind::kVector, "delta_a_log", 0, {{folder + "A_log", s.v_heads, Split::kOutputs}});
    add(Kind::kVector, "delta_dt_bias", 0, {{folder + "dt_bias", s.v_heads, Split::kOutputs}});
    add(Kind::kVector, "delta_norm", 0, {{folder + "norm.weight", s.v_dim}});
    add(Kind::kMatrix, "delta_out", width, {{folder + "out_proj.weight", spec_.hidden, Split::kInputs}});
  }

  void add_ffn(const Dense& dense) {
    add(Kind::kGateUp, "gate_up", spec_.hidden,
        {{"mlp.gate_proj.weight", dense.inner, Split::kOutputs}, {"mlp.up_proj.weight", dense.inner, Split::kOutputs}});
    add(Kind::kMatrix, "down", dense.inner, {{"mlp.down_proj.weight", spec_.hidden, Split::kInputs}});
  }

  void add_ffn(const Experts& experts) {
    const int32_t count = experts.router.experts;
    const Split outputs = experts.by_expert ? Split::kExperts : Split::kOutputs;
    const Split inputs = experts.by_expert ? Split::kExperts : Split::kInputs;
    add(Kind::kMatrix, "router", spec_.hidden, {{"mlp.gate.weight", count}}, Codes::kNone);
    if (experts.bias) add_biases(experts);
    if (experts.choice_bias) add(Kind::kVector, "router_choice_bias", 0, {{"mlp.gate.e_score_correction_bias", count}});
    if (experts.expert_scale) add(Kind::kVector, "expert_scale", 0, {{"mlp.gate.per_expert_scale", count}});
    if (experts.own_norms) {
      const int64_t hidden = spec_.hidden;
      add(Kind::kVector, "router_norm", 0, {{"mlp.gate.scale", hidden}});
      list_.back().times = 1 / std::sqrt(static_cast<float>(hidden));
      add_norm("experts_norm", {"pre_feedforward_layernorm_2.weight", hidden});
      add_norm("shared_end_norm", {"post_feedforward_layernorm_1.weight", hidden});
      add_norm("experts_end_norm", {"post_feedforward_layernorm_2.weight", hidden});
    }
    std::vector<Param::Part> gate_up, down;
    for (int32_t e = 0; e < count; ++e) {
      const std::string expert = "mlp.experts." + std::to_string(e) + ".";
      if (experts.interleaved || experts.transposed) {
        const bool across = experts.transposed;
        const int64_t step = experts.interleaved ? 2 : 1;
        const auto stored = [across](int64_t outputs, int64_t inputs) {
          return across ? std::vector<int64_t>{inputs, outputs} : std::vector<int64_t>{outputs, inputs};
        };
        const int64_t inner = experts.inner, hidden = spec_.hidden;
        for (const int64_t first : {0, 1}) {
          gate_up.push_back({expert + "gate_up_proj.weight",
                             inner,
                             outputs,
                             {},
                             stored(2 * inner, hidden),
                             experts.interleaved ? first : first * inner,
                             step,
                             across});
        }
        down.push_back({expert + "down_proj.weight", hidden, inputs, {}, stored(hidden, inner), 0, 1, across});
        continue;
      }
      gate_up.push_back({expert + "gate_proj.weight", experts.inner, outputs});
      gate_up.push_back({expert + "up_proj.weight", experts.inner, outputs});
      down.push_back({expert + "down_proj.weight", spec_.hidden, inputs});
    }
    add(Kind::kExpertsGateUp, "experts_gate_up", spec_.hidden, std::move(gate_up));
    add(Kind::kExperts, "experts_down", experts.inner, std::move(down));
    if (const int64_t inner = experts.shared_inner; inner > 0) {
      const std::string shared = "mlp.shared_expert.";
      if (experts.shared_gate) {
        add(Kind::kMatrix, "shared_gate", spec_.hidden, {{"mlp.shared_expert_gate.weight", 1}}, Codes::kNone);
      }
      add(Kind::kGateUp, "shared_gate_up", spec_.hidden,
          {{shared + "gate_proj.weight", inner, Split::kOutputs}, {shared + "up_proj.weight", inner, Split::kOutputs}});
      add(Kind::kMatrix, "shared_down", inner, {{shared + "down_proj.weight", spec_.hidden, Split::kInputs}});
    }
  }

  // The biases of all experts are one tensor, with those of gates and ups in turn, or one of each.
  void add_biases(const Experts& experts) {
    const int64_t count = experts.router.experts, inner = experts.inner, hidden = spec_.hidden;
    add(Kind::kVector, "router_bias", 0, {{"mlp.gate.bias", count}});
    const int64_t step = experts.interleaved ? 2 : 1;
    std::vector<Param::Part> gate_up;
    for (int64_t e = 0; e < count; ++e) {
      for (const int64_t is_up : {0, 1}) {
        const char* apart = is_up == 1 ? "mlp.experts.up_proj_bias" : "mlp.experts.gate_proj_bias";
        gate_up.push_back({experts.interleaved ? "mlp.experts.gate_up_proj_bias" : apart,
                           inner,
                           experts.by_expert ? Split::kExperts : Split::kOutputs,
                           {},
                           {count, step * inner},
                           e * step * inner + (step - 1) * is_up,
                           step});
      }
    }
    add(Kind::kVector, "experts_gate_up_bias", 0, std::move(gate_up));
    const Split down = experts.by_expert ? Split::kOutputs : Split::kNone;
    add(Kind::kVector, "experts_down_bias", 0,
        {{"mlp.experts.down_proj_bias", count * hidden, down, {}, {count, hidden}}});
  }

  const Decoder& spec_;
  const std::string prefix_;
  const Layer& layer_;
  std::vector<Param> list_;
};

constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// Tables that are computed from config.json, which some checkpoints still hold.
bool is_computed(const weights::Checkpoint& checkpoint, const std::string& name) {
  constexpr std::array<std::string_view, 7> kTables = {"inv_freq",         "cos_cached",  "sin_cached", "position_ids",
                                                       "rotary_emb.freqs", "masked_bias", "causal_mask"};
  if (std::ranges::any_of(kTables, [&](std::string_view table) { return name.ends_with(table); })) return true;
  // A causal mask, the same for all heads and all texts.
  if (!name.ends_with("attn.bias") && !name.ends_with("attention.bias")) return false;
  const std::optional<weights::TensorInfo> info = checkpoint.info(name);
  return info && info->shape.size() == 4 && info->shape[0] == 1 && info->shape[1] == 1 &&
         info->shape[2] == info->shape[3];
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

int64_t Param::width_of(std::span<const int64_t> shape) {
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> Param::stored_shape(const Part& part) const {
  if (!part.stored.empty()) return part.stored;
  return columns > 0 ? std::vector<int64_t>{part.rows, columns} : std::vector<int64_t>{part.rows};
}

std::vector<int64_t> Param::coded_shape(const Part& part) const {
  std::vector<int64_t> shape = stored_shape(part);
  if (part.transposed && !part.codes_too) std::reverse(shape.begin(), shape.end());
  return shape;
}

std::vector<Param> layer_params(const Decoder& spec, int layer) {
  return LayerList(spec, layer).list();
}

Param embedding_param(const Decoder& spec) {
  return {"embedding", Kind::kTable, spec.hidden, {{kEmbedding, spec.vocab}}};
}

Param head_param(const Decoder& spec) {
  return {"head",
          Kind::kMatrix,
          spec.hidden,
          {{spec.tied_embeddings ? kEmbedding : kHead, spec.vocab, Split::kVocab}},
          spec.tied_embeddings,
          Codes::kBytes};
}

std::vector<Param> body_params(const Decoder& spec) {
  std::vector<Param> list;
  for (size_t i = 0; i < spec.layers.size(); ++i) append(list, layer_params(spec, static_cast<int>(i)));
  Param norm = {"norm", Kind::kVector, 0, {{"norm.weight", spec.hidden}}};
  norm.plus = norm_plus(spec);
  list.push_back(std::move(norm));
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

namespace {

// The parts that one product multiplies are either all plain, or all codes of one format.
Status check_part(const weights::Checkpoint& checkpoint, const Param& param, const Param::Part& part) {
  const std::vector<int64_t> shape = param.stored_shape(part);
  if (!param.is_matrix() && !param.is_stack() && !param.is_value_table()) return checkpoint.check(part.name, shape);
  VOLLEY_ASSIGN(const std::optional<weights::CodeFormat> format,
                checkpoint.code_format(part.name, param.coded_shape(part)));
  if (!format) {
    VOLLEY_RETURN_IF_ERROR(checkpoint.check(part.name, shape));
  }
  const Param::Part& first = param.parts[0];
  const auto other = checkpoint.code_format(first.name, param.coded_shape(first));
  if (!other.ok()) return {};  // reported where that part is checked
  const auto name = [](const std::optional<weights::CodeFormat>& f) { return f ? f->name : std::string("plain"); };
  if (format.has_value() == other->has_value() && (!format || format->agrees_with(**other))) return {};
  return unimplemented(checkpoint.origin() + ": \"" + first.name + "\" is stored as " + name(*other) + " and \"" +
                       part.name + "\" as " + name(format) +
                       ": one product takes both, so they must be quantised alike; nothing else is built.");
}

// Some writers of quantised checkpoints give every matrix a bias. Biases that the model does not have are zeros, which
// change nothing.
Result<bool> is_empty_bias(const weights::Checkpoint& checkpoint, const std::string& name,
                           const std::set<std::string, std::less<>>& asked) {
  constexpr std::string_view kBias = ".bias";
  if (checkpoint.quantisation().empty() || !name.ends_with(kBias)) return false;
  if (!asked.contains(name.substr(0, name.size() - kBias.size()) + ".weight")) return false;
  const std::optional<weights::TensorInfo> info = checkpoint.info(name);
  if (!info) return false;
  VOLLEY_ASSIGN(const weights::SourceTensor bias, checkpoint.get(name, info->shape));
  return weights::all_zero(bias);
}

}  // namespace

Result<int64_t> check_tensors(const weights::Checkpoint& checkpoint, std::span<const Param> list) {
  std::set<std::string, std::less<>> asked;
  std::optional<Error> first;
  int64_t wrong = 0;
  for (const Param& param : list) {
    for (const Param::Part& part : param.parts) {
      if (!asked.insert(part.name).second) continue;
      const Status status = param.kind == Kind::kIndex ? checkpoint.check_integers(part.name, part.rows)
                                                       : check_part(checkpoint, param, part);
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
    if (asked.contains(name) || is_computed(checkpoint, name)) continue;
    if (name == kHead && asked.contains(kEmbedding)) continue;  // a tied model's head: the embedding once more
    VOLLEY_ASSIGN(const bool empty, is_empty_bias(checkpoint, name, asked));
    if (empty) continue;
    return unimplemented(checkpoint.origin() + " holds the tensor \"" + name +
                         "\", which this architecture does not read: what it is for is not built, and without it "
                         "results would differ from those of the model's makers.");
  }
  return static_cast<int64_t>(asked.size());
}

}  // namespace volley::model
