// The choice of kernel, and the plain kernel: any dtype and head_dim that the contract allows, on any GPU. It is for
// fp32 and unusual sizes; nothing in it is fast.
#include <algorithm>

#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/attention/attention_codes_cuda.cuh"
#include "ops/attention/attention_cuda.h"
#include "ops/attention/attention_kernels.h"
#include "ops/paged_kv/cuda_page.cuh"

namespace volley::ops {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxRowBlocks = 64;  // row blocks of a segment

struct PlainArgs {
  const void* q;
  void* out;
  int rows, heads, group;
  float scale;
  const float* sinks;
  const int32_t *visible_begin, *visible_end;
  SlotPages pages;
  const RowSegment* segments;
  KvLayer kv;
};

__device__ float warp_max(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, lane));
  return v;
}
__device__ float warp_sum(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffff, v, lane);
  return v;
}

// Value i of cached K or V.
__device__ float load_cached(const std::byte* data, DType dtype, int i) {
  if (dtype != DType::kF8E4M3) return cuda::load_float(data, dtype, i);
  return low_bf16(widen_pair(static_cast<uint32_t>(data[i])));
}

// One query row by one warp: 32 positions at a time, aligned to absolute positions, a lane each for the scores; then a
// lane for every 32nd output, positions in ascending order. kMost: of elements of a head's q.
template <int kMost>
__device__ void attend(const PlainArgs& args, int row, int head, const int32_t* pages, float* q) {
  const KvLayer& kv = args.kv;
  const DType dtype = attention_dtype(kv.dtype);
  const int d = kv.head_dim, v_dim = kv.v_in_k > 0 ? kv.v_in_k : d;
  const int lane = threadIdx.x % 32, kv_head = head / args.group;
  const int64_t row_head = static_cast<int64_t>(row) * args.heads + head;
  for (int i = lane; i < d; i += 32) q[i] = cuda::load_float(args.q, dtype, row_head * d + i);
  __syncwarp();
  const int32_t begin = args.visible_begin[row], end = args.visible_end[row];
  if (begin < 0 || end > static_cast<int64_t>(args.pages.max_pages) * kv.page_size) __trap();
  float outputs[kMost / 32] = {};
  float maximum = -INFINITY, sum = 0.0f;
  for (int32_t tile = begin / 32 * 32; tile < end; tile += 32) {
    const int32_t position = tile + lane;
    const bool seen = position >= begin && position < end;
    const std::byte* block = nullptr;
    float score = -INFINITY;
    if (seen) {
      const int32_t page = pages[position / kv.page_size];
      if (page < 0) __trap();
      block = kv.base + page * kv.page_stride;
      float dots[16] = {};  // d is a multiple
      for (int i = 0; i < d; i += 16) {
#pragma unroll
        for (int half = 0; half < 16; half += 8) {  // halves of 8 values, which any layout keeps contiguous
          const std::byte* k = block + kv_element_bytes(kv, kv_head, false, position % kv.page_size, i + half);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            dots[half + j] = fmaf(q[i + half + j], load_cached(k, kv.dtype, j), dots[half + j]);
          }
        }
      }
#pragma unroll
      for (int n = 8; n > 0; n /= 2) {
#pragma unroll
        for (int j = 0; j < n; ++j) dots[j] += dots[j + n];
      }
      score = dots[0] * args.scale;
    }
    const float before = maximum;
    maximum = fmaxf(maximum, warp_max(score));
    const float reference = maximum == -INFINITY ? 0.0f : maximum;
    float p = seen ? expf(score - reference) : 0.0f;
    if (dtype == DType::kBF16) p = __bfloat162float(__float2bfloat16_rn(p));
    const float factor = expf(before - reference);
    sum = fmaf(sum, factor, warp_sum(p));
    float added[kMost / 32] = {};
    for (int i = max(begin - tile, 0); i < min(end - tile, 32); ++i) {
      const float weight = __shfl_sync(0xffffffff, p, i);
      const auto from =
          reinterpret_cast<const std::byte*>(__shfl_sync(0xffffffff, reinterpret_cast<uint64_t>(block), i));
      const int in_page = (tile + i) % kv.page_size;
#pragma unroll
      for (int j = 0; j < kMost / 32; ++j) {
        const int element = lane + 32 * j;
        if (element >= v_dim) continue;
        const std::byte* v = from + kv_element_bytes(kv, kv_head, kv.v_in_k == 0, in_page, element);
        added[j] = fmaf(weight, load_cached(v, kv.dtype, 0), added[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kMost / 32; ++j) outputs[j] = fmaf(outputs[j], factor, added[j]);
  }
  float factor = 1.0f;  // factor of the outputs
  if (args.sinks != nullptr) {
    const float merged = fmaxf(maximum, args.sinks[head]);
    factor = expf(maximum - merged);
    sum = fmaf(sum, factor, expf(args.sinks[head] - merged));
  }
#pragma unroll
  for (int j = 0; j < kMost / 32; ++j) {
    const int element = lane + 32 * j;
    if (element >= v_dim) continue;
    cuda::store_float(args.out, dtype, row_head * v_dim + element, outputs[j] * factor / sum * kv.v_scale);
  }
  __syncwarp();  // q is about to change
}

template <int kMost>
__global__ void __launch_bounds__(kWarps * 32) plain_kernel(const __grid_constant__ PlainArgs args) {
  __shared__ float q[kWarps][kMost];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int warp = threadIdx.x / 32, head = static_cast<int>(blockIdx.z) * kWarps + warp;
  const RowSegment segment = args.segments[blockIdx.y];
  if (segment.rows <= 0 || head >= args.heads) return;
  if (segment.slot < 0 || segment.slot >= args.pages.slots || segment.row_begin < 0 ||
      segment.row_begin + segment.rows > args.rows) {
    __trap();
  }
  const int32_t* pages = args.pages[segment.slot];
  for (int i = static_cast<int>(blockIdx.x); i < segment.rows; i += static_cast<int>(gridDim.x)) {
    attend<kMost>(args, segment.row_begin + i, head, pages, q[warp]);
  }
}

void attention_plain_cuda(Stream& stream, const Rows& rows, const RowView& view, const Attention& args) {
  VOLLEY_CHECK_GE(rows.max_segment_rows, 1);
  PlainArgs a;
  a.q = args.q.data;
  a.out = args.out.data;
  a.rows = rows.rows;
  a.heads = args.heads;
  a.group = args.heads / args.kv.kv_heads;
  a.scale = args.scale * args.kv.k_scale;
  a.sinks = args.sinks.data == nullptr ? nullptr : args.sinks.as<float>();
  a.visible_begin = view.begin.as<int32_t>();
  a.visible_end = view.end.as<int32_t>();
  a.pages = SlotPages::of(view);
  a.segments = rows.segments;
  a.kv = args.kv;
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min(rows.max_segment_rows, kMaxRowBlocks)),
                  static_cast<unsigned>(rows.n_segments), static_cast<unsigned>((args.heads + kWarps - 1) / kWarps));
  how.block = dim3(kWarps * 32);
  how.early = true;
  if (args.kv.v_in_k > 0) return cuda::launch(plain_kernel<kMaxLatentKey>, how, stream, a);
  cuda::launch(plain_kernel<kMaxHeadDim>, how, stream, a);
}

void attention_cuda(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& /*scratch*/) {
  if (rows.rows == 0 || rows.n_segments == 0) return;
  if (args.work.backend == AttentionBackend::kPlain) {
    attention_plain_cuda(stream, rows, view, args);
  } else {
    attention_tiles_cuda(stream, rows, view, args);
  }
}

}  // namespace

const AttentionKernels AttentionKernels::kCuda = {resolve_attention_backend_cuda, plan_attention_cuda, attention_cuda};

}  // namespace volley::ops
