// The memory that layers keep for sequences: KV pages and recurrent states. KV pages are a buffer for each cache group
// (kv/layout.h), whose pages hold page_size positions of every layer of the group. Target and drafter share groups, so
// one page table serves both and a prefix hit includes the drafter's context. Recurrent layers of the target have one
// state a slot (ops/gated_delta), and snapshots: copies of a slot's whole memory at one time. Threads: immutable; the
// memory's content changes in the stream's order.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "kv/layout.h"
#include "model/spec.h"
#include "ops/paged_kv/paged_kv.h"
#include "weights/checkpoint.h"
#include "weights/schemes/schemes.h"

namespace volley::model {

// The bytes that one layer keeps for a position, and for how long (0: as long as the sequence).
struct KvShape {
  int32_t kv_heads = 0, head_dim = 0;
  int32_t window = 0;
  float k_scale = 1, v_scale = 1;  // for a cache of codes (ops::KvLayer)
  bool drafts = false;             // the drafter's: no output token depends on it
  int32_t v_in_k = 0;              // as ops::KvLayer has it
  bool is_attention = true;        // as KvFacts has it
};
// The layers that keep K and V, in order.
std::vector<KvShape> kv_shapes(const Decoder& spec);

// Sets the cache scales that the checkpoint has for the layers: tensors of one number beside each layer's projections,
// or of its attention, called k_scale and v_scale, output_scale of the projection, or kv_scale for both. They are F32,
// F16 or BF16, and made for a cache of e4m3, as `quantisation` says (null: no statement); kUnimplemented for others.
// kFailedPrecondition for other shapes, kDataLoss for numbers that are no scales. shapes: the result of
// kv_shapes(spec).
Status read_kv_scales(const weights::Checkpoint& checkpoint, const weights::Quantisation* quantisation,
                      const Decoder& spec, std::span<KvShape> shapes);

// Bytes that page_size positions of these layers take.
int64_t kv_page_bytes(std::span<const KvShape> layers, int32_t page_size, DType dtype);

// The cache groups of a target and its drafter: full-attention layers of both are group 0; sliding-window layers form
// one group for each window size, so that narrow windows keep fewer pages than wide ones.
struct KvLayout {
  std::vector<KvShape> layers;    // the target's, then the drafter's
  std::vector<size_t> group_of;   // each layer's group
  std::vector<kv::Group> groups;  // with bytes; the memory plan decides the number of pages
  int32_t page_size = 0;
  DType dtype = DType::kBF16;

  std::vector<ops::DeltaShape> states;  // states of the target's recurrent layers
  int32_t slots = 0, tape_rows = 0;     // slots, and the rows of each one's tape
  DType state_dtype = DType::kBF16;     // type of the kept rows
  int64_t slot_bytes() const;           // bytes of all states of a slot
  int64_t snapshots = 0;                // number of snapshots that fit
  int64_t state_bytes() const { return slots * slot_bytes(); }
  int64_t snapshot_bytes() const { return snapshots * slot_bytes(); }
};
KvLayout kv_layout(std::vector<KvShape> layers, int32_t page_size, DType dtype);

// Adds the target's states. tape_rows: the most rows of a segment that may still be discarded.
void add_states(const Decoder& target, int32_t slots, int32_t tape_rows, DType activation, KvLayout& layout);

class KvMemory {
 public:
  // The layout's dtype is kBF16, kF32 or kF8E4M3. Allocates each group's memory as whole pages plus the scrap page, and
  // that of states as one piece. kResourceExhausted where the device has too little memory.
  static Result<std::unique_ptr<KvMemory>> allocate(Device& device, const KvLayout& layout);

  // n layers from `begin` on, in the order of the layout.
  std::span<const ops::KvLayer> layers(size_t begin, size_t n) const {
    return std::span<const ops::KvLayer>(layers_).subspan(begin, n);
  }
  size_t size() const { return layers_.size(); }
  // The target's recurrent layers, in order.
  std::span<const ops::DeltaState> states() const { return states_; }
  int64_t state_bytes() const { return layout_.state_bytes(); }
  int64_t slot_bytes() const { return layout_.slot_bytes(); }
  // Enqueued in the stream's order. REQUIRES: the copies are made between steps of their slots, in the given order.
  void copy(Device& device, const kv::MemoryCopy& copy) const;
  // The group of pages that each view of a pass over these layers uses (ops/rows.h): group 0, and the group of their
  // window. REQUIRES: their windows have one size.
  std::array<size_t, ops::kMaxViews> groups_of_views(size_t begin, size_t n) const;

  const std::vector<kv::Group>& groups() const { return layout_.groups; }
  int32_t page_size() const { return layout_.page_size; }

 private:
  KvMemory() = default;
  KvLayout layout_;
  std::vector<Buffer> buffers_;  // by group
  std::vector<ops::KvLayer> layers_;
  std::byte* snapshot(PageId id) const;

  Buffer state_buffer_, snapshot_buffer_;
  std::vector<int64_t> state_strides_;  // bytes of a slot, by layer
  std::vector<ops::DeltaState> states_;
};

}  // namespace volley::model
