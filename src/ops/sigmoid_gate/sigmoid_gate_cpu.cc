#include <algorithm>
#include <cmath>

#include "device/cpu/thread_pool.h"
#include "ops/elements_cpu.h"
#include "ops/sigmoid_gate/sigmoid_gate_kernels.h"

namespace volley::ops {
namespace {

// Half of that is the least that is worth a thread's while: an exponential takes some 5 ns.
constexpr int64_t kElementsPerTask = 2048;

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

template <typename T>
void gate_rows(const TensorView& y, const TensorView& gates, int64_t first, int64_t begin, int64_t end) {
  const int64_t n = y.dim(1), m = gates.dim(1);
  for (int64_t i = begin; i < end; ++i) {
    T* row = y.as<T>() + i * n;
    const float* gate = gates.as<float>() + i * m + first;
    const float of_row = m == 1 ? sigmoid(gate[0]) : 0;
    for (int64_t j = 0; j < n; ++j) put_float(as_float(row[j]) * (m == 1 ? of_row : sigmoid(gate[j])), row[j]);
  }
}

void sigmoid_gate_cpu(Stream& stream, TensorView y, TensorView gates, int64_t first) {
  if (stream.dry()) return;
  const int64_t rows = y.dim(0);
  const int64_t tasks = std::min(rows, std::max<int64_t>(1, y.count() / kElementsPerTask));
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    const int64_t begin = rows * task / tasks, end = rows * (task + 1) / tasks;
    y.dtype == DType::kF32 ? gate_rows<float>(y, gates, first, begin, end)
                           : gate_rows<BFloat16>(y, gates, first, begin, end);
  });
}

}  // namespace

const SigmoidGateKernels SigmoidGateKernels::kCpu = {sigmoid_gate_cpu};

}  // namespace volley::ops
