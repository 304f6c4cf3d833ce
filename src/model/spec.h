// A decoder described as data. A layer is a mixer, in which positions see one another, and a feed-forward network. The
// forward pass (network.h) and the list of tensors (params.h) are written once for this description; a family
// (families/) is a function that makes one from config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/rope.h"
#include "model/vision/spec.h"
#include "ops/block_conv/block_conv.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/latent/latent.h"
#include "ops/linear/linear.h"
#include "ops/logits/logits.h"
#include "ops/router/router.h"

namespace volley::model {

// The K and V that a layer keeps for every position.
struct KvFacts {
  int32_t heads = 0;  // query heads
  int32_t kv_heads = 0, head_dim = 0;
  int32_t window = 0;  // > 0: positions that a query looks back, itself included
  bool causal = true;  // false: a query also sees the later positions of its block
  int32_t v_in_k = 0;  // > 0: V is the first so many elements of K, and is not kept

  // Whether attention reads them. Otherwise a position keeps one row of head_dim elements, in bf16 even where a cache
  // holds codes.
  bool is_attention() const { return heads > 0; }
};

// The facts about a mixer that the caches, the plans of memory and passes, and the costs depend on. Another kind of
// memory would be another field.
struct MixerFacts {
  std::optional<KvFacts> kv;             // null: no K and V
  std::optional<ops::DeltaShape> state;  // a state of fixed size for each slot
};

// The facts about a feed-forward network, likewise.
struct FfnFacts {
  int32_t inner = 0;                      // width; with a router, the width of one expert
  std::optional<ops::RouterRule> router;  // null: every row goes through the whole network
  int32_t shared_inner = 0;               // width of the shared expert, which every row goes through; 0: there is none
  bool by_expert = false;                 // ranks have whole experts
};

// A number that the ranks divide among them.
struct Divided {
  std::string what;  // for people: "KV heads"
  int64_t n = 0;
  bool shared = false;  // ranks beyond this number share
  int64_t experts = 0;  // for an inner width of experts: the number of experts

  bool among(int ranks) const { return n % ranks == 0 || (shared && ranks % n == 0); }
};

// A block is a struct that answers three questions: facts(), divided() and keep_share(). Its tensors are an overload in
// params.cc, its computation a load_block() (pass.h). Without one of these nothing compiles or links.

// Grouped-query attention over paged K and V.
struct Attention {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  int32_t rope = 0;      // index in Decoder::ropes
  int32_t window = 0;    // > 0: a query at q sees no key k <= q - window (nor, bidirectional, k >= q + window)
  float scale = 0;       // factor on the scores
  bool causal = true;    // false: a query also sees the later positions of its block (drafters)
  bool qk_norm = false;  // RMSNorm of every head of q and k, before the rotation
  // qk_norm is one of all heads of q together, and one of k's. REQUIRES: no biases.
  bool wide_norm = false;
  bool v_norm = false;    // RMSNorm of every head of v, without a weight
  bool v_from_k = false;  // there is no projection to v: v is k before its norm
  bool bias = false;      // whether the projections to q, k and v have biases
  bool o_bias = false;    // whether the output projection has a bias
  bool sinks = false;     // a learned logit for each head, in the sum that divides (ops/attention/attention.h)
  // Its output is multiplied by the sigmoid of another projection, whose rows q_proj holds behind q's, head by head.
  bool gate = false;

  int64_t q_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  MixerFacts facts() const;
  std::vector<Divided> divided() const;
  void keep_share(int rank, int ranks);
};

// Latent attention, whose heads share one short row of K and V (ops/latent/latent.h).
struct Latent {
  ops::LatentShape shape;
  int32_t q_rank = 0;      // > 0: q is made from a row of this width, which is normed
  int32_t rope = 0;        // index in Decoder::ropes; its dim is shape.rope
  float scale = 0;         // factor on the scores
  float norm_eps = 1e-6f;  // of the norms of the latent and of q's short row
  ops::QueryGrowth growth;

  MixerFacts facts() const;
  std::vector<Divided> divided() const;
  void keep_share(int rank, int ranks);
};

// A gated convolution along the sequence (ops/short_conv/short_conv.h).
struct ShortConv {
  int32_t channels = 0, taps = 0;

  MixerFacts facts() const;
  std::vector<Divided> divided() const;
  void keep_share(int rank, int ranks);
};

// The gated delta rule, which keeps a state of fixed size instead of K and V (ops/gated_delta/gated_delta.h).
struct GatedDelta {
  ops::DeltaShape shape;
  // The checkpoint's projections are in_proj_qkvz and in_proj_ba, whose rows are ordered by key head, instead of
  // separate tensors for qkv, z, b and a.
  bool by_key_head = false;

  MixerFacts facts() const;
  std::vector<Divided> divided() const;
  void keep_share(int rank, int ranks);
};

// down(silu(gate(x)) * up(x)), or with GELU (by tanh) instead of SiLU.
struct Dense {
  int32_t inner = 0;
  bool gelu = false;

