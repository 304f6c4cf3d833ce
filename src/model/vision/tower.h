// The vision tower's weights, and its pass over one picture. The pass is whole: no other picture is in it, so the bits
// of a picture's vectors depend on the picture and the weights alone.
#pragma once

#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/vision/spec.h"
#include "model/weight_loader.h"
#include "ops/attention/attention.h"
#include "ops/paged_kv/paged_kv.h"
#include "ops/vision/vision.h"

namespace volley::model {

// The list of the tower's tensors (params.h). Ranks do not divide it: the first has all.
std::vector<Param> tower_params(const TowerSpec& spec);

// The list of a decoder and, if it has one, its tower.
std::vector<Param> params_with_tower(const Decoder& spec);

// Threads: immutable; passes that share a stream or scratch memory by one thread at a time.
class Tower {
 public:
  // Errors as WeightLoader, and those of attention for heads of this size.
  static Result<std::unique_ptr<Tower>> load(WeightLoader& loader, const TowerSpec& spec, const Numerics& numerics);

  const TowerSpec& spec() const { return spec_; }

 private:
  friend class TowerPass;
  struct Norm {
    Vector weight, bias;
  };
  struct Product {
    ops::LinearWeight weight;
    Vector bias;
  };
  struct Layer {
    Norm norm1, norm2;
    Product qkv, proj, fc1, fc2;
  };
  struct Merger {
    Norm norm;
    Product fc1, fc2;
    bool joins_first = false;  // the norm is that of joined patches
  };

  TowerSpec spec_;
  Numerics numerics_;
  int32_t head_room_ = 0;  // elements of a head as attention's kernels take it
  Product patch_;
  Vector places_;
  std::vector<Layer> layers_;
  std::vector<Merger> mergers_;  // the last, then those of TowerSpec::deep
};

// A picture for the tower: multiples of PictureRules::token_side() pixels a side.
struct PictureView {
  int32_t width = 0, height = 0;
  std::span<const uint8_t> rgb;  // [height, width, 3]
};

// The pass over one picture at a time, in units. Its memory holds the largest picture. A GPU gets one piece of the work
// at a time, behind which others' steps find their place: run() waits for the call before.
class TowerPass {
 public:
  static Result<std::unique_ptr<TowerPass>> create(Device& device, const Tower& tower);

  static int64_t rows_of_unit(DeviceKind device);

  // REQUIRES: run() reached the end of the picture before, or it is given up.
  void begin(const PictureView& picture);
  // Runs units [begin, end) of the picture on the device's stream. REQUIRES: they follow the ones before.
  void run(int32_t begin, int32_t end, Arena& scratch);
  bool is_complete() const { return units_ && next_ == units_->count(); }
  struct Vectors {
    std::shared_ptr<std::vector<float>> values;  // [kinds, tokens, TowerSpec::out]; not to be changed
    double seconds = 0;                          // of the device, for all units
  };
  // Waits for them. REQUIRES: is_complete().
  Vectors take();
  // Where the device still has these values, a part of what take() returned last, for work that is enqueued before the
  // next begin(). Null: they are elsewhere, or come from elsewhere.
  const float* on_device(std::span<const float> values) const;

  // Takes the scratch memory of a largest picture. REQUIRES: the device's stream is dry.
  void run_dry(Arena& scratch);

 private:
  TowerPass(Device& device, const Tower& tower) : device_(device), tower_(tower) {}
  Status allocate();
  void upload(const PictureView& picture);
  void set_rows(int64_t patches);
  void set_largest();
  void plan(Arena& memory);
  void run_unit(const TowerUnits::Unit& unit, Arena& scratch);
  void embed(int64_t first, int64_t rows, Arena& scratch);
  void project(const Tower::Layer& layer, int64_t first, int64_t rows, Arena& scratch);
  void attend(const Tower::Layer& layer, int64_t first, int64_t rows, Arena& scratch);
  void merge(const Tower::Merger& merger, int64_t kind, int64_t first, int64_t rows, Arena& scratch);
  ops::Rows rows_of(int64_t first, int64_t rows) const;
  TensorView numbers(int64_t at, int64_t n) const;
  TensorView residual(int64_t first, int64_t rows) const;
  ops::RopeTables tables(const Buffer& buffer, int64_t rows) const;
  ops::KvLayer kv() const;
  DType activation() const { return tower_.numerics_.activation; }

  Device& device_;
  const Tower& tower_;
  // On the device, for the largest picture: pixels and numbers of rows, the residual stream, q, K and V, vectors, and
  // tables of angles: of all places along an edge, and of the picture's patches.
  Buffer input_, x_, q_, kv_, out_, edge_angles_, angles_;
  Buffer host_input_, host_out_;
  // Attention's plan for each unit's rows, which all layers share, and their memory.
  std::vector<ops::AttentionWork> plans_;
  std::optional<Arena> plan_memory_;
  std::future<std::shared_ptr<std::vector<float>>> values_;  // room for what take() returns
  std::weak_ptr<const std::vector<float>> taken_;            // that has the values of out_
  std::unique_ptr<Fence> uploaded_;
  struct Piece {
    std::unique_ptr<Fence> begin, end;
  };
  std::vector<Piece> pieces_;  // of one call of run() each
  size_t pieces_used_ = 0;     // by this picture
  // Offsets in input_, in bytes.
  struct Offsets {
    int64_t zeros = 0, counting = 0, ends = 0, axes = 0, pair_axes = 0, page = 0, segments = 0, all = 0;
  };
  Offsets at_;
  ops::PatchGrid grid_;
  std::optional<TowerUnits> units_;
  int32_t next_ = 0;
};

}  // namespace volley::model
