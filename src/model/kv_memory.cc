#include "model/kv_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace volley::model {
namespace {

// A cache of codes holds those of attention alone.
DType layer_dtype(const KvShape& shape, DType dtype) {
  return shape.is_attention ? dtype : ops::attention_dtype(dtype);
}

int64_t layer_bytes(const KvShape& shape, int32_t page_size, DType dtype) {
  return ops::kv_layer_bytes(page_size, shape.kv_heads, shape.head_dim, layer_dtype(shape, dtype), shape.v_in_k > 0);
}

size_t group_for(const KvShape& shape, std::vector<kv::Group>& groups) {
  if (shape.window == 0) return 0;
  const auto same = std::ranges::find(groups, shape.window, &kv::Group::window);
  if (same == groups.end()) {
    groups.push_back({.life = kv::Life::kWindow, .window = shape.window, .bytes = 0, .required = !shape.drafts});
    return groups.size() - 1;
  }
  same->required |= !shape.drafts;
  return static_cast<size_t>(same - groups.begin());
}

// The value of a one-element tensor; no value for a dtype that is not built.
std::optional<float> first_value(const weights::SourceTensor& tensor) {
  const auto read = [&](auto value) {
    std::memcpy(&value, tensor.data, sizeof(value));
    return value;
  };
  switch (tensor.dtype) {
    case DType::kF32:
      return read(0.0f);
    case DType::kF16:
      return to_float(read(Float16{}));
    case DType::kBF16:
      return to_float(read(BFloat16{}));
    default:
      return std::nullopt;
  }
}

Error not_built(const weights::Checkpoint& checkpoint, const std::string& name, const std::string& dtype) {
  return unimplemented(checkpoint.origin() + ": \"" + name + "\" has dtype " + dtype +
                       ", which is not built for scales: F32, F16 and BF16 are. Leave --kv-cache-dtype fp8 out.");
}

// what: "k" or "v". Looks for the names that quantisers use; without a tensor the scale is 1.
Result<float> read_scale(const weights::Checkpoint& checkpoint, const std::string& kv_format,
                         const std::string& attention, const std::string& what) {
  const std::string projection = what + "_proj.", own = what + "_scale";
  for (const std::string& name : {attention + projection + own, attention + own, attention + "attn." + own,
                                  attention + projection + "output_scale", attention + "kv_scale"}) {
    const std::optional<weights::TensorInfo> info = checkpoint.info(name);
    if (!info) continue;
    if (!kv_format.empty()) {
      return unimplemented(checkpoint.origin() + ": \"" + name + "\" is a scale for a cache of " + kv_format +
                           ", which is not built; built is float of 8 bits. Leave --kv-cache-dtype fp8 out.");
    }
    if (info->dtype != "F32" && info->dtype != "F16" && info->dtype != "BF16") {
      return not_built(checkpoint, name, info->dtype);
    }
    VOLLEY_ASSIGN(const weights::SourceTensor tensor, checkpoint.get(name, info->shape));
    const bool one = std::ranges::all_of(info->shape, [](int64_t n) { return n == 1; });
    if (!one) {
      return failed_precondition(checkpoint.origin() + ": \"" + name +
                                 "\" has a scale for each of several parts; built is one for a layer. Leave "
                                 "--kv-cache-dtype fp8 out.");
    }
    const std::optional<float> scale = first_value(tensor);
    VOLLEY_CHECK(scale.has_value());
    if (std::isfinite(*scale) && *scale > 0) return *scale;
    return data_loss(checkpoint.origin() + ": \"" + name + "\" is " + std::to_string(*scale) +
                     ", which is no scale: fetch the file again, or leave --kv-cache-dtype fp8 out.");
  }
  return 1.0f;
}

}  // namespace

std::vector<KvShape> kv_shapes(const Decoder& spec) {
  std::vector<KvShape> shapes;
  for (const Layer& layer : spec.layers) {
    if (const MixerFacts facts = layer.mixer_facts(); facts.kv) {
      shapes.push_back({.kv_heads = facts.kv->kv_heads,
                        .head_dim = facts.kv->head_dim,
                        .window = facts.kv->window,
                        .v_in_k = facts.kv->v_in_k,
                        .is_attention = facts.kv->is_attention()});
    }
  }
  return shapes;
}

Status read_kv_scales(const weights::Checkpoint& checkpoint, const weights::Quantisation* quantisation,
                      const Decoder& spec, std::span<KvShape> shapes) {
  const std::string kv_format = quantisation != nullptr ? quantisation->kv_format : std::string();
  size_t next = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!spec.layers[i].mixer_facts().kv) continue;
    const std::string attention = "layers." + std::to_string(i) + ".self_attn.";
    VOLLEY_ASSIGN(const float k_scale, read_scale(checkpoint, kv_format, attention, "k"));
    VOLLEY_ASSIGN(const float v_scale, read_scale(checkpoint, kv_format, attention, "v"));
    shapes[next].k_scale = k_scale;
    shapes[next].v_scale = v_scale;
    ++next;
  }
  VOLLEY_CHECK_EQ(next, shapes.size());
  return {};
}

