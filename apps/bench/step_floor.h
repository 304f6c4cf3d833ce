// The least that any program must read and compute in a decoding step, to compare measured times with. Arithmetic only.
#pragma once

#include <cstdint>

#include "decode/step_weights.h"
#include "device/probe.h"

namespace volley::apps {

struct StepShape {
  int64_t requests = 1;     // requests that decode together
  int64_t block = 1;        // rows of each request; 1: plain decoding
  double mean_context = 0;  // positions of a request, averaged over its life
  double experts = 0;       // distinct experts of a step, over all layers
};

struct StepFloor {
  double weight_bytes = 0, kv_bytes = 0, state_bytes = 0, flops = 0;

  double bytes() const { return weight_bytes + kv_bytes + state_bytes; }
  double read_ms(const MachineSpeed& speed) const { return bytes() / speed.read_bytes_per_s * 1e3; }
  // 0 if the peak is unknown.
  double flop_ms(double peak_flops) const { return peak_flops > 0 ? flops / peak_flops * 1e3 : 0; }
};

// Bytes of a weight in memory, scales included.
struct WeightBytes {
  double target = 2, draft = 2;
  double experts = 0;  // the target's experts; 0: like its other weights
  double head = 2;     // output heads, which may stay unquantised
};

struct RequestBytes {
  int64_t kv = 0;     // per position; a step reads those of the whole context
  int64_t state = 0;  // recurrent layers' states, with a block's rows that may still be rejected
};

// Bytes of `state` for blocks of `block` rows, in the target's activations.
int64_t request_state_bytes(const model::Decoder& target, int64_t block, DType activation);

// A step reads and writes each request's recurrent state once, at any length of context. Arithmetic of attention and of
// recurrent layers is left out, because it is small at the measured lengths.
StepFloor step_floor(const decode::StepWeights& weights, const StepShape& shape, WeightBytes bytes,
                     RequestBytes request);

}  // namespace volley::apps
