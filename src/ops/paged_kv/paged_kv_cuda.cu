#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/paged_kv/cuda_page.cuh"
#include "ops/paged_kv/paged_kv_kernels.h"

namespace volley::ops {
namespace {

constexpr int kWarps = 4;

// Where there would be more warps than these, which an H200 holds at once (40 a multiprocessor), each takes so many
// heads.
constexpr int64_t kManyWarps = 5280;
constexpr int kManyHeads = 4;

struct WriteArgs {
  const float* qkv;
  int64_t qkv_stride;  // from a row to the next
  int source_dim;      // elements of a head there
  int rows, heads, layers;
  int64_t layer_bytes;                  // from a layer's block in a page to the next
  const float *bias, *q_norm, *k_norm;  // may be null
  float eps;
  bool v_norm, v_from_k;
  const float *cos, *sin;
  int rope_limit;
  const int32_t *rope_positions, *cache_positions, *row_slots;
  SlotPages pages;
  bool rows_ready;
  KvLayer kv;
  void* q_out;
  DType q_dtype;
};

// The codes of two values, the first in the lower byte. A quotient, not a product with the inverse: as on the CPU.
__device__ uint32_t code_pair(float low, float high, float scale) {
  return __nv_cvt_float2_to_fp8x2({__fdiv_rn(low, scale), __fdiv_rn(high, scale)}, __NV_SATFINITE, __NV_E4M3);
}

// Which of a head's pairs (i, i + head_dim / 2) a lane holds. kDim is 64, 128 or 256: four neighbours, so that 8 to 32
// lanes hold a head, and a warp four heads to one; 512: eight. 0, for any other head_dim: every 32nd.
template <int kDim>
struct Pairs {
  static constexpr int kPairs = kDim > 0 && kDim <= 256 ? 4 : 8;  // not fewer than head_dim / 64
  static constexpr int kLanes = kDim > 0 ? kDim / (2 * kPairs) : 32;
  static constexpr int kBeside = 32 / kLanes;                   // heads that a warp holds beside one another
  static constexpr int kChain = kDim > 0 ? kDim / 64 : kPairs;  // pairs whose squares a chain adds
  int dim, half, first;
  __device__ explicit Pairs(int head_dim)
      : dim(kDim > 0 ? kDim : head_dim),
        half(dim / 2),
        first(static_cast<int>(threadIdx.x) % kLanes * (kDim > 0 ? kPairs : 1)) {}
  __device__ int at(int i) const { return kDim > 0 ? first + i : first + 32 * i; }
  __device__ bool exists(int i) const { return kDim > 0 || at(i) < half; }

  __device__ void load(const float* from, float (&to)[kPairs]) const {
    if constexpr (kDim > 0) {
#pragma unroll
      for (int i = 0; i < kPairs; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + first + i);
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) to[i] = exists(i) ? from[at(i)] : 0.0f;
    }
  }

  // The same of the first `count` elements; the others are zero.
  __device__ void load(const float* from, int count, float (&to)[kPairs]) const {
    if (count == half) return load(from, to);
#pragma unroll
    for (int i = 0; i < kPairs; i += 4) {
      if (kDim > 0 && count % 4 == 0) {
        const bool some = first + i < count;
        const float4 v = some ? *reinterpret_cast<const float4*>(from + first + i) : float4{};
        to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
        continue;
      }
#pragma unroll
      for (int j = i; j < i + 4; ++j) to[j] = at(j) < count ? from[at(j)] : 0.0f;
    }
  }

