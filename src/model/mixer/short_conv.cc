// A gated short convolution as a mixer: two projections around ops/short_conv.
#include "ops/short_conv/short_conv.h"

#include "model/pass.h"

namespace volley::model {
namespace {

class ShortConvBlock final : public PlacedBlock<ShortConv> {
 public:
  using PlacedBlock::PlacedBlock;
  static Result<std::unique_ptr<MixerBlock>> load(WeightLoader& loader, const ShortConv& spec, const BlockSetup& setup);

  const ops::LinearWeight& input_weight() const override { return in_; }
  void plan(Pass& /*pass*/) const override {}
  void run(Pass& pass, const ops::Input& h, const Residual& x) const override;

 private:
  Vector kernel_;
  ops::LinearWeight in_, out_;
};

Result<std::unique_ptr<MixerBlock>> ShortConvBlock::load(WeightLoader& loader, const ShortConv& spec,
                                                         const BlockSetup& setup) {
  auto block = std::make_unique<ShortConvBlock>(spec, setup);
  VOLLEY_ASSIGN(block->kernel_, loader.vector(setup.prefix + "conv_kernel"));
  VOLLEY_ASSIGN(block->in_, loader.linear(setup.prefix + "conv_in"));
  VOLLEY_ASSIGN(block->out_, loader.linear(setup.prefix + "conv_out"));
  return std::unique_ptr<MixerBlock>(std::move(block));
}

void ShortConvBlock::run(Pass& pass, const ops::Input& h, const Residual& x) const {
  const int64_t rows = pass.rows.rows;
  ArenaScope scope(pass.scratch);
  const TensorView y = pass.scratch.take(setup_.numerics.activation, {rows, spec_.channels});
  {
    ArenaScope conv_scope(pass.scratch);
    ops::ShortConv conv;
    conv.in = pass.scratch.take(DType::kF32, {rows, in_.n});
    conv.kernel = kernel_.view;
    conv.kv = pass.kv[setup_.kv_layer];
    conv.y = y;
    ops::linear(pass.stream, in_, h, conv.in, {}, pass.scratch);
    ops::short_conv(pass.stream, pass.rows, pass.rows.views[ops::kWindowView], conv);
  }
  x.add(pass, out_, y);
}

}  // namespace

template <>
Result<std::unique_ptr<MixerBlock>> load_block(WeightLoader& loader, const ShortConv& spec, const BlockSetup& setup) {
  return ShortConvBlock::load(loader, spec, setup);
}

}  // namespace volley::model
