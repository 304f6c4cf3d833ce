#include "ops/short_conv/short_conv.h"

#include <algorithm>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "ops/elements_cpu.h"
#include "ops/short_conv/short_conv_kernels.h"

namespace volley::ops {
namespace {

constexpr int64_t kConvTaskElements = 8 << 10;  // some µs: below that, handing the work out costs more

// The channels [begin, end) of a segment's rows. T: the cache's type; Y: y's.
template <typename T, typename Y>
void convolve_segment(const Rows& rows, const RowView& view, const ShortConv& args, const RowSegment& segment,
                      int64_t begin, int64_t end) {
  const KvLayer& kv = args.kv;
  const int64_t n = kv.head_dim, taps = args.kernel.count() / n;
  const int32_t* pages = view.page_table.as<int32_t>() + segment.slot * view.page_table.dim(1);
  const auto kept = [&](int64_t position) {
    const int64_t page = pages[position / kv.page_size];
    return reinterpret_cast<T*>(kv.base + page * kv.page_stride) + position % kv.page_size * n;
  };
  std::vector<const T*> before(static_cast<size_t>(taps));  // rows of the cache, the row's own first
  for (int64_t r = segment.row_begin; r < segment.row_begin + segment.rows; ++r) {
    const int64_t position = rows.cache_positions.as<int32_t>()[r];
    const float* b = args.in.as<float>() + r * 3 * n;
    T* own = kept(position);
    for (int64_t ch = begin; ch < end; ++ch) put_float(b[ch] * b[2 * n + ch], own[ch]);
    Y* y = args.y.as<Y>() + r * n;
    const int64_t seen = std::min(taps, position + 1);
    for (int64_t o = 0; o < seen; ++o) before[o] = kept(position - o);
    for (int64_t ch = begin; ch < end; ++ch) {
      const float* kernel = args.kernel.as<float>() + ch * taps + taps - 1;
      float sum = 0;
      for (int64_t o = 0; o < seen; ++o) sum += kernel[-o] * as_float(before[o][ch]);
      put_float(b[n + ch] * sum, y[ch]);
    }
  }
}

void short_conv_cpu(Stream& stream, const Rows& rows, const RowView& view, const ShortConv& args) {
  if (stream.dry()) return;
  const bool halves = args.kv.dtype == DType::kBF16, half_out = args.y.dtype == DType::kBF16;
  const auto run = halves ? (half_out ? convolve_segment<BFloat16, BFloat16> : convolve_segment<BFloat16, float>)
                          : (half_out ? convolve_segment<float, BFloat16> : convolve_segment<float, float>);
  const int64_t n = args.kv.head_dim, tasks = std::clamp(rows.rows * n / kConvTaskElements, int64_t{1}, n);
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    for (int32_t i = 0; i < rows.n_segments; ++i) {
      run(rows, view, args, rows.segments[i], n * task / tasks, n * (task + 1) / tasks);
    }
  });
}

}  // namespace

const ShortConvKernels ShortConvKernels::kCpu = {short_conv_cpu};

void short_conv(Stream& stream, const Rows& rows, const RowView& view, const ShortConv& args) {
  const KvLayer& kv = args.kv;
  const int64_t n = kv.head_dim;
  VOLLEY_CHECK(kv.base != nullptr && kv.kv_heads == 1 && n > 0 && kv.v_in_k == n);
  VOLLEY_CHECK(kv.dtype == DType::kBF16 || kv.dtype == DType::kF32);
  VOLLEY_CHECK(args.in.dtype == DType::kF32 && args.in.dim(0) == rows.rows && args.in.dim(1) == 3 * n);
  VOLLEY_CHECK(args.kernel.dtype == DType::kF32 && args.kernel.count() >= n && args.kernel.count() % n == 0);
  VOLLEY_CHECK((args.y.dtype == DType::kBF16 || args.y.dtype == DType::kF32) && args.y.count() == rows.rows * n);
  VOLLEY_CHECK(rows.cache_positions.dtype == DType::kI32 && rows.cache_positions.count() >= rows.rows);
  VOLLEY_CHECK(view.page_table.dtype == DType::kI32 && view.page_table.rank == 2);
  if (rows.rows == 0) return;
  kernels_on<ShortConvKernels>(stream).short_conv(stream, rows, view, args);
}

}  // namespace volley::ops