  // to(element) is the address of an element; neighbours of a lane are neighbours in memory.
  template <typename Address>
  __device__ void store(const float (&v)[kPairs], int offset, DType dtype, const Address& to) const {
    if constexpr (kDim > 0) {
#pragma unroll
      for (int i = 0; i < kPairs; i += 4) {
        void* const four = to(offset + first + i);
        if (dtype == DType::kBF16) {
          const __nv_bfloat162 low = __floats2bfloat162_rn(v[i], v[i + 1]);
          const __nv_bfloat162 high = __floats2bfloat162_rn(v[i + 2], v[i + 3]);
          *static_cast<uint2*>(four) = {reinterpret_cast<const uint32_t&>(low),
                                        reinterpret_cast<const uint32_t&>(high)};
        } else {
          *static_cast<float4*>(four) = {v[i], v[i + 1], v[i + 2], v[i + 3]};
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (exists(i)) cuda::store_float(to(offset + at(i)), dtype, 0, v[i]);
      }
    }
  }

  // The same as e4m3, divided by `scale`: the nearest codes, ties to even; beyond the largest, that one.
  template <typename Address>
  __device__ void store_codes(const float (&v)[kPairs], int offset, float scale, const Address& to) const {
    if constexpr (kDim > 0) {
#pragma unroll
      for (int i = 0; i < kPairs; i += 4) {
        const uint32_t low = code_pair(v[i], v[i + 1], scale), high = code_pair(v[i + 2], v[i + 3], scale);
        *static_cast<uint32_t*>(to(offset + first + i)) = low | high << 16;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (!exists(i)) continue;
        *static_cast<uint8_t*>(to(offset + at(i))) = static_cast<uint8_t>(code_pair(v[i], 0.0f, scale));
      }
    }
  }
};

__device__ uint8_t* position_block(const WriteArgs& args, int slot, int position) {
  const int index = position / args.kv.page_size;
  if (slot < 0 || slot >= args.pages.slots || position < 0 || index >= args.pages.max_pages) __trap();
  const int page = args.pages[slot][index];
  if (page < 0) __trap();
  return reinterpret_cast<uint8_t*>(args.kv.base) + page * args.kv.page_stride;
}

// RMSNorm of a head. 32 chains of its squares, the pairs of each in order, are added as a tree; how many of them a lane
// has changes nothing (the general kernel: one, of every 32nd pair).
template <int kDim, int kPairs>
__device__ void normalise(const Pairs<kDim>& pairs, float eps, const float (&weight_a)[kPairs],
                          const float (&weight_b)[kPairs], float (&a)[kPairs], float (&b)[kPairs]) {
  constexpr int kChain = Pairs<kDim>::kChain, kChains = kPairs / kChain;
  float squares[kChains] = {};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) squares[i / kChain] = fmaf(b[i], b[i], fmaf(a[i], a[i], squares[i / kChain]));
#pragma unroll
  for (int lane = pairs.kLanes / 2; lane > 0; lane /= 2) {
#pragma unroll
    for (float& chain : squares) chain += __shfl_xor_sync(0xffffffff, chain, lane);
  }
#pragma unroll
  for (int other = kChains / 2; other > 0; other /= 2) {
#pragma unroll
    for (int i = 0; i < other; ++i) squares[i] += squares[i + other];
  }
  const float scale = 1.0f / sqrtf(squares[0] / static_cast<float>(pairs.dim) + eps);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    a[i] = a[i] * scale * weight_a[i];
    b[i] = b[i] * scale * weight_b[i];
  }
}

// Where a row's K and V go, and the angles of its position.
template <int kDim>
struct RowPlace {
  static constexpr int kPairs = Pairs<kDim>::kPairs;
  int in_page;
  uint8_t* block;
  float cos[kPairs], sin[kPairs];

