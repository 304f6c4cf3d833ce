// The decoder layers that target and drafter share: written once over a DecoderSpec. What differs between prefill,
// verification and drafting is which cache positions a row sees, and that comes with the batch.
// Threads: DecoderLayers are immutable once loaded; calls that share a stream or scratch memory by one thread at a
// time.
#pragma once

#include "device/arena.h"
#include "model/kv_memory.h"
#include "model/weight_loader.h"
#include "ops/attention/attention.h"
#include "ops/norm/norm.h"

namespace volley::model {

// Rows of several sequences, flattened. All arrays are on the device and int32 [rows]; counts are host bounds.
struct RowBatch {
  int32_t rows = 0;
  TensorView token_ids;
  TensorView slots;                           // row of the page table
  TensorView rope_positions;                  // angle of the rotary embedding
  TensorView cache_positions;                 // where K and V go
  TensorView visible_begin;                   // first cache position that the row sees, in full-attention layers
  TensorView visible_end;                     // one past the last
  TensorView window_begin, window_end;        // the same in sliding-window layers; null views when there are none
  std::span<const ops::RowSegment> segments;  // device memory
  int32_t max_segment_rows = 0;
  int32_t max_positions = 0;  // no row sees a position from here on
  TensorView page_table;      // [slots, max pages]
  // Which rows meet which chunks of K and V: made once a pass, for the layers that see the same.
  ops::AttentionWork work, window_work;
};

// Rotary tables for a model, for positions [0, positions). kResourceExhausted where the device has no room.
struct Rope {
  Buffer buffer;
  ops::RopeTables tables;
};
Result<Rope> make_rope(Device& device, const RopeSpec& spec, int32_t head_dim, int64_t positions);

// y = x W^T, by way of codes where w is stored as FP8. As ops::linear().
void product(Stream& stream, const ops::LinearWeight& w, TensorView x, TensorView y, ops::Epilogue epilogue,
             Arena& scratch);
// Room for an x: [rows, k] of weights of this storage, as codes where that is FP8.
ops::ScaledRows take_input(DType storage, DType activation, int64_t rows, int64_t k, Arena& scratch);

class DecoderLayers {
 public:
  // Errors as WeightLoader, here and in load_injection().
  static Result<DecoderLayers> load(Device& device, WeightLoader& loader, const DecoderSpec& spec, Numerics numerics,
                                    int64_t positions);

  // Cuts the attention of a pass for all its layers, before the first of them. What it takes of `scratch` must stay
  // until the last. kv: any layer of this model.
  void plan(Stream& stream, RowBatch& batch, const ops::KvLayer& kv, Arena& scratch) const;

  // One layer, in place on x: [rows, hidden] fp32. Writes K and V of the rows before any row looks at them.
  // features: gets x as the layer finds it, unless it is a null view.
  void forward(Stream& stream, int layer, const RowBatch& batch, const ops::KvLayer& kv, TensorView x, Arena& scratch,
               const ops::FeatureBlock& features = {}) const;

  // K and V of rows that have no query: a drafter's injected context. h: [rows, hidden] as take_input() of the matrices
  // has it, and it does not pass input_layernorm. kv: the first layer's, which the others follow in the page. One
  // product for all layers. REQUIRES: load_injection() was called.
  void inject(Stream& stream, const RowBatch& batch, const ops::KvLayer& kv, const ops::ScaledRows& h,
              Arena& scratch) const;
  Status load_injection(WeightLoader& loader);

  const DecoderSpec& spec() const { return spec_; }
  const Numerics& numerics() const { return numerics_; }
  DType activation() const { return numerics_.activation; }
  int count() const { return static_cast<int>(layers_.size()); }

  // Scratch that plan() and forward() take at most, without the residual stream. kv: dtype of the cache.
  static int64_t scratch_bytes(DeviceKind device, const DecoderSpec& spec, int64_t rows, int64_t max_positions,
                               DType kv);

 private:
  struct Layer {
    Vector input_norm, post_norm, q_norm, k_norm;
    ops::LinearWeight qkv, o, gate_up, down;
  };
  // For inject(), of all layers one after the other.
  struct Injection {
    ops::LinearWeight kv;  // the k and v rows of qkv once more
    Vector k_norm;
  };

  static Result<Layer> load_layer(WeightLoader& loader, const DecoderSpec& spec, int index);
  ops::QkvWrite kv_write(const RowBatch& batch, const ops::KvLayer& kv) const;

  DecoderSpec spec_;
  Numerics numerics_;
  Rope rope_;
  std::vector<Layer> layers_;
  Injection injection_;
};

}  // namespace volley::model
