// The least that a decoding step must read and compute, whatever the program: the floor that measured times are held
// against. Arithmetic only.
#pragma once

#include <cstdint>

#include "decode/step_weights.h"
#include "device/probe.h"

namespace volley::apps {

struct StepShape {
  int64_t requests = 1;     // that decode together
  int64_t block = 1;        // rows of each: 1 for plain decoding
  double mean_context = 0;  // positions of a request, averaged over its life
  double experts = 0;       // distinct ones that a step touches, over all layers
};

struct StepFloor {
  double weight_bytes = 0, kv_bytes = 0, state_bytes = 0, flops = 0;

  double bytes() const { return weight_bytes + kv_bytes + state_bytes; }
  double read_ms(const MachineSpeed& speed) const { return bytes() / speed.read_bytes_per_s * 1e3; }
  // 0 where the peak is not known.
  double flop_ms(double peak_flops) const { return peak_flops > 0 ? flops / peak_flops * 1e3 : 0; }
};

// Bytes of a weight in memory, scales included.
struct WeightBytes {
  double target = 2, draft = 2;
  double experts = 0;  // of the target's experts; 0: as its other weights
  double head = 2;     // of output heads, which may stay as they are
};

// What a request keeps.
struct RequestBytes {
  int64_t kv = 0;     // of a position: a step reads those of the whole context
  int64_t state = 0;  // of recurrent layers, with the rows of a block that may yet be thrown away
};

// Bytes of `state` for blocks of `block` rows, in the target's activations.
int64_t request_state_bytes(const model::Decoder& target, int64_t block, DType activation);

// A step reads and writes what recurrent layers keep of each request once, however long its context. Arithmetic of
// attention and of these layers is left out: at the lengths that are measured it is small.
StepFloor step_floor(const decode::StepWeights& weights, const StepShape& shape, WeightBytes bytes,
                     RequestBytes request);

}  // namespace volley::apps
