// Kernels for the floats that NCCL delivers: sums in the order of comm.h, and columns side by side. No kernel here
// waits for another rank. Buffers begin at multiples of 16 bytes.
#pragma once

#include "comm/nccl_layout.h"
#include "comm/peer_kernels.cuh"

namespace volley::comm::nccl {

inline constexpr int kThreads = 256;  // threads of a block

// The sum of the ranks' addends, part(r) being rank r's.
template <int kRanks, int V, typename Part>
__device__ inline peer::Pack<V> sum_of(const Part& part) {
  peer::Pack<V> parts[kRanks];
#pragma unroll
  for (int r = 0; r < kRanks; ++r) parts[r] = part(r);
  return peer::sum_in_pairs(parts);
}

// x[i] += the ranks' addends; gathered: [kRanks, count].
template <int kRanks, int V>
__global__ void __launch_bounds__(kThreads) add_gathered_kernel(const float* gathered, float* x, int count) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  for (int i = first; i < count; i += step) {
    const peer::Pack<V> all =
        sum_of<kRanks, V>([&](int r) { return peer::load<V>(gathered + int64_t{r} * count + i); });
    peer::store<V>(x + i, peer::sum(peer::load<V>(x + i), all));
  }
}

// sums[i] = the ranks' addends of this rank's part. received: [kRanks, stride] of the others; own: this rank's.
template <int kRanks, int V>
__global__ void __launch_bounds__(kThreads)
    sum_part_kernel(const float* received, const float* own, float* sums, int count, int stride, int rank) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  for (int i = first; i < count; i += step) {
    peer::store<V>(sums + i, sum_of<kRanks, V>([&](int r) {
                     return peer::load<V>(r == rank ? own + i : received + int64_t{r} * stride + i);
                   }));
  }
}

// x[i] += sums[i]
template <int V>
__global__ void __launch_bounds__(kThreads) add_sums_kernel(const float* sums, float* x, int count) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  for (int i = first; i < count; i += step) {
    peer::store<V>(x + i, peer::sum(peer::load<V>(x + i), peer::load<V>(sums + i)));
  }
}

template <int V>
__device__ inline void copy_rows(const float* from, int from_stride, float* to, int to_stride, int rows, int columns) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * V, step = gridDim.x * blockDim.x * V;
  for (int i = first; i < rows * columns; i += step) {
    const int row = i / columns, column = i - row * columns;
    peer::store<V>(to + int64_t{row} * to_stride + column, peer::load<V>(from + int64_t{row} * from_stride + column));
  }
}

// A rank's block. V: 4 where `mine` and its columns allow it.
template <int V>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const float* mine, int columns, int first, float* block, int stride, int rows) {
  auto* head = reinterpret_cast<NcclBlockHead*>(block);
  if (blockIdx.x == 0 && threadIdx.x == 0) *head = {columns, first, {}};
  copy_rows<V>(mine, columns, reinterpret_cast<float*>(head + 1), stride, rows, columns);
}

// All ranks' blocks, each of `block_floats`, into out [rows, width]; one along y for each rank. fours: where out and
// its width allow to move four floats at once. After an abort blocks may hold garbage; even then the kernel writes only
// inside `out`.
inline __global__ void __launch_bounds__(kThreads)
    unpack_kernel(const float* blocks, int block_floats, int stride, float* out, int rows, int width, bool fours) {
  const auto* head = reinterpret_cast<const NcclBlockHead*>(blocks + int64_t{blockIdx.y} * block_floats);
  const int columns = head->columns, first = head->first;
  if (columns <= 0 || columns > stride || first < 0 || first > width - columns) return;
  const auto* from = reinterpret_cast<const float*>(head + 1);
  if (fours && columns % 4 == 0 && first % 4 == 0) {
    copy_rows<4>(from, stride, out + first, width, rows, columns);
  } else {
    copy_rows<1>(from, stride, out + first, width, rows, columns);
  }
}

}  // namespace volley::comm::nccl
