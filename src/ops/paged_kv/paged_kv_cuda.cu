#include <cuda_bf16.h>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/paged_kv/cuda_page.cuh"
#include "ops/paged_kv/paged_kv_cuda.h"

namespace volley::ops {
namespace {

constexpr int kWarps = 4;
constexpr int kManyRows = 64, kManyHeads = 4;  // from so many rows on a warp takes so many heads
constexpr int kMaxPairs = 4;                   // of elements that rotate together, a lane: head_dim / 64 at most

struct WriteArgs {
  const float* qkv;
  int rows, heads, layers;
  int64_t layer_bytes;           // from a layer's block in a page to the next
  const float *q_norm, *k_norm;  // may be null
  float eps;
  const float *cos, *sin;
  int rope_limit;
  const int32_t *rope_positions, *cache_positions, *row_slots, *page_table;
  int slots, max_pages;
  bool rows_ready;
  KvLayer kv;
  void* q_out;
  DType q_dtype;
};

// Which of a head's pairs (i, i + head_dim / 2) a lane holds: kPairs neighbours where that divides the head evenly,
// every 32nd otherwise (kPairs = 0).
template <int kPairs>
struct Pairs {
  static constexpr int kCount = kPairs > 0 ? kPairs : kMaxPairs;
  int first, half;
  __device__ explicit Pairs(int head_dim)
      : first(kPairs > 0 ? threadIdx.x % 32 * kPairs : threadIdx.x % 32), half(head_dim / 2) {}
  __device__ int at(int i) const { return kPairs > 0 ? first + i : first + 32 * i; }
  __device__ bool exists(int i) const { return kPairs > 0 || at(i) < half; }

  __device__ void load(const float* from, float (&to)[kCount]) const {
    if constexpr (kPairs == 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + first);
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if constexpr (kPairs == 2) {
      const float2 v = *reinterpret_cast<const float2*>(from + first);
      to[0] = v.x, to[1] = v.y;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = exists(i) ? from[at(i)] : 0.0f;
    }
  }

  // to(element) is the address of an element; neighbours of a lane are neighbours in memory.
  template <typename Address>
  __device__ void store(const float (&v)[kCount], int offset, DType dtype, const Address& to) const {
    if (kPairs > 1 && dtype == DType::kBF16) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        *static_cast<__nv_bfloat162*>(to(offset + at(i))) = __floats2bfloat162_rn(v[i], v[i + 1]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (exists(i)) cuda::store_float(to(offset + at(i)), dtype, 0, v[i]);
    }
  }
};

__device__ uint8_t* position_block(const WriteArgs& args, int slot, int position) {
  const int index = position / args.kv.page_size;
  if (slot < 0 || slot >= args.slots || position < 0 || index >= args.max_pages) __trap();
  const int page = args.page_table[static_cast<int64_t>(slot) * args.max_pages + index];
  if (page < 0) __trap();
  return reinterpret_cast<uint8_t*>(args.kv.base) + page * args.kv.page_stride;
}

// RMSNorm of a head. A warp's sum: the lane's own pairs in order, then lanes as a tree.
template <int kPairs>
__device__ void normalise(const Pairs<kPairs>& pairs, int d, float eps, const float (&weight_a)[Pairs<kPairs>::kCount],
                          const float (&weight_b)[Pairs<kPairs>::kCount], float (&a)[Pairs<kPairs>::kCount],
                          float (&b)[Pairs<kPairs>::kCount]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < pairs.kCount; ++i) squares = fmaf(b[i], b[i], fmaf(a[i], a[i], squares));
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) squares += __shfl_xor_sync(0xffffffff, squares, lane);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(d) + eps);
#pragma unroll
  for (int i = 0; i < pairs.kCount; ++i) {
    a[i] = a[i] * scale * weight_a[i];
    b[i] = b[i] * scale * weight_b[i];
  }
}

// Where a row's K and V go, and the angles of its position.
template <int kPairs>
struct RowPlace {
  int in_page;
  uint8_t* block;
  float cos[Pairs<kPairs>::kCount], sin[Pairs<kPairs>::kCount];

  __device__ void read(const WriteArgs& args, const Pairs<kPairs>& pairs, int row, bool is_q, bool is_v) {
    if (!is_q) {
      const int position = args.cache_positions[row];
      block = position_block(args, args.row_slots[row], position);
      in_page = position % args.kv.page_size;
    }
    if (is_v) return;
    const int position = args.rope_positions[row];
    if (position < 0 || position >= args.rope_limit) __trap();
    pairs.load(args.cos + static_cast<int64_t>(position) * pairs.half, cos);
    pairs.load(args.sin + static_cast<int64_t>(position) * pairs.half, sin);
  }
};

