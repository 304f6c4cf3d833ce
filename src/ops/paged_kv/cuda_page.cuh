// The layout of a page on CUDA: private to the kernels of paged_kv (which write pages) and attention (which read them).
//
// A layer's block in a page is, for each KV head, K and then V of all its positions, unless V lies in K.
//   bf16, head_dim 64, 128, 256, 320, 512 or 576 (swizzled): groups of 8 positions; in a group, a block of 1024 bytes
//   for each 64 elements; in a block, 128 bytes a position, whose 16-byte piece c lies at place c ^ (position % 8). A
//   copy of consecutive bytes into shared memory is then what ldmatrix reads without bank conflicts, and what wgmma
//   knows as the 128-byte swizzle. e4m3, the same sizes: a byte for each bf16 element, in the same order. So widening
//   is linear. other dtypes and sizes: [position][head_dim].
#pragma once

#include <cstdint>

#include "ops/paged_kv/paged_kv.h"

namespace volley::ops {

__host__ __device__ inline bool kv_is_swizzled(DType dtype, int head_dim) {
  return dtype != DType::kF32 && (head_dim == 64 || head_dim == 128 || head_dim == 256 || head_dim == 320 ||
                                  head_dim == 512 || head_dim == 576);
}

__host__ __device__ inline int kv_element_size(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kF8E4M3 ? 1 : 2;
}

// In bf16: from the 16-byte piece 0 of K of a head's first position in a page to piece `piece` of position `in_page`.
__host__ __device__ inline int64_t kv_swizzled_bytes(int head_dim, int in_page, int piece) {
  const int in_group = in_page % 8;
  return int64_t{in_page / 8} * 16 * head_dim + piece / 8 * 1024 + in_group * 128 + ((piece % 8) ^ in_group) * 16;
}

// The page table of a view.
struct SlotPages {
  const int32_t* table;  // [slots][max_pages]
  int slots, max_pages;

  static SlotPages of(const RowView& view) {
    return {view.page_table.as<int32_t>(), static_cast<int>(view.page_table.dim(0)),
            static_cast<int>(view.page_table.dim(1))};
  }
  __device__ const int32_t* operator[](int slot) const { return table + static_cast<int64_t>(slot) * max_pages; }
};

// Bytes of K (and of V) of one head in a page.
__host__ __device__ inline int64_t kv_head_bytes(int page_size, int head_dim, DType dtype) {
  return int64_t{page_size} * head_dim * kv_element_size(dtype);
}

// Where element `element` of a position lies, in bytes from the layer's block.
__host__ __device__ inline int64_t kv_element_bytes(const KvLayer& kv, int head, bool is_v, int in_page, int element) {
  const int64_t from = (int64_t{head} * 2 + is_v) * kv_head_bytes(kv.page_size, kv.head_dim, kv.dtype);
  const int size = kv_element_size(kv.dtype);
  if (kv_is_swizzled(kv.dtype, kv.head_dim)) {
    return from + kv_swizzled_bytes(kv.head_dim, in_page, element / 8) * size / 2 + element % 8 * size;
  }
  return from + (int64_t{in_page} * kv.head_dim + element) * size;
}

}  // namespace volley::ops
