#include "ops/logits/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/thread_pool.h"
#ifdef VOLLEY_CUDA
#include "ops/logits/logits_cuda.h"
#endif

namespace volley::ops {
namespace {

constexpr int64_t kTaskElements = 16 << 10;  // some 10 µs and more: below that, handing the work out costs more

void softcap_cpu(ThreadPool& pool, TensorView x, float cap) {
  const int64_t n = x.count(), tasks = std::max<int64_t>(1, n / kTaskElements);
  float* values = x.as<float>();
  pool.parallel_for(tasks, [&](int64_t task, int) {
    for (int64_t i = n * task / tasks; i < n * (task + 1) / tasks; ++i) values[i] = cap * std::tanh(values[i] / cap);
  });
}

void spread_columns_cpu(ThreadPool& pool, TensorView x, TensorView ids, TensorView y) {
  const int64_t rows = y.shape[0], n = x.shape[1], vocab = y.shape[1];
  const int32_t* id = ids.as<int32_t>();
  const int64_t tasks = std::clamp(rows * vocab / kTaskElements, int64_t{1}, std::max<int64_t>(1, rows));
  pool.parallel_for(tasks, [&](int64_t task, int) {
    for (int64_t i = rows * task / tasks; i < rows * (task + 1) / tasks; ++i) {
      const float* from = x.as<float>() + i * n;
      float* to = y.as<float>() + i * vocab;
      std::fill_n(to, vocab, -std::numeric_limits<float>::infinity());
      for (int64_t j = 0; j < n; ++j) {
        VOLLEY_CHECK(id[j] >= 0 && id[j] < vocab);
        to[id[j]] = from[j];
      }
    }
  });
}

}  // namespace

void softcap(Stream& stream, TensorView x, float cap) {
  VOLLEY_CHECK(x.rank == 2 && x.dtype == DType::kF32 && cap > 0);
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) return softcap_cuda(stream, x, cap);
#endif
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "softcap has no kernel for this device");
  softcap_cpu(stream.pool(), x, cap);
}

void spread_columns(Stream& stream, TensorView x, TensorView ids, TensorView y) {
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2 && ids.rank == 1);
  VOLLEY_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32 && ids.dtype == DType::kI32);
  VOLLEY_CHECK_EQ(x.dim(0), y.dim(0));
  VOLLEY_CHECK_EQ(x.dim(1), ids.dim(0));
  VOLLEY_CHECK_LE(x.dim(1), y.dim(1));
#ifdef VOLLEY_CUDA
  if (stream.kind() == DeviceKind::kCuda) return spread_columns_cuda(stream, x, ids, y);
#endif
  VOLLEY_CHECK_MSG(stream.kind() == DeviceKind::kCpu, "spread_columns has no kernel for this device");
  spread_columns_cpu(stream.pool(), x, ids, y);
}

}  // namespace volley::ops