  __device__ void read(const WriteArgs& args, const Pairs<kDim>& pairs, int row, bool is_q, bool is_v) {
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

// Heads of q, K or V of a row by a warp, kRounds * kBeside at most, which it reads all at once. What it computes
// depends on the row and head_dim alone. kCodes: K and V are stored as e4m3.
template <int kDim, int kRounds, bool kCodes>
__global__ void __launch_bounds__(kWarps * 32) write_kernel(WriteArgs args) {
  constexpr int kBeside = Pairs<kDim>::kBeside, kHeads = kRounds * kBeside, kPairs = Pairs<kDim>::kPairs;
  const int kv_heads = args.kv.kv_heads;
  const int q_groups = (args.heads + kHeads - 1) / kHeads, kv_groups = (kv_heads + kHeads - 1) / kHeads;
  const int row = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (group >= q_groups + args.layers * 2 * kv_groups) return;  // one that has ended lets dependents start, too
  const bool is_q = group < q_groups;
  const int layer = is_q || args.layers == 1 ? 0 : (group - q_groups) / (2 * kv_groups);
  const int in_layer = group - q_groups - layer * 2 * kv_groups;
  const bool is_v = !is_q && in_layer >= kv_groups;
  const Pairs<kDim> pairs(args.kv.head_dim);
  const int d = pairs.dim;
  // The lane's head among q, K or V in the first round. Later rounds take the heads that follow the warp's.
  const int first = (is_q   ? group
                     : is_v ? in_layer - kv_groups
                            : in_layer) *
                        kHeads +
                    static_cast<int>(threadIdx.x) % 32 / pairs.kLanes;
  const int heads = is_q ? args.heads : kv_heads;
  const float* norm = is_q ? args.q_norm : is_v || args.k_norm == nullptr ? nullptr : args.k_norm + layer * d;
  float a[kRounds][kPairs] = {}, b[kRounds][kPairs] = {};
  float weight_a[kPairs] = {}, weight_b[kPairs] = {};
  if (norm != nullptr) {  // weights depend on no other kernel
    pairs.load(norm, weight_a);
    pairs.load(norm + pairs.half, weight_b);
  }
  const bool v_norm = is_v && args.v_norm;
  if (v_norm) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) weight_a[i] = weight_b[i] = 1.0f;
  }
  RowPlace<kDim> place;
  if (args.rows_ready) place.read(args, pairs, row, is_q, is_v);
  cuda::wait_for_predecessors();
  // Not earlier: attention and rows_ready require that kernels older than this one have ended when they start.
  cuda::launch_dependents();
  const int sources = args.v_from_k ? kv_heads : 2 * kv_heads;  // heads of a layer in qkv
  const int before = is_q ? 0 : args.heads + layer * sources + (is_v ? sources - kv_heads : 0);
  const int source = args.source_dim, count = source / 2;
  const float* x = args.qkv + row * args.qkv_stride + before * source;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int head = first + round * kBeside;
    if (head >= heads) continue;
    pairs.load(x + head * source, count, a[round]);
    pairs.load(x + head * source + count, count, b[round]);
    if (args.bias == nullptr) continue;
    float bias_a[kPairs], bias_b[kPairs];
    pairs.load(args.bias + (before + head) * source, count, bias_a);
    pairs.load(args.bias + (before + head) * source + count, count, bias_b);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      a[round][i] += bias_a[i];
      b[round][i] += bias_b[i];
    }
  }
  if (!args.rows_ready) place.read(args, pairs, row, is_q, is_v);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int head = first + round * kBeside;
    if (norm != nullptr || v_norm) normalise(pairs, args.eps, weight_a, weight_b, a[round], b[round]);  // by all lanes
    if (head >= heads) continue;
    if (!is_v) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float unturned = a[round][i];
        a[round][i] = fmaf(-b[round][i], place.sin[i], unturned * place.cos[i]);
        b[round][i] = fmaf(unturned, place.sin[i], b[round][i] * place.cos[i]);
      }
    }
    const auto store = [&](DType dtype, const auto& to) {
      pairs.store(a[round], 0, dtype, to);
      pairs.store(b[round], pairs.half, dtype, to);
    };
    if (is_q) {
      const int64_t from = (static_cast<int64_t>(row) * args.heads + head) * d;
      const int size = args.q_dtype == DType::kBF16 ? 2 : 4;
      store(args.q_dtype, [&](int element) {
        return static_cast<void*>(static_cast<uint8_t*>(args.q_out) + (from + element) * size);
      });
    } else {
      KvLayer kv = args.kv;
      kv.head_dim = d;  // which the compiler may know
      uint8_t* const block = place.block + layer * args.layer_bytes;
      const auto to = [&](int element) {
        return static_cast<void*>(block + kv_element_bytes(kv, head, is_v, place.in_page, element));
      };
      if constexpr (kCodes) {
        kv.dtype = DType::kF8E4M3;
        const float scale = is_v ? kv.v_scale : kv.k_scale;
        pairs.store_codes(a[round], 0, scale, to);
        pairs.store_codes(b[round], pairs.half, scale, to);
      } else {
        __builtin_assume(kv.dtype != DType::kF8E4M3);
        store(kv.dtype, to);
      }
    }
  }
}

