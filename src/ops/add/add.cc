#include "ops/add/add.h"

#include <algorithm>

#include "base/math.h"
#include "device/cpu/thread_pool.h"
#include "ops/add/add_kernels.h"

namespace volley::ops {
namespace {

constexpr int64_t kElementsPerTask = 8192;  // below, a thread takes longer to wake up than to add

// f(from, to, n) for all elements, some at a time.
template <typename F>
void for_elements(Stream& stream, TensorView x, TensorView y, const F& f) {
  if (stream.dry()) return;
  stream.pool().parallel_for(divide_up(y.count(), kElementsPerTask), [&](int64_t task, int) {
    const int64_t at = task * kElementsPerTask;
    f(x.as<float>() + at, y.as<float>() + at, std::min(kElementsPerTask, y.count() - at));
  });
}

void add_cpu(Stream& stream, TensorView x, TensorView y) {
  for_elements(stream, x, y, [](const float* from, float* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  });
}

void copy_cpu(Stream& stream, TensorView x, TensorView y) {
  for_elements(stream, x, y, [](const float* from, float* to, int64_t n) { std::copy_n(from, n, to); });
}

void check(TensorView x, TensorView y) {
  VOLLEY_CHECK(x.dtype == DType::kF32 && y.dtype == DType::kF32);
  VOLLEY_CHECK_EQ(x.count(), y.count());
}

}  // namespace

const AddKernels AddKernels::kCpu = {add_cpu, copy_cpu};

void add(Stream& stream, TensorView x, TensorView y) {
  check(x, y);
  if (y.count() > 0) kernels_on<AddKernels>(stream).add(stream, x, y);
}

void copy(Stream& stream, TensorView x, TensorView y) {
  check(x, y);
  if (y.count() > 0) kernels_on<AddKernels>(stream).copy(stream, x, y);
}

}  // namespace volley::ops
