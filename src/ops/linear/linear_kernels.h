// The kernels of this folder. Private to it; arguments are checked in linear.cc.
#pragma once

#include "ops/kernels.h"
#include "ops/linear/linear.h"

namespace volley::ops {

struct LinearKernels {
  Result<LinearWeight> (*pack_linear)(Device& device, std::span<const WeightRows> parts, int64_t k,
                                      const WeightFormat& format, LinearLayout layout);
  int64_t (*packed_bytes)(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout);
  void (*linear)(Stream& stream, const LinearWeight& w, const Input& x, TensorView y, const End& end);
  // As linear_takes_fp8(), linear_summarises() and linear_sends(); null where the device cannot do that.
  bool (*takes_fp8)(const GpuInfo& gpu);
  bool (*summarises)(const GpuInfo& gpu, const LinearWeight& w, DType activation);
  bool (*sends)(const GpuInfo& gpu, const LinearWeight& w, DType activation, int64_t rows);

  static const LinearKernels kCpu, kCuda;
};

// kInvalidArgument for parts of a type that cannot be packed as `format`, kUnimplemented for a format that is only
// read.
Status check_parts(std::span<const WeightRows> parts, const WeightFormat& format);

}  // namespace volley::ops
