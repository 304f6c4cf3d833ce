// Warpgroup matrix products: D[64, N] += A[64, 16] B[N, 16]^T, bf16 operands in shared memory, fp32 sums in registers;
// or e4m3 operands, of which a product takes 32 along k instead of 16. The matrix unit adds bf16 products with the
// precision of fp32, but e4m3 products with some 13 bits behind the point of the largest.
//
// Both operands lie in rows of 128 bytes (64 or 128 elements of k) with the 128-byte swizzle: the 16-byte piece c of
// row r is at r * 128 + ((c ^ (r % 8)) * 16), from an address that is a multiple of 1024. A product takes 32 bytes.
//
// Thread t of the warpgroup holds of D: d[4 j + 2 i + e] = D[16 (t / 32) + (t % 32) / 4 + 8 i, 8 j + 2 (t % 4) + e].
#pragma once

#include <cstdint>

#include "device/cuda/hopper.cuh"

namespace volley::hopper {

// Describes an operand to the matrix unit: start address, 1024 bytes from one group of 8 rows to the next, swizzle. The
// address is in the low word, in units of 16 bytes: adding 2 moves on by 32 bytes of k.
__device__ inline uint32_t descriptor_low(uint32_t address) {
  return 1u << 16 | ((address & 0x3ffff) >> 4);
}
__device__ inline uint64_t matrix_descriptor(uint32_t low) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupStride | low;
}
__device__ inline uint64_t matrix_descriptor(const void* p) {
  return matrix_descriptor(descriptor_low(shared_address(p)));
}

__device__ inline void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups of products are unfinished.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps reads and writes of sums by other instructions in place: after a wait, or before products begin.
template <int N>
__device__ inline void sums_settle(float (&d)[N]) {
#pragma unroll
  for (float& sum : d) asm volatile("" : "+f"(sum)::"memory");
}

// The types that the matrix unit multiplies, 32 bytes of k at a time.
enum class Operand {
  kBF16,
  kE4M3,
  kBF16Columns,  // bf16, B as [16, N] in rows of 64 of N: 128 bytes with the same swizzle
};

// One instruction, N = 8, 16, 32, 64, 96, 128, 160, 192, 224 or 256.
template <int N>
struct Product;

