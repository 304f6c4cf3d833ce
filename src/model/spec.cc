#include "model/spec.h"

#include <algorithm>

namespace volley::model {
namespace {

// Ranks beyond `n` share.
int32_t share_of(int32_t n, int ranks) {
  return n % ranks == 0 ? n / ranks : 1;
}

}  // namespace

MixerFacts Attention::facts() const {
  return {.kv = KvFacts{heads, kv_heads, head_dim, window, causal}, .state = {}};
}

std::vector<Divided> Attention::divided() const {
  return {{"attention heads", heads}, {"KV heads", kv_heads, true}};
}

void Attention::keep_share(int /*rank*/, int ranks) {
  heads = share_of(heads, ranks);
  kv_heads = share_of(kv_heads, ranks);
}

MixerFacts Latent::facts() const {
  return {.kv = KvFacts{shape.heads, 1, shape.key(), 0, true, shape.width}, .state = {}};
}

std::vector<Divided> Latent::divided() const {
  return {{"attention heads", shape.heads}};
}

void Latent::keep_share(int /*rank*/, int ranks) {
  shape.heads /= ranks;
}

MixerFacts ShortConv::facts() const {
  return {.kv = KvFacts{0, 1, channels, taps, true, channels}, .state = {}};
}

std::vector<Divided> ShortConv::divided() const {
  return {{"channels of convolutions", channels}};
}

void ShortConv::keep_share(int /*rank*/, int ranks) {
  channels /= ranks;
}

MixerFacts GatedDelta::facts() const {
  return {.kv = {}, .state = shape};
}

std::vector<Divided> GatedDelta::divided() const {
  return {{"value heads of recurrent layers", shape.v_heads}, {"key heads of recurrent layers", shape.k_heads, true}};
}

void GatedDelta::keep_share(int /*rank*/, int ranks) {
  shape.k_heads = share_of(shape.k_heads, ranks);
  shape.v_heads = share_of(shape.v_heads, ranks);
}

FfnFacts Dense::facts() const {
  return {.inner = inner, .router = {}};
}

std::vector<Divided> Dense::divided() const {
  return {{"inner width", inner}};
}

void Dense::keep_share(int /*rank*/, int ranks) {
  inner /= ranks;
}

FfnFacts Experts::facts() const {
  return {inner, router, shared_inner, by_expert};
}

std::vector<Divided> Experts::divided() const {
  std::vector<Divided> list;
  if (by_expert) {
    list.push_back({"experts, which --enable-expert-parallel divides,", router.experts});
  } else {
    list.push_back({"inner width of experts", inner, false, router.experts});
  }
  if (shared_inner > 0) list.push_back({"inner width of shared experts", shared_inner});
  return list;
}

void Experts::keep_share(int rank, int ranks) {
  if (by_expert) {
    router.own_count = router.experts / ranks;
    router.own_first = rank * router.own_count;
  } else {
    inner /= ranks;
  }
  shared_inner /= ranks;
}

MixerFacts Layer::mixer_facts() const {
  return std::visit([](const auto& block) { return block.facts(); }, mixer);
}

FfnFacts Layer::ffn_facts() const {
  return std::visit([](const auto& block) { return block.facts(); }, ffn);
}

std::vector<Divided> Layer::divided() const {
  const auto of = [](const auto& block) { return block.divided(); };
  std::vector<Divided> list = std::visit(of, mixer);
  std::ranges::move(std::visit(of, ffn), std::back_inserter(list));
  return list;
}

void Layer::keep_share(int rank, int ranks) {
  const auto keep = [&](auto& block) { block.keep_share(rank, ranks); };
  std::visit(keep, mixer);
  std::visit(keep, ffn);
}

std::optional<KvFacts> Decoder::first_kv() const {
  for (const Layer& layer : layers) {
    if (const MixerFacts facts = layer.mixer_facts(); facts.kv && facts.kv->is_attention()) return facts.kv;
  }
  return std::nullopt;
}

size_t Decoder::state_layers() const {
  return static_cast<size_t>(
      std::ranges::count_if(layers, [](const Layer& layer) { return layer.mixer_facts().state.has_value(); }));
}

bool Decoder::divide_by_expert(bool by_expert) {
  bool any = false;
  for (Layer& layer : layers) {
    if (auto* experts = std::get_if<Experts>(&layer.ffn)) {
      experts->by_expert = by_expert;
      any = true;
    }
  }
  return any;
}

bool Decoder::has_rope_axes() const {
  return !ropes.empty() && std::ranges::all_of(ropes, has_axes);
}

bool Decoder::divides_by_expert() const {
  return std::ranges::any_of(layers, [](const Layer& layer) { return layer.ffn_facts().by_expert; });
}

}  // namespace volley::model
