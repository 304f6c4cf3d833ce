// The instructions of sm_80 and later that the portable kernels are made of: asynchronous copies of 16 bytes, loads of
// fragments, and products of a warp, D[16, 8] += A[16, 16] B[8, 16]^T. Semantics: PTX ISA manual, chapter 9.7.
#pragma once

#include <cstdint>

namespace volley::ops::fragments {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes; zeros if `bytes` is 0.
__device__ inline void copy16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void load_fragments(uint32_t (&f)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(address)
               : "memory");
}

__device__ inline void multiply16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Offset of the 16-byte piece c of row r, in rows of 128 bytes.
__device__ inline uint32_t swizzled(int r, int c) {
  return static_cast<uint32_t>(r * 128 + (c ^ (r % 8)) * 16);
}

// 64 columns of bf16 from column `first` on, of the rows of x that row_of() says, to rows of 128 bytes at `to`, by
// kThreads threads. Zeros where x has no such column, and for a row below 0. step: elements from a row to the next.
template <int kRows, int kThreads, typename RowOf>
__device__ __forceinline__ void copy_rows(uint32_t to, const uint8_t* x, int columns, int step, int first, int thread,
                                          const RowOf& row_of) {
#pragma unroll
  for (int i = thread; i < kRows * 8; i += kThreads) {
    const int r = i / 8, piece = i % 8, k = first + piece * 8;
    const int64_t row = row_of(r);
    const bool exists = row >= 0 && k < columns;
    const int64_t at = exists ? (row * step + k) * 2 : 0;
    copy16(to + swizzled(r, piece), x + at, exists ? 16 : 0);
  }
}

// sums[j] += A B^T in two steps, `a` and `next`; B: rows 8 j to 8 j + 7 of those at `rows`, from column 16 k on.
template <int kTiles>
__device__ __forceinline__ void multiply32(float (&sums)[kTiles][4], const uint32_t (&a)[4], const uint32_t (&next)[4],
                                           uint32_t rows, int k) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    uint32_t b[4];  // right sides of both steps
    load_fragments(b, rows + swizzled(j * 8 + lane % 8, k * 2 + lane / 8));
    multiply16(sums[j], a, b[0], b[1]);
    multiply16(sums[j], next, b[2], b[3]);
  }
}

// The same along 64 columns; A: rows `first` to `first` + 15 of those at `left`.
template <int kTiles>
__device__ __forceinline__ void multiply64(float (&sums)[kTiles][4], uint32_t left, int first, uint32_t rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) load_fragments(a[i], left + swizzled(first + lane % 16, (k + i) * 2 + lane / 16));
    multiply32(sums, a[0], a[1], rows, k);
  }
}

}  // namespace volley::ops::fragments