#define VOLLEY_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VOLLEY_D16(i) VOLLEY_D4(i), VOLLEY_D4(i + 4), VOLLEY_D4(i + 8), VOLLEY_D4(i + 12)
// SUMS: the operand numbers of the sums; A and B: those of the descriptors; ADDS: that of the flag whether D is added;
// then the sums themselves.
#define VOLLEY_PRODUCT(N, SUMS, A, B, ADDS, ...)                                                                      \
  template <>                                                                                                         \
  struct Product<N> {                                                                                                 \
    template <Operand kOperand, bool kAdds>                                                                           \
    __device__ static void run(float* d, uint64_t a, uint64_t b) {                                                    \
      if constexpr (kOperand == Operand::kBF16) {                                                                     \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, %" #A ", %" #B ", %" #ADDS \
                     ", 1, 1, 0, 0;"                                                                                  \
                     : __VA_ARGS__                                                                                    \
                     : "l"(a), "l"(b), "n"(kAdds ? 1 : 0));                                                           \
      } else if constexpr (kOperand == Operand::kBF16Columns) {                                                       \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, %" #A ", %" #B ", %" #ADDS \
                     ", 1, 1, 0, 1;"                                                                                  \
                     : __VA_ARGS__                                                                                    \
                     : "l"(a), "l"(b), "n"(kAdds ? 1 : 0));                                                           \
      } else {                                                                                                        \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" SUMS "}, %" #A ", %" #B ", %" #ADDS \
                     ", 1, 1;"                                                                                        \
                     : __VA_ARGS__                                                                                    \
                     : "l"(a), "l"(b), "n"(kAdds ? 1 : 0));                                                           \
      }                                                                                                               \
    }                                                                                                                 \
  };

#define VOLLEY_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define VOLLEY_SUMS_16 VOLLEY_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define VOLLEY_SUMS_32 VOLLEY_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VOLLEY_SUMS_48 VOLLEY_SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define VOLLEY_SUMS_64 VOLLEY_SUMS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VOLLEY_SUMS_80 VOLLEY_SUMS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define VOLLEY_SUMS_96 VOLLEY_SUMS_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define VOLLEY_SUMS_112 \
  VOLLEY_SUMS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define VOLLEY_SUMS_128 \
  VOLLEY_SUMS_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

VOLLEY_PRODUCT(8, "%0, %1, %2, %3", 4, 5, 6, VOLLEY_D4(0))
VOLLEY_PRODUCT(16, VOLLEY_SUMS_8, 8, 9, 10, VOLLEY_D4(0), VOLLEY_D4(4))
VOLLEY_PRODUCT(32, VOLLEY_SUMS_16, 16, 17, 18, VOLLEY_D16(0))
VOLLEY_PRODUCT(64, VOLLEY_SUMS_32, 32, 33, 34, VOLLEY_D16(0), VOLLEY_D16(16))
VOLLEY_PRODUCT(96, VOLLEY_SUMS_48, 48, 49, 50, VOLLEY_D16(0), VOLLEY_D16(16), VOLLEY_D16(32))
VOLLEY_PRODUCT(128, VOLLEY_SUMS_64, 64, 65, 66, VOLLEY_D16(0), VOLLEY_D16(16), VOLLEY_D16(32), VOLLEY_D16(48))
VOLLEY_PRODUCT(160, VOLLEY_SUMS_80, 80, 81, 82, VOLLEY_D16(0), VOLLEY_D16(16), VOLLEY_D16(32), VOLLEY_D16(48),
               VOLLEY_D16(64))
VOLLEY_PRODUCT(192, VOLLEY_SUMS_96, 96, 97, 98, VOLLEY_D16(0), VOLLEY_D16(16), VOLLEY_D16(32), VOLLEY_D16(48),
               VOLLEY_D16(64), VOLLEY_D16(80))
VOLLEY_PRODUCT(224, VOLLEY_SUMS_112, 112, 113, 114, VOLLEY_D16(0), VOLLEY_D16(16), VOLLEY_D16(32), VOLLEY_D16(48),
               VOLLEY_D16(64), VOLLEY_D16(80), VOLLEY_D16(96))
VOLLEY_PRODUCT(256, VOLLEY_SUMS_128, 128, 129, 130, VOLLEY_D16(0), VOLLEY_D16(16), VOLLEY_D16(32), VOLLEY_D16(48),
               VOLLEY_D16(64), VOLLEY_D16(80), VOLLEY_D16(96), VOLLEY_D16(112))

#undef VOLLEY_SUMS_8
#undef VOLLEY_SUMS_16
#undef VOLLEY_SUMS_32
#undef VOLLEY_SUMS_48
#undef VOLLEY_SUMS_64
#undef VOLLEY_SUMS_80
#undef VOLLEY_SUMS_96
#undef VOLLEY_SUMS_112
#undef VOLLEY_SUMS_128
#undef VOLLEY_PRODUCT
#undef VOLLEY_D16
#undef VOLLEY_D4

constexpr int largest_product(int n, int limit) {
  constexpr int kSizes[10] = {256, 224, 192, 160, 128, 96, 64, 32, 16, 8};
  int i = 0;
  while (kSizes[i] > n || kSizes[i] > limit) ++i;
  return kSizes[i];
}

// N any multiple of 8 up to 256, as a few instructions of at most kLimit: the largest first. `b` covers all N rows. A
// kernel that starts with fewer registers than an instruction's sums does not assemble: hence the limit. Without
// adding, the products replace the content of D.
template <int N, int kLimit = 256, Operand kOperand = Operand::kBF16, bool kAdds = true>
__device__ inline void multiply(float* d, uint64_t a, uint64_t b) {
  constexpr int kPiece = largest_product(N, kLimit);
  Product<kPiece>::template run<kOperand, kAdds>(d, a, b);
  if constexpr (N > kPiece) multiply<N - kPiece, kLimit, kOperand, kAdds>(d + kPiece / 2, a, b + kPiece * 128 / 16);
}

}  // namespace volley::hopper
