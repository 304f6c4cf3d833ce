// The instructions of sm_80 and later that the tile kernel of attention is made of beside those of
// linear_cuda_fragments.cuh. Semantics: PTX ISA manual, chapter 9.7.
//
// D[16, 8] += A[16, 16] B[16, 8], bf16 operands, fp32 sums. With r = lane / 4 and c = 2 (lane % 4), a lane holds
//   d = {D[r][c], D[r][c + 1], D[r + 8][c], D[r + 8][c + 1]}
//   a = {A[r][c ..], A[r + 8][c ..], A[r][c + 8 ..], A[r + 8][c + 8 ..]}, b = {B[c ..][r], B[c + 8 ..][r]}: pairs.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/linear/cuda/linear_cuda_fragments.cuh"

namespace volley::ops {

using fragments::copies_commit, fragments::copies_wait, fragments::load_fragments, fragments::multiply16;

// Copies 16 bytes, or writes 16 bytes of zeros and reads nothing.
__device__ inline void copy_or_zero(uint32_t to_shared, const void* from, bool copy) {
  const int bytes = copy ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from), "r"(bytes)
               : "memory");
}

// Four 8 x 8 matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// 2^x; relative error about 2^-22.
__device__ inline float exp2_quick(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to bf16, the first in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float low_bf16(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

}  // namespace volley::ops
