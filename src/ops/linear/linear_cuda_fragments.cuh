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
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Where the 16-byte piece c of row r lies in rows of 128 bytes.
__device__ inline uint32_t swizzled(int r, int c) {
  return static_cast<uint32_t>(r * 128 + (c ^ (r % 8)) * 16);
}

}  // namespace volley::ops::fragments