  FfnFacts facts() const;
  std::vector<Divided> divided() const;
  void keep_share(int rank, int ranks);
};

// A mixture of gated networks; a router chooses some of them for each row.
struct Experts {
  ops::RouterRule router;
  int32_t inner = 0;          // width of one expert
  bool bias = false;          // whether the router and both products of an expert have biases
  bool choice_bias = false;   // whether the router has RouteCall::choice_bias
  ops::SwiGluClamp clamp;     // limit > 0: the activation is ops::EndKind::kClampedSwiGlu
  bool gelu = false;          // GELU (by tanh) instead of SiLU, of the shared expert, too
  bool expert_scale = false;  // whether the router has RouteCall::expert_scale
  // Checkpoints hold an expert as gate_up_proj [2 * inner, hidden], gate and up in turn, and down_proj [hidden, inner],
  // instead of gate_proj, up_proj and down_proj; transposed: as [hidden, 2 * inner] and [inner, hidden], without
  // `interleaved` all gates before all ups.
  bool interleaved = false, transposed = false;
  // Width of one more expert, which every row goes through; shared_gate: times the sigmoid of its own gate. 0: there is
  // none.
  int32_t shared_inner = 0;
  bool shared_gate = true;
  // The shared expert alone reads the block's norm. The others and the router each read a norm of their own of the
  // residual stream; the outputs of the shared expert, and of the others together, are normed before they are added.
  // REQUIRES: a shared expert, and that the block's end has a norm.
  bool own_norms = false;
  // Ranks of a tensor-parallel group divide the experts among them, in order, instead of the inner width of each.
  bool by_expert = false;

  FfnFacts facts() const;
  std::vector<Divided> divided() const;
  void keep_share(int rank, int ranks);
};

using Mixer = std::variant<Attention, Latent, ShortConv, GatedDelta>;
using Ffn = std::variant<Dense, Experts>;

// How a block's output y is added to the residual stream: x += scale * norm(y), then x *= factor.
struct BlockEnd {
  bool norm = false;  // RMSNorm, with a weight of its own
  float scale = 1;
  bool factor = false;  // a learned number; without it 1
  bool is_plain() const { return !norm && scale == 1 && !factor; }
};

struct Layer {
  Mixer mixer;
  Ffn ffn;
  BlockEnd mixer_end = {}, ffn_end = {};

  MixerFacts mixer_facts() const;
  FfnFacts ffn_facts() const;
  // Both blocks' numbers that ranks divide.
  std::vector<Divided> divided() const;
  // Turns the layer into the part that one rank computes. REQUIRES: each number of divided() can be divided among
  // `ranks`.
  void keep_share(int rank, int ranks);
};

// A pre-norm decoder: x += mixer(norm(x)); x += ffn(norm(x)) for every layer, then a norm and the output head. The
// variations before, between and after these are numbers or switches here.
struct Decoder {
  std::string family;  // the family's name, for people
  int32_t hidden = 0, vocab = 0;
  float norm_eps = 1e-6f;
  float embedding_scale = 1;  // multiplies the embedding's rows; rounded as activations are, as in transformers
  ops::LogitsEnd logits_end = {};
  bool tied_embeddings = false;  // the output head is the embedding
  // A convolution of the input and output of every block (drafters). Their rows are blocks of one size, and the ends of
  // their sublayers are plain.
  ops::BlockConvShape block_conv = {};
  // The first so many layers are followed by vectors that a picture's rows bring beside their embeddings (DeepStack).
  int32_t added_layers = 0;
  std::optional<TowerSpec> tower = {};  // makes the vectors of pictures; its tensors are not among params()
  bool norms_above_one = false;  // checkpoints hold a norm's weight minus 1, except for the norm inside GatedDelta
  std::vector<RopeSpec> ropes;
  std::vector<Layer> layers;

  // The attention of layer i, or null if the layer has another mixer; likewise below. For families and drafters, which
  // made the layers, and for tests. The rest of the engine uses facts.
  const Attention* attention(size_t i) const { return std::get_if<Attention>(&layers[i].mixer); }
  const Latent* latent(size_t i) const { return std::get_if<Latent>(&layers[i].mixer); }
  const GatedDelta* delta(size_t i) const { return std::get_if<GatedDelta>(&layers[i].mixer); }
  const Experts* experts(size_t i) const { return std::get_if<Experts>(&layers[i].ffn); }
  // K and V of the first layer with attention over them; no value if there is none.
  std::optional<KvFacts> first_kv() const;
  // Layers with a state of fixed size.
  size_t state_layers() const;
  // Whether rows may bring rotary positions on three axes.
  bool has_rope_axes() const;
  // Sets Experts::by_expert; false if no layer has experts.
  bool divide_by_expert(bool by_expert = true);
  // Whether Experts::by_expert is set.
  bool divides_by_expert() const;
};

}  // namespace volley::model
