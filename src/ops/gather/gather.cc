#include "ops/gather/gather.h"

#include <cstring>

#include "device/cpu/thread_pool.h"
#include "ops/gather/gather_kernels.h"

namespace volley::ops {
namespace {

// Below this many bytes a region costs more than the copy.
constexpr int64_t kParallelBytes = 256 << 10;

void gather_rows_cpu(Stream& stream, TensorView x, TensorView index, TensorView y) {
  if (stream.dry()) return;
  const int64_t row_bytes = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype));
  const int32_t* rows = index.as<int32_t>();
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      VOLLEY_CHECK(rows[i] >= 0 && rows[i] < x.shape[0]);
      std::memcpy(static_cast<char*>(y.data) + i * row_bytes, static_cast<const char*>(x.data) + rows[i] * row_bytes,
                  row_bytes);
    }
  };
  const int64_t n = y.shape[0];
  if (n * row_bytes < kParallelBytes) return copy(0, n);
  const int64_t tasks = stream.threads();
  stream.pool().parallel_for(tasks, [&](int64_t task, int) { copy(n * task / tasks, n * (task + 1) / tasks); });
}

}  // namespace

const GatherKernels GatherKernels::kCpu = {gather_rows_cpu};

void gather_rows(Stream& stream, TensorView x, TensorView index, TensorView y) {
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2 && index.rank == 1 && x.dtype == y.dtype);
  VOLLEY_CHECK_EQ(x.dim(1), y.dim(1));
  VOLLEY_CHECK_EQ(index.dim(0), y.dim(0));
  kernels_on<GatherKernels>(stream).gather_rows(stream, x, index, y);
}

}  // namespace volley::ops