const float* floats(const TensorView& t) {
  return t.data == nullptr ? nullptr : t.as<float>();
}

// How many warps a row takes, where each has `heads` heads.
int warps_of(const WriteArgs& args, int heads) {
  return (args.heads + heads - 1) / heads + args.layers * 2 * ((args.kv.kv_heads + heads - 1) / heads);
}

template <int kDim, int kRounds, bool kCodes>
void launch_write(Stream& stream, const WriteArgs& args) {
  const int groups = warps_of(args, kRounds * Pairs<kDim>::kBeside);
  cuda::launch(
      write_kernel<kDim, kRounds, kCodes>,
      {.grid = cuda::dims(args.rows, (groups + kWarps - 1) / kWarps), .block = dim3(kWarps * 32), .early = true},
      stream, args);
}

// Many rows: so few blocks that all run at once, and so many reads of each that it matters little how long one takes.
template <int kDim, bool kCodes>
void launch_write(Stream& stream, const WriteArgs& args) {
  constexpr int kBeside = Pairs<kDim>::kBeside;
  if (int64_t{args.rows} * warps_of(args, kBeside) <= kManyWarps) {
    launch_write<kDim, 1, kCodes>(stream, args);
  } else {
    launch_write<kDim, std::max(1, kManyHeads / kBeside), kCodes>(stream, args);
  }
}

template <bool kCodes>
void launch_any(Stream& stream, const WriteArgs& args) {
  switch (args.kv.head_dim) {
    case 64:
      return launch_write<64, kCodes>(stream, args);
    case 128:
      return launch_write<128, kCodes>(stream, args);
    case 256:
      return launch_write<256, kCodes>(stream, args);
    case 512:
      return launch_write<512, kCodes>(stream, args);
    default:
      return launch_write<0, 1, kCodes>(stream, args);
  }
}

void write_qkv_cuda(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args) {
  if (rows.rows == 0) return;
  VOLLEY_CHECK(rows.slots.dtype == DType::kI32 && rows.slots.count() >= rows.rows);
  WriteArgs a;
  a.qkv = args.qkv.as<float>();
  a.qkv_stride = args.qkv.dim(1);
  a.source_dim = args.source_dim();
  a.rows = rows.rows;
  a.heads = args.heads;
  a.layers = args.layers;
  a.layer_bytes = kv_layer_bytes(args.kv.page_size, args.kv.kv_heads, args.kv.head_dim, args.kv.dtype);
  a.bias = floats(args.bias);
  a.q_norm = floats(args.q_norm);
  a.k_norm = floats(args.k_norm);
  a.eps = args.eps;
  a.v_norm = args.v_norm;
  a.v_from_k = args.v_from_k;
  a.cos = floats(args.rope.cos);
  a.sin = floats(args.rope.sin);
  a.rope_limit = static_cast<int>(args.rope.cos.dim(0));
  a.rope_positions = rows.rope_positions.as<int32_t>();
  a.cache_positions = rows.cache_positions.as<int32_t>();
  a.row_slots = rows.slots.as<int32_t>();
  a.pages = SlotPages::of(view);
  a.rows_ready = args.rows_ready;
  a.kv = args.kv;
  a.q_out = args.q_out.data;
  a.q_dtype = args.q_out.dtype;
  if (args.kv.dtype == DType::kF8E4M3) {
    launch_any<true>(stream, a);
  } else {
    launch_any<false>(stream, a);
  }
}

}  // namespace

const PagedKvKernels PagedKvKernels::kCuda = {write_qkv_cuda};

}  // namespace volley::ops