// Heads of q, K or V of a row by a warp, kHeads at most, which it reads all at once. What it computes depends on the
// row and head_dim alone.
template <int kPairs, int kHeads>
__global__ void __launch_bounds__(kWarps * 32) write_kernel(WriteArgs args) {
  const int kv_heads = args.kv.kv_heads;
  const int q_groups = (args.heads + kHeads - 1) / kHeads, kv_groups = (kv_heads + kHeads - 1) / kHeads;
  const int groups = q_groups + args.layers * 2 * kv_groups;
  const int warp = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int row = warp / groups, group = warp % groups;
  if (row >= args.rows) return;  // one that has ended lets dependents start, too
  const bool is_q = group < q_groups;
  const int layer = is_q || args.layers == 1 ? 0 : (group - q_groups) / (2 * kv_groups);
  const int in_layer = group - q_groups - layer * 2 * kv_groups;
  const bool is_v = !is_q && in_layer >= kv_groups;
  const int first = (is_q ? group : is_v ? in_layer - kv_groups : in_layer) * kHeads;  // of its kind
  const int heads = min(kHeads, (is_q ? args.heads : kv_heads) - first);
  const int d = args.kv.head_dim;
  const Pairs<kPairs> pairs(d);
  const float* norm = is_q ? args.q_norm : is_v || args.k_norm == nullptr ? nullptr : args.k_norm + layer * d;
  float a[kHeads][pairs.kCount], b[kHeads][pairs.kCount];
  float weight_a[pairs.kCount] = {}, weight_b[pairs.kCount] = {};
  if (norm != nullptr) {  // weights depend on no other kernel
    pairs.load(norm, weight_a);
    pairs.load(norm + pairs.half, weight_b);
  }
  RowPlace<kPairs> place;
  if (args.rows_ready) place.read(args, pairs, row, is_q, is_v);
  cuda::wait_for_predecessors();
  // Not before: attention, and rows_ready, rely on it that what is older than this kernel is there when they start.
  cuda::launch_dependents();
  const int all_heads = args.heads + args.layers * 2 * kv_heads;
  const int head = first + (is_q ? 0 : args.heads + layer * 2 * kv_heads + (is_v ? kv_heads : 0));
  const float* x = args.qkv + (static_cast<int64_t>(row) * all_heads + head) * d;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= heads) break;
    pairs.load(x + h * d, a[h]);
    pairs.load(x + h * d + pairs.half, b[h]);
  }
  if (!args.rows_ready) place.read(args, pairs, row, is_q, is_v);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= heads) break;
    if (norm != nullptr) normalise(pairs, d, args.eps, weight_a, weight_b, a[h], b[h]);
    if (!is_v) {
#pragma unroll
      for (int i = 0; i < pairs.kCount; ++i) {
        const float before = a[h][i];
        a[h][i] = fmaf(-b[h][i], place.sin[i], before * place.cos[i]);
        b[h][i] = fmaf(before, place.sin[i], b[h][i] * place.cos[i]);
      }
    }
    const auto store = [&](DType dtype, const auto& to) {
      pairs.store(a[h], 0, dtype, to);
      pairs.store(b[h], pairs.half, dtype, to);
    };
    if (is_q) {
      const int64_t from = (static_cast<int64_t>(row) * args.heads + first + h) * d;
      const int size = args.q_dtype == DType::kBF16 ? 2 : 4;
      store(args.q_dtype, [&](int element) {
        return static_cast<void*>(static_cast<uint8_t*>(args.q_out) + (from + element) * size);
      });
    } else {
      store(args.kv.dtype, [&](int element) {
        return static_cast<void*>(place.block + layer * args.layer_bytes +
                                  kv_element_bytes(args.kv, first + h, is_v, place.in_page, element));
      });
    }
  }
}

const float* floats(const TensorView& t) {
  return t.data == nullptr ? nullptr : t.as<float>();
}

template <int kPairs, int kHeads>
void launch_write(Stream& stream, const WriteArgs& args) {
  const int kv_groups = (args.kv.kv_heads + kHeads - 1) / kHeads;
  const int groups = (args.heads + kHeads - 1) / kHeads + args.layers * 2 * kv_groups;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>((int64_t{args.rows} * groups + kWarps - 1) / kWarps));
  how.block = dim3(kWarps * 32);
  how.early = true;
  cuda::launch(write_kernel<kPairs, kHeads>, how, stream, args);
}

// Many rows: so few blocks that all run at once, and so many reads of each that it matters little how long one takes.
template <int kPairs>
void launch_write(Stream& stream, const WriteArgs& args) {
  if (args.rows < kManyRows) {
    launch_write<kPairs, 1>(stream, args);
  } else {
    launch_write<kPairs, kManyHeads>(stream, args);
  }
}

}  // namespace

void write_qkv_cuda(Stream& stream, const QkvWrite& args) {
  const int64_t rows = args.qkv.dim(0);
  if (rows == 0) return;
  WriteArgs a;
  a.qkv = args.qkv.as<float>();
  a.rows = static_cast<int>(rows);
  a.heads = args.heads;
  a.layers = args.layers;
  a.layer_bytes = kv_layer_bytes(args.kv.page_size, args.kv.kv_heads, args.kv.head_dim, args.kv.dtype);
  a.q_norm = floats(args.q_norm);
  a.k_norm = floats(args.k_norm);
  a.eps = args.eps;
  a.cos = floats(args.rope.cos);
  a.sin = floats(args.rope.sin);
  a.rope_limit = static_cast<int>(args.rope.cos.dim(0));
  a.rope_positions = args.rope_positions.as<int32_t>();
  a.cache_positions = args.cache_positions.as<int32_t>();
  a.row_slots = args.row_slots.as<int32_t>();
  a.page_table = args.page_table.as<int32_t>();
  a.slots = static_cast<int>(args.page_table.dim(0));
  a.max_pages = static_cast<int>(args.page_table.dim(1));
  a.rows_ready = args.rows_ready;
  a.kv = args.kv;
  a.q_out = args.q_out.data;
  a.q_dtype = args.q_out.dtype;
  switch (args.kv.head_dim) {
    case 64:
      return launch_write<1>(stream, a);
    case 128:
      return launch_write<2>(stream, a);
    case 256:
      return launch_write<4>(stream, a);
    default:
      return launch_write<0, 1>(stream, a);
  }
}

}  // namespace volley::ops
