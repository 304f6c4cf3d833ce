// Products of a warpgroup (sm_90a) in the two forms that attention needs, on operands in the layout of cuda_page.cuh.
// Lanes hold sums and the left side as in warp_products.cuh: d[j] is columns 8 j … of the warp's 16 rows.
#pragma once

#include <cstdint>

#include "device/cuda/products.cuh"

namespace volley::ops {

// Describes shared memory with the 128-byte swizzle to the matrix unit. Rows of 8 are `group_bytes` apart;
// `block_bytes` is from one block of 64 contiguous elements to the next, and matters where those are the columns of the
// product.
__device__ inline uint64_t swizzled_operand(uint32_t address, uint32_t group_bytes, uint32_t block_bytes) {
  return uint64_t{1} << 62 | uint64_t{group_bytes >> 4} << 32 | uint64_t{block_bytes >> 4} << 16 |
         (address & 0x3ffff) >> 4;
}

#define VOLLEY_D(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define VOLLEY_D8(j)                                                                                                 \
  VOLLEY_D(j), VOLLEY_D(j + 1), VOLLEY_D(j + 2), VOLLEY_D(j + 3), VOLLEY_D(j + 4), VOLLEY_D(j + 5), VOLLEY_D(j + 6), \
      VOLLEY_D(j + 7)

// D[64, 64] = or += A[64, 16] B[64, 16]^T, both in shared memory.
__device__ inline void multiply_rows(float (&d)[8][4], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, add, 1, 1, 0, 0;\n"
      "}\n"
      : VOLLEY_D8(0)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// D[64, N] += A[64, 16] B[16, N]: A in registers, B's rows of N elements in shared memory.
__device__ inline void multiply_columns(float (&d)[8][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
      : VOLLEY_D8(0)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}
__device__ inline void multiply_columns(float (&d)[16][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
      : VOLLEY_D8(0), VOLLEY_D8(8)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b));
}

#undef VOLLEY_D8
#undef VOLLEY_D

// After the wait: keeps the compiler from reading sums any earlier.
template <int N>
__device__ inline void settle(float (&d)[N][4]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
  }
}

// Before products begin: keeps the compiler from making their left side any later.
template <int N>
__device__ inline void settle(uint32_t (&a)[N][2]) {
#pragma unroll
  for (int j = 0; j < N; ++j) asm volatile("" : "+r"(a[j][0]), "+r"(a[j][1])::"memory");
}

// Makes this thread's writes to shared memory visible to the matrix unit and the copy engine, after a barrier.
__device__ inline void share_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace volley::ops
