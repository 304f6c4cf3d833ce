#include "apps/bench/step_floor.h"

#include "model/kv_memory.h"

namespace volley::apps {

int64_t request_state_bytes(const model::Decoder& target, int64_t block, DType activation) {
  model::KvLayout layout;
  model::add_states(target, 1, static_cast<int32_t>(block) - 1, activation, layout);
  return layout.state_bytes();
}

StepFloor step_floor(const decode::StepWeights& weights, const StepShape& shape, WeightBytes bytes,
                     RequestBytes request) {
  const double rows = static_cast<double>(shape.requests * shape.block);
  StepFloor floor;
  floor.weight_bytes =
      static_cast<double>(weights.target) * bytes.target + static_cast<double>(weights.draft) * bytes.draft +
      static_cast<double>(weights.head) * bytes.head +
      shape.experts * static_cast<double>(weights.expert) * (bytes.experts > 0 ? bytes.experts : bytes.target);
  const auto requests = static_cast<double>(shape.requests);
  floor.kv_bytes = requests * shape.mean_context * static_cast<double>(request.kv);
  floor.state_bytes = 2 * requests * static_cast<double>(request.state);
  floor.flops = 2.0 * rows * static_cast<double>(weights.multiplied());
  return floor;
}

}  // namespace volley::apps
