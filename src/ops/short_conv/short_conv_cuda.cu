#include "device/cuda/dependent.cuh"
#include "device/cuda/elements.cuh"
#include "device/cuda/launch.h"
#include "ops/paged_kv/cuda_page.cuh"
#include "ops/short_conv/short_conv_kernels.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

struct ConvArgs {
  const float *in, *kernel;
  int taps;
  const int32_t *cache_positions, *slots;
  SlotPages pages;
  KvLayer kv;
  void* y;
  DType y_dtype;
};

__device__ std::byte* kept(const ConvArgs& args, int slot, int position) {
  const int index = position / args.kv.page_size;
  if (slot < 0 || slot >= args.pages.slots || position < 0 || index >= args.pages.max_pages) __trap();
  const int page = args.pages[slot][index];
  if (page < 0) __trap();
  const int64_t row = int64_t{args.kv.head_dim} * kv_element_size(args.kv.dtype);
  return args.kv.base + page * args.kv.page_stride + position % args.kv.page_size * row;
}

// A thread a channel of a row. Rows before it of the same sequence and pass are computed again: no row reads what
// another one writes.
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ ConvArgs args) {
  cuda::wait_for_predecessors();
  // Not earlier: writes after this one rely on it (QkvWrite::rows_ready).
  cuda::launch_dependents();
  const int64_t row = blockIdx.x, n = args.kv.head_dim;
  const int ch = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x;
  if (ch >= n) return;
  const int slot = args.slots[row], position = args.cache_positions[row];
  const DType dtype = args.kv.dtype;
  const auto made = [&](int64_t r) {
    const float g = args.in[r * 3 * n + ch] * args.in[r * 3 * n + 2 * n + ch];
    return dtype == DType::kBF16 ? __bfloat162float(__float2bfloat16_rn(g)) : g;
  };
  const float own = made(row);
  cuda::store_float(kept(args, slot, position), dtype, ch, own);
  const float* kernel = args.kernel + int64_t{ch} * args.taps + args.taps - 1;
  float sum = kernel[0] * own;
  bool in_pass = true;
  for (int o = 1; o < args.taps && o <= position; ++o) {
    in_pass = in_pass && row >= o && args.slots[row - o] == slot && args.cache_positions[row - o] == position - o;
    sum = fmaf(kernel[-o], in_pass ? made(row - o) : cuda::load_float(kept(args, slot, position - o), dtype, ch), sum);
  }
  cuda::store_float(args.y, args.y_dtype, row * n + ch, args.in[row * 3 * n + n + ch] * sum);
}

void short_conv_cuda(Stream& stream, const Rows& rows, const RowView& view, const ShortConv& args) {
  VOLLEY_CHECK(rows.slots.dtype == DType::kI32 && rows.slots.count() >= rows.rows);
  const int64_t n = args.kv.head_dim;
  const ConvArgs a = {args.in.as<float>(),
                      args.kernel.as<float>(),
                      static_cast<int>(args.kernel.count() / n),
                      rows.cache_positions.as<int32_t>(),
                      rows.slots.as<int32_t>(),
                      SlotPages::of(view),
                      args.kv,
                      args.y.data,
                      args.y.dtype};
  cuda::launch(conv_kernel,
               {.grid = cuda::dims(rows.rows, (n + kThreads - 1) / kThreads), .block = dim3(kThreads), .early = true},
               stream, a);
}

}  // namespace

const ShortConvKernels ShortConvKernels::kCuda = {short_conv_cuda};

}  // namespace volley::ops
