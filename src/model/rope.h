// Rotary position embedding: its parameters and its tables.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/device.h"
#include "ops/paged_kv/paged_kv.h"

namespace volley::model {

// config.json "rope_scaling" (Hugging Face): how the rotary frequencies are stretched.
struct RopeSpec {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };
  int32_t dim = 0;  // of a head
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double original_max_position = 0;                                // llama3, yarn
  double low_freq_factor = 1.0, high_freq_factor = 4.0;            // llama3
  double beta_fast = 32.0, beta_slow = 1.0;                        // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  bool truncate = true;                                            // yarn
};

// cos and sin for positions [0, positions): [positions][dim / 2] each, scaling and attention factor included, as
// `transformers` computes them: angles in fp32.
struct RopeValues {
  std::vector<float> cos, sin;
};
RopeValues rope_values(const RopeSpec& spec, int64_t positions);

// The same on a device.
struct Rope {
  Buffer buffer;
  ops::RopeTables tables;
};
// kResourceExhausted where the device has no room.
Result<Rope> make_rope(Device& device, const RopeSpec& spec, int64_t positions);

}  // namespace volley::model
