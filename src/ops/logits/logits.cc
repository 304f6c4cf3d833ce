#include "ops/logits/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "ops/logits/logits_kernels.h"

namespace volley::ops {
namespace {

constexpr int64_t kTaskElements = 16 << 10;  // some 10 µs and more: below that, handing the work out costs more

void end_logits_cpu(Stream& stream, TensorView x, const LogitsEnd& end) {
  if (stream.dry()) return;
  const int64_t n = x.count(), tasks = std::max<int64_t>(1, n / kTaskElements);
  float* values = x.as<float>();
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    for (int64_t i = n * task / tasks; i < n * (task + 1) / tasks; ++i) {
      const float v = end.scale * values[i];
      values[i] = end.cap > 0 ? end.cap * std::tanh(v / end.cap) : v;
    }
  });
}

void spread_columns_cpu(Stream& stream, TensorView x, TensorView ids, TensorView y) {
  if (stream.dry()) return;
  const int64_t rows = y.shape[0], n = x.shape[1], vocab = y.shape[1];
  const int32_t* id = ids.as<int32_t>();
  const int64_t tasks = std::clamp(rows * vocab / kTaskElements, int64_t{1}, std::max<int64_t>(1, rows));
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
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

const LogitsKernels LogitsKernels::kCpu = {end_logits_cpu, spread_columns_cpu};

void end_logits(Stream& stream, TensorView x, const LogitsEnd& end) {
  VOLLEY_CHECK(x.rank == 2 && x.dtype == DType::kF32);
  if (!end.is_plain()) kernels_on<LogitsKernels>(stream).end_logits(stream, x, end);
}

void spread_columns(Stream& stream, TensorView x, TensorView ids, TensorView y) {
  VOLLEY_CHECK(x.rank == 2 && y.rank == 2 && ids.rank == 1);
  VOLLEY_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32 && ids.dtype == DType::kI32);
  VOLLEY_CHECK_EQ(x.dim(0), y.dim(0));
  VOLLEY_CHECK_EQ(x.dim(1), ids.dim(0));
  VOLLEY_CHECK_LE(x.dim(1), y.dim(1));
  kernels_on<LogitsKernels>(stream).spread_columns(stream, x, ids, y);
}

}  // namespace volley::ops
