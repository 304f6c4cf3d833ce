// The kernels of this folder. Private to it; arguments are checked in block_conv.cc.
#pragma once

#include "ops/block_conv/block_conv.h"
#include "ops/kernels.h"

namespace volley::ops {

struct BlockConvArgs {
  BlockConvShape shape;
  const float* base = nullptr;          // the side's base: [taps, channels]
  const float* coefficients = nullptr;  // the first row's coefficients of the side: [taps, channels / group]
  int64_t stride = 0;                   // from one row's coefficients to the next one's
  int32_t block_rows = 0;
  const float* x = nullptr;
  int64_t rows = 0, channels = 0;
};

struct BlockConvKernels {
  // y: bf16 or fp32, [rows, channels]; adds: y is fp32 and is added to.
  void (*convolve)(Stream& stream, const BlockConvArgs& args, TensorView y, bool adds);
  // The convolution and the norm in one kernel, with the bits of several. Returns false if no kernel fits the shape.
  // args.x: the convolution's input; of the first convolution, the values before the norm.
  bool (*convolve_normed)(Stream& stream, const BlockConvArgs& args, const NormWeight& norm, const Input& y,
                          TensorView zeroed);
  bool (*add_and_norm)(Stream& stream, const BlockConvArgs& args, TensorView y, const NormWeight& norm,
                       const Input& normed);

  static const BlockConvKernels kCpu, kCuda;
};

}  // namespace volley::ops