int64_t kv_page_bytes(std::span<const KvShape> layers, int32_t page_size, DType dtype) {
  int64_t bytes = 0;
  for (const KvShape& shape : layers) bytes += layer_bytes(shape, page_size, dtype);
  return bytes;
}

KvLayout kv_layout(std::vector<KvShape> layers, int32_t page_size, DType dtype) {
  KvLayout layout;
  layout.layers = std::move(layers);
  layout.page_size = page_size;
  layout.dtype = dtype;
  layout.groups = {{.life = kv::Life::kWhole, .bytes = 0}};
  for (const KvShape& shape : layout.layers) {
    const size_t group = group_for(shape, layout.groups);
    layout.group_of.push_back(group);
    layout.groups[group].bytes += layer_bytes(shape, page_size, dtype);
  }
  return layout;
}

int64_t KvLayout::slot_bytes() const {
  int64_t bytes = 0;
  for (const ops::DeltaShape& shape : states) bytes += ops::delta_state_bytes(shape, tape_rows, state_dtype);
  return bytes;
}

void add_states(const Decoder& target, int32_t slots, int32_t tape_rows, DType activation, KvLayout& layout) {
  for (const Layer& layer : target.layers) {
    if (const MixerFacts facts = layer.mixer_facts(); facts.state) layout.states.push_back(*facts.state);
  }
  layout.slots = slots;
  layout.tape_rows = tape_rows;
  layout.state_dtype = activation;
}

Result<std::unique_ptr<KvMemory>> KvMemory::allocate(Device& device, const KvLayout& layout) {
  std::unique_ptr<KvMemory> memory(new KvMemory);
  memory->layout_ = layout;
  std::vector<std::byte*> next;  // by group
  for (const kv::Group& group : layout.groups) {
    Buffer buffer;
    if (group.bytes > 0) {
      VOLLEY_ASSIGN(buffer, device.allocate(static_cast<size_t>((group.pages + 1) * group.bytes)));
    }
    next.push_back(static_cast<std::byte*>(buffer.data()));
    memory->buffers_.push_back(std::move(buffer));
  }
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const KvShape& shape = layout.layers[i];
    const size_t group = layout.group_of[i];
    memory->layers_.push_back({next[group], layout.groups[group].bytes, layout.page_size, shape.kv_heads,
                               shape.head_dim, layer_dtype(shape, layout.dtype), shape.k_scale,
                               shape.v_in_k > 0 ? shape.k_scale : shape.v_scale, shape.v_in_k});
    next[group] += layer_bytes(shape, layout.page_size, layout.dtype);
  }
  if (layout.states.empty()) return memory;
  VOLLEY_ASSIGN(memory->state_buffer_, device.allocate(static_cast<size_t>(layout.state_bytes())));
  auto* state = static_cast<std::byte*>(memory->state_buffer_.data());
  for (const ops::DeltaShape& shape : layout.states) {
    memory->states_.push_back({state, layout.slots, layout.tape_rows, layout.state_dtype});
    memory->state_strides_.push_back(ops::delta_state_bytes(shape, layout.tape_rows, layout.state_dtype));
    state += layout.slots * memory->state_strides_.back();
  }
  if (layout.snapshots > 0) {
    VOLLEY_ASSIGN(memory->snapshot_buffer_, device.allocate(static_cast<size_t>(layout.snapshot_bytes())));
  }
  return memory;
}

std::byte* KvMemory::snapshot(PageId id) const {
  VOLLEY_CHECK(id.value >= 0 && id.value < layout_.snapshots);
  return static_cast<std::byte*>(snapshot_buffer_.data()) + id.value * slot_bytes();
}

void KvMemory::copy(Device& device, const kv::MemoryCopy& copy) const {
  if (copy.kind == kv::MemoryCopy::Kind::kPage) {
    const auto group = static_cast<size_t>(copy.group);
    const int64_t bytes = layout_.groups[group].bytes;
    if (bytes == 0) return;
    auto* const base = static_cast<std::byte*>(buffers_[group].data());
    device.enqueue_copy(base + copy.to.value * bytes, base + copy.from.value * bytes, static_cast<size_t>(bytes));
    return;
  }
  const bool saves = copy.kind == kv::MemoryCopy::Kind::kSave;
  std::byte* kept = snapshot(saves ? copy.to : copy.from);
  for (size_t i = 0; i < states_.size(); ++i) {
    std::byte* const state = states_[i].base + copy.slot.value * state_strides_[i];
    device.enqueue_copy(saves ? kept : state, saves ? state : kept, static_cast<size_t>(state_strides_[i]));
    kept += state_strides_[i];
  }
}

std::array<size_t, ops::kMaxViews> KvMemory::groups_of_views(size_t begin, size_t n) const {
  std::array<size_t, ops::kMaxViews> groups = {};
  for (size_t i = begin; i < begin + n; ++i) {
    if (layout_.layers[i].window == 0) continue;
    size_t& group = groups[ops::kWindowView];
    VOLLEY_CHECK(group == 0 || group == layout_.group_of[i]);
    group = layout_.group_of[i];
  }
  return groups;
}

}  // namespace volley::model
