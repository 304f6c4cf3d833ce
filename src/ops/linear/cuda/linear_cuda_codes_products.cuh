// D[64, N] += A[64, 16] B[N, 16]^T of a warpgroup (sm_90a) as device/cuda/products.cuh has it, with A in registers:
// thread t holds of rows 16 (t / 32) + (t % 32) / 4 and that plus 8 the columns 2 (t % 4) and the next (a[0], a[1]) and
// those 8 further on (a[2], a[3]).
#pragma once

#include <cstdint>

namespace volley::ops {

template <int N>
struct RegisterProduct;

#define VOLLEY_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VOLLEY_D16(i) VOLLEY_D4(i), VOLLEY_D4(i + 4), VOLLEY_D4(i + 8), VOLLEY_D4(i + 12)
#define VOLLEY_D64(i) VOLLEY_D16(i), VOLLEY_D16(i + 16), VOLLEY_D16(i + 32), VOLLEY_D16(i + 48)
// SUMS: their numbers among the operands; A0 to A3 and B: the numbers of the others; then the sums themselves.
#define VOLLEY_PRODUCT(N, SUMS, A0, A1, A2, A3, B, ...)                                                              \
  template <>                                                                                                        \
  struct RegisterProduct<N> {                                                                                        \
    __device__ static void run(float* d, const uint32_t (&a)[4], uint64_t b) {                                       \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" SUMS "}, {%" #A0 ", %" #A1 ", %" #A2 \
                   ", %" #A3 "}, %" #B ", 1, 1, 1, 0;"                                                               \
                   : __VA_ARGS__                                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }                                                                                                                \
  };

#define VOLLEY_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define VOLLEY_SUMS_16 VOLLEY_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define VOLLEY_SUMS_32 VOLLEY_SUMS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VOLLEY_SUMS_64                                                                                \
  VOLLEY_SUMS_32                                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
  "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VOLLEY_SUMS_128                                                                               \
  VOLLEY_SUMS_64                                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, "  \
  "%118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

VOLLEY_PRODUCT(8, "%0, %1, %2, %3", 4, 5, 6, 7, 8, VOLLEY_D4(0))
VOLLEY_PRODUCT(16, VOLLEY_SUMS_8, 8, 9, 10, 11, 12, VOLLEY_D4(0), VOLLEY_D4(4))
VOLLEY_PRODUCT(32, VOLLEY_SUMS_16, 16, 17, 18, 19, 20, VOLLEY_D16(0))
VOLLEY_PRODUCT(64, VOLLEY_SUMS_32, 32, 33, 34, 35, 36, VOLLEY_D16(0), VOLLEY_D16(16))
VOLLEY_PRODUCT(128, VOLLEY_SUMS_64, 64, 65, 66, 67, 68, VOLLEY_D64(0))
VOLLEY_PRODUCT(256, VOLLEY_SUMS_128, 128, 129, 130, 131, 132, VOLLEY_D64(0), VOLLEY_D64(64))

#undef VOLLEY_SUMS_8
#undef VOLLEY_SUMS_16
#undef VOLLEY_SUMS_32
#undef VOLLEY_SUMS_64
#undef VOLLEY_SUMS_128
#undef VOLLEY_PRODUCT
#undef VOLLEY_D64
#undef VOLLEY_D16
#undef VOLLEY_D4

}  // namespace volley::ops
