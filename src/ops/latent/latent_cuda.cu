// The write of latents. Products of heads are grouped products (ops/grouped_linear).
#include <cuda_fp8.h>

#include "base/math.h"
#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/grouped_linear/grouped_linear_cuda.h"
#include "ops/latent/latent_kernels.h"
#include "ops/paged_kv/cuda_page.cuh"

namespace volley::ops {
namespace {

constexpr int kWarps = 4;

struct WriteArgs {
  const float *row, *norm, *cos, *sin;
  float eps;
  int rope_limit, heads, q_width;  // q_width: elements of a head of q
  const int32_t *rope_positions, *cache_positions, *slots;
  SlotPages pages;
  KvLayer kv;
  const void* q;
  void* q_out;
  DType q_dtype, q_out_dtype;
  QueryGrowth growth;
};

__device__ std::byte* position_block(const WriteArgs& args, int slot, int position) {
  const int index = position / args.kv.page_size;
  if (slot < 0 || slot >= args.pages.slots || position < 0 || index >= args.pages.max_pages) __trap();
  const int page = args.pages[slot][index];
  if (page < 0) __trap();
  return args.kv.base + page * args.kv.page_stride;
}

// The code is that of a quotient, not of a product with the inverse: as on the CPU.
__device__ void keep(const KvLayer& kv, std::byte* block, int in_page, int element, float x) {
  std::byte* to = block + kv_element_bytes(kv, 0, false, in_page, element);
  if (kv.dtype == DType::kF8E4M3) {
    const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(__fdiv_rn(x, kv.k_scale), __NV_SATFINITE, __NV_E4M3);
    *to = static_cast<std::byte>(code);
  } else {
    cuda::store_float(to, kv.dtype, 0, x);
  }
}

// Calls use(i, y) with each rotated element of x, of which load(i) is one; a warp's lanes share the pairs.
template <typename Load, typename Use>
__device__ void rotate(const WriteArgs& args, int64_t position, const Load& load, const Use& use) {
  const int half = (args.kv.head_dim - args.kv.v_in_k) / 2;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < half; i += 32) {
    const float a = load(i), b = load(half + i);
    const float cos = args.cos[position * half + i], sin = args.sin[position * half + i];
    use(i, fmaf(-b, sin, a * cos));
    use(half + i, fmaf(a, sin, b * cos));
  }
}

// A warp a row's latent and key, or a head's q.
__global__ void __launch_bounds__(kWarps * 32) write_kernel(const __grid_constant__ WriteArgs args) {
  const int lane = threadIdx.x % 32, task = static_cast<int>(blockIdx.y) * kWarps + threadIdx.x / 32;
  const int64_t row = blockIdx.x;
  cuda::wait_for_predecessors();
  // Not earlier: attention requires that kernels older than this one have ended when it starts.
  cuda::launch_dependents();
  if (task > args.heads) return;
  const int width = args.kv.v_in_k, key = args.kv.head_dim;
  const int64_t rope = args.rope_positions[row];
  if (rope < 0 || rope >= args.rope_limit) __trap();
  if (task > 0) {
    const int64_t head = row * args.heads + task - 1;
    const int64_t from = (head + 1) * args.q_width - (key - width), to = head * key + width;
    const auto grown = static_cast<float>(static_cast<int>(rope) / args.growth.every);
    const float by = args.growth.factor > 0 ? fmaf(args.growth.factor, logf(1.0f + grown), 1.0f) : 1.0f;
    rotate(
        args, rope, [&](int i) { return cuda::load_float(args.q, args.q_dtype, from + i); },
        [&](int i, float y) { cuda::store_float(args.q_out, args.q_out_dtype, to + i, y * by); });
    for (int i = lane; by != 1.0f && i < width; i += 32) {
      const int64_t at = head * key + i;
      cuda::store_float(args.q_out, args.q_out_dtype, at, cuda::load_float(args.q_out, args.q_out_dtype, at) * by);
    }
    return;
  }
  const int position = args.cache_positions[row], in_page = position % args.kv.page_size;
  std::byte* const block = position_block(args, args.slots[row], position);
  const float* x = args.row + row * key;
  // The factor is in all of V, and so in all that follows: it is rounded once.
  float latent[kMaxLatent / 32];
  double squares = 0;
#pragma unroll
  for (int j = 0; j < kMaxLatent / 32; ++j) {
    const int i = lane + 32 * j;
    latent[j] = i < width ? x[i] : 0.0f;
    squares += static_cast<double>(latent[j]) * latent[j];
  }
#pragma unroll
  for (int other = 16; other > 0; other /= 2) squares += __shfl_xor_sync(0xffffffff, squares, other);
  const auto inverse = static_cast<float>(1.0 / sqrt(squares / width + static_cast<double>(args.eps)));
#pragma unroll
  for (int j = 0; j < kMaxLatent / 32; ++j) {
    const int i = lane + 32 * j;
    if (i < width) keep(args.kv, block, in_page, i, latent[j] * inverse * args.norm[i]);
  }
  rotate(
      args, rope, [&](int i) { return x[width + i]; },
      [&](int i, float y) { keep(args.kv, block, in_page, width + i, y); });
}

void write_latent_cuda(Stream& stream, const Rows& rows, const RowView& view, const LatentWrite& args) {
  if (rows.rows == 0) return;
  VOLLEY_CHECK(rows.slots.dtype == DType::kI32 && rows.slots.count() >= rows.rows);
  WriteArgs a;
  a.row = args.row.as<float>();
  a.norm = args.norm.as<float>();
  a.cos = args.rope.cos.as<float>();
  a.sin = args.rope.sin.as<float>();
  a.eps = args.eps;
  a.rope_limit = static_cast<int>(args.rope.cos.dim(0));
  a.heads = static_cast<int>(args.q.dim(1));
  a.q_width = static_cast<int>(args.q.dim(2));
  a.rope_positions = rows.rope_positions.as<int32_t>();
  a.cache_positions = rows.cache_positions.as<int32_t>();
  a.slots = rows.slots.as<int32_t>();
  a.pages = SlotPages::of(view);
  a.kv = args.kv;
  a.q = args.q.data;
  a.q_out = args.q_out.data;
  a.q_dtype = args.q.dtype;
  a.q_out_dtype = args.q_out.dtype;
  a.growth = args.growth;
  cuda::launch(
      write_kernel,
      {.grid = cuda::dims(rows.rows, divide_up(a.heads + 1, kWarps)), .block = dim3(kWarps * 32), .early = true},
      stream, a);
}

}  // namespace

const LatentKernels LatentKernels::kCuda = {head_linear_cuda, write_latent_cuda};

}  // namespace volley::ops
