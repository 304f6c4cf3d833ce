// The kernels of this folder. Private to it; arguments are checked in chain.cc.
#pragma once

#include "ops/chain/chain.h"
#include "ops/kernels.h"

namespace volley::ops {

struct ChainKernels {
  void (*fill_chain_rows)(Stream& stream, const Step& step, int32_t j, const TokenId* previous, const Rows& rows,
                          const PassChoices& choices);
  void (*put_chain_drafts)(Stream& stream, const Step& step, int32_t j, const TokenId* chosen, const float* probability,
                           TokenId* tokens, float* confidence);
  void (*take_previous)(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry, TensorView out);
  void (*carry_last)(Stream& stream, const Rows& rows, TensorView hidden, const HiddenCarry& carry);

  static const ChainKernels kCpu, kCuda;
};

}  // namespace volley::ops
