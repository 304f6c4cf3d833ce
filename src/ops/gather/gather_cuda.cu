#include "ops/gather/gather_kernels.h"

#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"

namespace volley::ops {
namespace {

constexpr int kThreads = 256;

// Rows are `words` elements of Word long; a block a row.
template <typename Word>
__global__ void gather_kernel(const Word* x, int64_t x_rows, const int32_t* index, Word* y, int64_t words) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  const int64_t from = index[blockIdx.x], to = blockIdx.x;
  if (from < 0 || from >= x_rows) __trap();  // our bug
  for (int64_t i = threadIdx.x; i < words; i += kThreads) y[to * words + i] = x[from * words + i];
}

template <typename Word>
void launch_gather(Stream& stream, const TensorView& x, const TensorView& index, const TensorView& y, int64_t bytes) {
  cuda::launch(gather_kernel<Word>, {.grid = cuda::dims(y.shape[0]), .block = dim3(kThreads), .early = true}, stream,
               static_cast<const Word*>(x.data), x.shape[0], index.as<int32_t>(), static_cast<Word*>(y.data),
               bytes / static_cast<int64_t>(sizeof(Word)));
}

void gather_rows_cuda(Stream& stream, TensorView x, TensorView index, TensorView y) {
  if (y.shape[0] == 0) return;
  const int64_t bytes = x.shape[1] * static_cast<int64_t>(dtype_size(x.dtype));
  const auto aligned = [&](uintptr_t to) {
    return (reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(y.data) | static_cast<uintptr_t>(bytes)) %
               to ==
           0;
  };
  if (aligned(sizeof(uint4))) return launch_gather<uint4>(stream, x, index, y, bytes);
  if (aligned(sizeof(uint16_t))) return launch_gather<uint16_t>(stream, x, index, y, bytes);
  launch_gather<uint8_t>(stream, x, index, y, bytes);
}

}  // namespace

const GatherKernels GatherKernels::kCuda = {gather_rows_cuda};

}  // namespace volley::ops
