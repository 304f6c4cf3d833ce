// Protects, on a GPU, beside what paged_kv_test.cc does: codes, many rows, and that a row lands at its position and
// nowhere else.
#include <cuda_runtime.h>

#include <bit>

#include "ops/paged_kv/cache_for_test.h"
#include "ops/paged_kv/cuda_page.cuh"

namespace volley::ops {
namespace {

// Between each code and the next: the middle, and its neighbours.
TEST(WriteQkvCuda, CodesRoundAsOnTheCpu) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (int head_dim : {64, 80}) {
    TestCache cache(device, {.dtype = DType::kF8E4M3, .head_dim = head_dim, .heads = 0, .norm = false},
                    kv_element_bytes);
    for (uint8_t code = 0; code < 0x7e; ++code) {
      const float low = to_float(Float8E4M3{code}), high = to_float(Float8E4M3{static_cast<uint8_t>(code + 1)});
      const float middle = (low + high) / 2;
      for (const float value : {std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
        const float x = code % 2 == 0 ? value : -value;
        cache.fill_input(x);
        cache.write({{0, 0, 1}});
        ASSERT_EQ(cache.stored(true, 0, 0, 1, 3), to_float(to_float8_e4m3(x))) << x;
      }
    }
  }
}

// So many rows that a warp takes several heads one after another, against pieces for which it does not; with numbers of
// heads that neither divides. (Heads of 64: a warp holds several in any case.)
TEST(WriteQkvCuda, ManyRowsGiveTheBitsOfFew) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  constexpr int kRows = 180, kPiece = 60;
  for (const auto& [dtype, head_dim] :
       {std::pair{DType::kBF16, 128}, {DType::kBF16, 256}, {DType::kBF16, 512}, {DType::kF8E4M3, 128}}) {
    const CacheConfig config{.dtype = dtype, .head_dim = head_dim, .heads = 29, .kv_heads = 7};
    TestCache whole(device, config, kv_element_bytes), cut(device, config, kv_element_bytes);
    const auto q = whole.write({{0, 0, kRows}, {1, 0, kRows}, {2, 0, kRows}});
    const size_t piece_bytes = q.size() / (kSlots * kRows) * kPiece;
    for (int i = 0; i < kSlots * kRows / kPiece; ++i) {
      const int slot = i / (kRows / kPiece), from = i % (kRows / kPiece) * kPiece;
      const auto part = cut.write({{slot, from, from + kPiece}});
      EXPECT_EQ(std::memcmp(part.data(), q.data() + i * piece_bytes, piece_bytes), 0) << head_dim << " piece " << i;
    }
    for (int slot = 0; slot < kSlots; ++slot) EXPECT_EQ(cut.dump(slot, kRows), whole.dump(slot, kRows)) << head_dim;
  }
}

// Every element of the rows' positions is written, and nothing else.
TEST(WriteQkvCuda, TouchesItsPositionsOnly) {
  VOLLEY_CUDA_DEVICE_OR_SKIP(device);
  for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (int head_dim : {64, 80, 128, 256, 512}) {
      TestCache cache(device, {.dtype = dtype, .head_dim = head_dim, .heads = 0, .norm = false}, kv_element_bytes);
      cache.fill_input(1.0f);
      cache.write({{0, 3, 21}, {2, 64, 65}});
      EXPECT_EQ(cache.touched(), int64_t{19} * 2 * 2 * head_dim * static_cast<int64_t>(dtype_size(dtype)));
    }
  }
}

}  // namespace
}  // namespace volley::ops
