#include "spec/step_weights.h"

namespace volley::spec {

StepWeights step_weights(const model::Decoder& target, const ProposerFacts* draft) {
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

}  // namespace volley::spec
