// What a decoder is, as data. A layer is a mixer, which lets positions see one another, and a feed-forward network. The
// forward pass (network.h) and the list of tensors (params.h) are written once over this; a family (families/) is a
// function from config.json to it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "model/rope.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace volley::model {

// Grouped-query attention over paged K and V.
struct Attention {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t rope = 0;      // which of Decoder::ropes
  int32_t window = 0;    // > 0: a query at q sees no key k <= q - window (nor, bidirectional, k >= q + window)
  float scale = 0;       // of the scores
  bool causal = true;    // false: a query also sees the later positions of its block (drafters)
  bool qk_norm = false;  // RMSNorm of every head of q and k, before the rotation
  bool bias = false;     // of the projections to q, k and v
  bool o_bias = false;   // of the output projection
  bool sinks = false;    // a learned logit a head in the sum that divides (ops/attention/attention.h)
  // Its output is multiplied by the sigmoid of another projection, whose rows q_proj holds behind q's, head by head.
  bool gate = false;

  int64_t q_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
};

// The gated delta rule: a state of fixed size instead of K and V (ops/gated_delta/gated_delta.h).
struct GatedDelta {
  ops::DeltaShape shape;
  // The checkpoint's projections are in_proj_qkvz and in_proj_ba, whose rows go by key head, instead of one for each of
  // q with k and v, z, b and a.
  bool by_key_head = false;
};

// down(silu(gate(x)) * up(x)).
struct Dense {
  int32_t inner = 0;
};

// A mixture of SwiGLU networks, of which a router chooses some for each row.
struct Experts {
  ops::RouterRule router;
  int32_t inner = 0;       // of one expert
  bool bias = false;       // of the router and of both products of an expert
  ops::SwiGluClamp clamp;  // limit > 0: the activation is ops::EndKind::kClampedSwiGlu
  // Checkpoints hold an expert as gate_up_proj [2 * inner, hidden], gate and up in turn, and down_proj [hidden, inner],
  // instead of gate_proj, up_proj and down_proj; transposed: as [hidden, 2 * inner] and [inner, hidden].
  bool interleaved = false, transposed = false;
  // Width of one more expert, which every row goes through, times the sigmoid of its own gate. 0: there is none.
  int32_t shared_inner = 0;
  // Ranks of a tensor-parallel group divide the experts among them, in order, instead of the inner width of each.
  bool by_expert = false;
};

using Mixer = std::variant<Attention, GatedDelta>;
using Ffn = std::variant<Dense, Experts>;

struct Layer {
  Mixer mixer;
  Ffn ffn;
};

// A pre-norm decoder: x += mixer(norm(x)); x += ffn(norm(x)) for every layer, then a norm and the output head.
struct Decoder {
  std::string family;  // its name, for people
  int32_t hidden = 0, vocab = 0;
  float norm_eps = 1e-6f;
  bool tied_embeddings = false;  // the output head is the embedding
  bool norms_above_one = false;  // checkpoints hold a norm's weight less 1; but for the one inside GatedDelta
  std::vector<RopeSpec> ropes;
  std::vector<Layer> layers;
  int32_t parts = 1;  // of each layer, with weights of their own, that a rank computes one after the other (shard.h)

  // The attention of layer i, or null where it has another mixer; its experts, or null where it is dense.
  const Attention* attention(size_t i) const { return std::get_if<Attention>(&layers[i].mixer); }
  const GatedDelta* delta(size_t i) const { return std::get_if<GatedDelta>(&layers[i].mixer); }
  const Experts* experts(size_t i) const { return std::get_if<Experts>(&layers[i].ffn); }
  // The attention of the first layer that has one; null where none does.
  const Attention* first_attention() const;
  // Layers with a state of fixed size.
  size_t delta_layers() const;
  // Sets Experts::by_expert; false where no layer has experts.
  bool divide_by_expert();
  // Whether it is set.
  bool divides_by_expert() const;
};

inline const Attention* Decoder::first_attention() const {
  for (const Layer& layer : layers) {
    if (const auto* attention = std::get_if<Attention>(&layer.mixer)) return attention;
  }
  return nullptr;
}

inline bool Decoder::divide_by_expert() {
  for (Layer& layer : layers) {
    if (auto* experts = std::get_if<Experts>(&layer.ffn)) experts->by_expert = true;
  }
  return divides_by_expert();
}

inline bool Decoder::divides_by_expert() const {
  return std::ranges::any_of(layers, [](const Layer& layer) {
    const auto* experts = std::get_if<Experts>(&layer.ffn);
    return experts != nullptr && experts->by_expert;
  });
}

inline size_t Decoder::delta_layers() const {
  return static_cast<size_t>(std::ranges::count_if(
      layers, [](const Layer& layer) { return std::holds_alternative<GatedDelta>(layer.mixer); }));
}

}  // namespace volley::model
