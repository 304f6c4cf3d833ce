// How experts of codes are packed on CUDA: panels of ops/linear's blocks of codes (linear_cuda_codes.h,
// linear_cuda_bytes.h), whose rows stand as grouped_linear_cuda.h says. Private to this folder.
#pragma once

#include <span>

#include "ops/grouped_linear/grouped_linear_cuda.h"
#include "ops/linear/cuda/linear_cuda_bytes.h"
#include "ops/linear/cuda/linear_cuda_codes.h"

namespace volley::ops {

inline int64_t grouped_codes_expert_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  const int64_t blocks = (k + kBlockK - 1) / kBlockK, panels = grouped_cuda_panels(n, layout);
  if (is_byte_codes(format)) return panels * byte_block_at(blocks, pairs_share_scales(format));
  return panels * blocks * 2 * code_half_bytes(format);
}

// As pack_experts(), of a `w` that lacks its memory alone. On any device: what becomes packed is made on the host.
Result<ExpertWeights> pack_code_experts(Device& device, std::span<const WeightRows> parts, ExpertWeights w);

}  // namespace volley::ops
