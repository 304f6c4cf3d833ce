#include "decode/step_weights.h"

namespace volley::decode {

StepWeights step_weights(const model::Decoder& target, const ProposerFacts* draft) {
  StepWeights weights;
  for (const model::Param& param : model::params(target)) {
    if (param.kind == model::Param::Kind::kTable || param.is_experts()) continue;
    (param.codes == model::Param::Codes::kBytes ? weights.head : weights.target) += param.elements();
  }
  for (const model::Layer& layer : target.layers) {
    const model::FfnFacts ffn = layer.ffn_facts();
    if (!ffn.router) continue;
    weights.expert = 3 * int64_t{ffn.inner} * target.hidden;
    weights.row_experts += ffn.router->top_k;
  }
  if (draft == nullptr) return weights;
  for (const model::Param& param : draft->params) {
    if (param.kind != model::Param::Kind::kTable) weights.draft += model::count({&param, 1});
  }
  if (draft->borrows_head) weights.head += model::head_param(target).elements();
  return weights;
}

}  // namespace volley::decode
