#include "model/ffn/dense.h"

namespace volley::model {

Result<std::unique_ptr<FfnBlock>> DenseBlock::load(WeightLoader& loader, const std::string& prefix, DType activation) {
  auto block = std::make_unique<DenseBlock>();
  block->activation_ = activation;
  VOLLEY_ASSIGN(block->gate_up_, loader.linear(prefix + "gate_up"));
  VOLLEY_ASSIGN(block->down_, loader.linear(prefix + "down"));
  return std::unique_ptr<FfnBlock>(std::move(block));
}

void DenseBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  ArenaScope scope(pass.scratch);
  const TensorView inner = pass.scratch.take(activation_, {pass.rows.rows, down_.k});
  ops::linear(pass.stream, gate_up_, h, inner, {ops::EndKind::kSwiGlu}, pass.scratch);
  x.add(pass, down_, inner);
}

}  // namespace volley::model
