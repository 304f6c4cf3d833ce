#include "apps/bench/step_floor.h"

#include "model/kv_memory.h"

namespace volley::apps {

StepWeights step_weights(const model::Decoder& target, const spec::ProposerFacts* draft) {
  StepWeights weights;
  for (const model::Param& param : model::params(target)) {
    if (param.kind == model::Param::Kind::kTable || param.is_experts()) continue;
    (param.codes == model::Param::Codes::kBytes ? weights.head : weights.target) += param.elements();
  }
  for (size_t i = 0; i < target.layers.size(); ++i) {
    if (const model::Experts* experts = target.experts(i)) {
      weights.expert = 3 * int64_t{experts->inner} * target.hidden;
      weights.row_experts += experts->router.top_k;
    }
  }
  if (draft == nullptr || draft->params.empty()) return weights;
  weights.draft = model::count(draft->params);
  if (draft->draft_vocab == 0) weights.head += model::head_param(target).elements();
  return weights;
}

int64_t request_state_bytes(const model::Decoder& target, int64_t block, DType activation) {
  model::KvLayout layout;
  model::add_states(target, 1, static_cast<int32_t>(block) - 1, activation, layout);
  return layout.state_bytes();
}

StepFloor step_floor(const StepWeights& weights, const StepShape& shape, WeightBytes bytes, RequestBytes request) {
  const double rows = static_cast<double>(shape.requests * shape.block);
  StepFloor floor;
  floor.weight_bytes =
      static_cast<double>(weights.target) * bytes.target + static_cast<double>(weights.draft) * bytes.draft +
      static_cast<double>(weights.head) * bytes.head +
      shape.experts * static_cast<double>(weights.expert) * (bytes.experts > 0 ? bytes.experts : bytes.target);
  const auto requests = static_cast<double>(shape.requests);
  floor.kv_bytes = requests * shape.mean_context * static_cast<double>(request.kv);
  floor.state_bytes = 2 * requests * static_cast<double>(request.state);
  const int64_t multiplied = weights.target + weights.draft + weights.head + weights.row_experts * weights.expert;
  floor.flops = 2.0 * rows * static_cast<double>(multiplied);
  return floor;
}

}  // namespace volley::apps
