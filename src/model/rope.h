// Rotary position embedding: its parameters and its tables.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "device/device.h"
#include "ops/paged_kv/paged_kv.h"
#include "ops/rope_angles/rope_angles.h"

namespace volley::model {

// config.json "rope_scaling" (Hugging Face): how the rotary frequencies are stretched.
struct RopeSpec {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };
  int32_t dim = 0;  // elements of a head
  // How many elements are rotated; 0: all. If fewer, the first ones in the checkpoint are rotated, and element i is
  // paired with i + rotated / 2. They are loaded in another order (head_order()), in which element i is paired with i +
  // dim / 2, as kernels expect; pairs that are not rotated have an angle of 0.
  int32_t rotated = 0;
  // > 0: only so many pairs turn, the first ones, with the frequencies that they have in a whole head. REQUIRES:
  // rotated is 0.
  int32_t turning = 0;
  // The checkpoint pairs elements 2i and 2i + 1 instead; head_order() moves these apart. REQUIRES: all are rotated.
  bool interleaved = false;
  // How many pairs turn by a token's position in time, height and width ("mrope_section", interleaved: pair i by axis i
  // mod 3, and by time where that axis has no pairs left). Zeros: all turn by its one position.
  std::array<int32_t, ops::kRopeAxes> axes = {};
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double original_max_position = 0;                                // llama3, yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  bool truncate = true;                                            // yarn
};

inline bool has_axes(const RopeSpec& spec) {
  return spec.axes != decltype(spec.axes)();
}

// cos and sin for positions [0, positions): [positions][dim / 2] each, scaling and attention factor included, as
// `transformers` computes them: angles in fp32.
struct RopeValues {
  std::vector<float> cos, sin;
};
RopeValues rope_values(const RopeSpec& spec, int64_t positions);

// The axis of each of the dim / 2 pairs. REQUIRES: RopeSpec::axes.
std::vector<int32_t> pair_axes(const RopeSpec& spec);

// The elements of a head in the order in which q_proj, k_proj and the norms of heads are loaded, as [first, first + n)
// ranges of the checkpoint's order. Products of q and k are the same in any order. Empty: the checkpoint's order.
std::vector<std::pair<int64_t, int64_t>> head_order(const RopeSpec& spec);

// The same tables on a device.
struct Rope {
  Buffer buffer;
  ops::RopeTables tables;
  TensorView axes;  // pair_axes(), int32; a null view without RopeSpec::axes
};
// The bytes of its buffer.
int64_t rope_bytes(const RopeSpec& spec, int64_t positions);
// kResourceExhausted where the device has too little memory.
Result<Rope> make_rope(Device& device, const RopeSpec& spec, int64_t positions);

}  // namespace volley::model
