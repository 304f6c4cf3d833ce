#include <cuda_bf16.h>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/paged_kv/cuda_page.cuh"
#include "ops/paged_kv/paged_kv_cuda.h"

namespace volley::ops {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPairs = 4;  // of elements that rotate together, a lane: head_dim / 64 at most

struct WriteArgs {
  const float* qkv;
  int rows, heads;
  const float *q_norm, *k_norm;  // may be null
  float eps;
  const float *cos, *sin;
  int rope_limit;
  const int32_t *rope_positions, *cache_positions, *row_slots, *page_table;
  int slots, max_pages;
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

__device__ uint8_t* position_block(const WriteArgs& args, int row) {
  const int slot = args.row_slots[row], position = args.cache_positions[row];
  const int index = position / args.kv.page_size;
  if (slot < 0 || slot >= args.slots || position < 0 || index >= args.max_pages) __trap();
  const int page = args.page_table[static_cast<int64_t>(slot) * args.max_pages + index];
  if (page < 0) __trap();
  return reinterpret_cast<uint8_t*>(args.kv.base) + page * args.kv.page_stride;
}

// A warp a head (of q, K or V) of a row. What it computes depends on the row and head_dim alone.
template <int kPairs>
__global__ void __launch_bounds__(kWarps * 32) write_kernel(WriteArgs args) {
  const int all_heads = args.heads + 2 * args.kv.kv_heads;
  const int warp = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int row = warp / all_heads, head = warp % all_heads;
  if (row >= args.rows) return;  // one that has ended lets dependents start, too
  const int d = args.kv.head_dim;
  const Pairs<kPairs> pairs(d);
  const bool is_q = head < args.heads, is_v = head >= args.heads + args.kv.kv_heads;
  const float* norm = is_q ? args.q_norm : is_v ? nullptr : args.k_norm;
  float a[pairs.kCount], b[pairs.kCount], weight_a[pairs.kCount] = {}, weight_b[pairs.kCount] = {};
  if (norm != nullptr) {  // weights depend on no other kernel
    pairs.load(norm, weight_a);
    pairs.load(norm + pairs.half, weight_b);
  }
  cuda::wait_for_predecessors();
  // Not before: attention relies on it that what is older than this kernel is there when it starts.
  cuda::launch_dependents();
  const float* x = args.qkv + (static_cast<int64_t>(row) * all_heads + head) * d;
  pairs.load(x, a);
  pairs.load(x + pairs.half, b);
  uint8_t* block = is_q ? nullptr : position_block(args, row);
  if (norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < pairs.kCount; ++i) squares = fmaf(b[i], b[i], fmaf(a[i], a[i], squares));
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) squares += __shfl_xor_sync(0xffffffff, squares, lane);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(d) + args.eps);
#pragma unroll
    for (int i = 0; i < pairs.kCount; ++i) {
      a[i] = a[i] * scale * weight_a[i];
      b[i] = b[i] * scale * weight_b[i];
    }
  }
  if (!is_v) {
    const int position = args.rope_positions[row];
    if (position < 0 || position >= args.rope_limit) __trap();
    float cos[pairs.kCount], sin[pairs.kCount];
    pairs.load(args.cos + static_cast<int64_t>(position) * pairs.half, cos);
    pairs.load(args.sin + static_cast<int64_t>(position) * pairs.half, sin);
#pragma unroll
    for (int i = 0; i < pairs.kCount; ++i) {
      const float before = a[i];
      a[i] = fmaf(-b[i], sin[i], before * cos[i]);
      b[i] = fmaf(before, sin[i], b[i] * cos[i]);
    }
  }
  if (is_q) {
    const int64_t first = (static_cast<int64_t>(row) * args.heads + head) * d;
    const int size = args.q_dtype == DType::kBF16 ? 2 : 4;
    const auto to = [&](int element) {
      return static_cast<void*>(static_cast<uint8_t*>(args.q_out) + (first + element) * size);
    };
    pairs.store(a, 0, args.q_dtype, to);
    pairs.store(b, pairs.half, args.q_dtype, to);
  } else {
    const int in_page = args.cache_positions[row] % args.kv.page_size;
    const int kv_head = is_v ? head - args.heads - args.kv.kv_heads : head - args.heads;
    const auto to = [&](int element) {
      return static_cast<void*>(block + kv_element_bytes(args.kv, kv_head, is_v, in_page, element));
    };
    pairs.store(a, 0, args.kv.dtype, to);
    pairs.store(b, pairs.half, args.kv.dtype, to);
  }
}

const float* floats(const TensorView& t) {
  return t.data == nullptr ? nullptr : t.as<float>();
}

}  // namespace

void write_qkv_cuda(Stream& stream, const QkvWrite& args) {
  const int64_t rows = args.qkv.dim(0);
  if (rows == 0) return;
  WriteArgs a;
  a.qkv = args.qkv.as<float>();
  a.rows = static_cast<int>(rows);
  a.heads = args.heads;
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
  a.kv = args.kv;
  a.q_out = args.q_out.data;
  a.q_dtype = args.q_out.dtype;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>((rows * (args.heads + 2 * args.kv.kv_heads) + kWarps - 1) / kWarps));
  how.block = dim3(kWarps * 32);
  how.early = true;
  switch (args.kv.head_dim) {
    case 64:
      return cuda::launch(write_kernel<1>, how, stream, a);
    case 128:
      return cuda::launch(write_kernel<2>, how, stream, a);
    case 256:
      return cuda::launch(write_kernel<4>, how, stream, a);
    default:
      return cuda::launch(write_kernel<0>, how, stream, a);
  }
}

}  // namespace volley::ops
