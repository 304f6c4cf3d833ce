#include "apps/bench/step_floor.h"

namespace volley::apps {

StepFloor step_floor(const model::DecoderSpec& target, const model::DraftSpec* draft, const StepShape& shape,
                     WeightBytes bytes, int64_t kv_bytes_per_token) {
  const int64_t head = int64_t{target.vocab} * target.hidden;
  const int64_t embeddings = target.tied_embeddings ? 0 : head;
  const int64_t target_weights = model::count_parameters(target) - embeddings;  // the head is among them
  const int64_t draft_weights = draft != nullptr ? model::count_parameters(*draft) + head : 0;
  const double rows = static_cast<double>(shape.requests * shape.block);
  StepFloor floor;
  floor.weight_bytes = static_cast<double>(target_weights * bytes.target + draft_weights * bytes.draft);
  floor.kv_bytes = static_cast<double>(shape.requests) * shape.mean_context * static_cast<double>(kv_bytes_per_token);
  floor.flops = 2.0 * rows * static_cast<double>(target_weights + draft_weights);
  return floor;
}

}  // namespace volley::apps
