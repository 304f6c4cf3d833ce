// A warp chooses for a row, with the experts spread over its lanes; then one block puts the entries in the order of
// their experts. Up to kRowsInOneKernel rows, the same block does both.
#include <algorithm>

#include "base/math.h"
#include "device/cuda/block_sum.cuh"
#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "ops/router/router_cuda_rows.cuh"
#include "ops/router/router_kernels.h"

namespace volley::ops {
namespace {

constexpr int kRouteWarps = 8;
constexpr int kGroupWarps = 32, kGroupThreads = kGroupWarps * 32;
constexpr int kAhead = 8;  // experts that a lane reads at once when it groups

// Which entries are grouped: here all of a pass. expert(i): the number of its expert on this rank, or -1.
struct AllEntries {
  const int32_t* experts;

  __device__ int expert(int i) const { return experts[i]; }
  __device__ int entry(int i) const { return i; }
};

// The same for rows in parts, of which only the first of each part exist.
struct EntriesOfParts {
  const int32_t* chosen;
  ExpertRange own;
  int32_t* numbers;   // receives expert() of all entries
  int part_entries;   // entries that a part has room for
  const int* before;  // [parts + 1], in shared memory: entries of the parts before

  __device__ int entry(int i) const {
    int part = 0;
    while (i >= before[part + 1]) ++part;
    return part * part_entries + i - before[part];
  }
  // Past the cache of the multiprocessor: another GPU may have written it.
  __device__ int expert(int i) const {
    const int at = entry(i), expert = __ldcg(chosen + at), number = expert - own.first;
    const int own_number = number >= 0 && number < own.count ? expert - own.zero : -1;
    numbers[at] = own_number;
    return own_number;
  }
};

// Entries in runs of whole warps, a run for each of the first warps of a block.
template <typename Entries>
struct Runs {
  const Entries& entries;
  int count, run, warps;

  __device__ Runs(const Entries& entries, int count)
      : entries(entries),
        count(count),
        run(max(1, (count + kGroupThreads - 1) / kGroupThreads) * 32),
        warps((count + run - 1) / run) {}

  // Entries of a warp's run, 32 at a time and in order: use(which, expert, lanes of the same expert).
  template <typename Use>
  __device__ void for_entries(int warp, const Use& use) const {
    const int lane = threadIdx.x % 32, begin = min(warp * run, count), end = min(begin + run, count);
    for (int at = begin; at < end; at += 32 * kAhead) {
      int some[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int entry = at + i * 32 + lane;
        some[i] = entry < end ? entries.expert(entry) : -1;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (at + i * 32 < end) use(at + i * 32 + lane, some[i], __match_any_sync(kAll, some[i]));
      }
    }
  }
};

// A thread's record of an expert: its number of entries, and the first of them in order.
__device__ void write_expert(const RouteArgs& args, int expert, int first, int count) {
  const int rank = cuda::block_sum_before<kGroupWarps>(count > 0 ? 1 : 0);
  const int experts = args.rule.own();
  if (expert >= experts) return;
  args.offsets[expert] = first;
  if (count > 0) args.touched[rank] = expert;
  if (expert != experts - 1) return;
  const int touched = rank + (count > 0 ? 1 : 0);
  args.offsets[experts] = first + count;
  *args.touched_count = touched;
  if (args.touched_total != nullptr) *args.touched_total += touched;
}

// By one block: a stable counting sort of `count` entries. counts: [kGroupWarps][own experts] in shared memory.
template <typename Entries>
__device__ void group_entries(const RouteArgs& args, const Entries& entries, int count, int* counts) {
  const int experts = args.rule.own(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Runs<Entries> runs(entries, count);
  int* own = counts + warp * experts;
  if (warp < runs.warps) {
    for (int e = lane; e < experts; e += 32) own[e] = 0;
    __syncwarp();
    runs.for_entries(warp, [&](int, int expert, unsigned same) {
      if (expert >= 0 && lane == __ffs(static_cast<int>(same)) - 1) own[expert] += __popc(same);
      __syncwarp();
    });
  }
  __syncthreads();
  // A thread an expert: where each warp's entries of it begin. All counts are read at once.
  const int e = static_cast<int>(threadIdx.x);
  int of_warps[kGroupWarps], total = 0;
#pragma unroll
  for (int w = 0; w < kGroupWarps; ++w) {
    of_warps[w] = e < experts && w < runs.warps ? counts[w * experts + e] : 0;
    total += of_warps[w];
  }
  const int first = cuda::block_sum_before<kGroupWarps>(total);
  int at = first;
#pragma unroll
  for (int w = 0; w < kGroupWarps; ++w) {
    if (e < experts && w < runs.warps) counts[w * experts + e] = at;
    at += of_warps[w];
  }
  write_expert(args, e, first, total);
  __syncthreads();
  runs.for_entries(warp, [&](int which, int expert, unsigned same) {
    int at = 0;
    if (expert >= 0) at = own[expert] + __popc(same & ((1u << lane) - 1));
    __syncwarp();
    if (expert >= 0) {
      args.entries[at] = entries.entry(which);
      if (lane == __ffs(static_cast<int>(same)) - 1) own[expert] += __popc(same);
    }
    __syncwarp();
  });
}

template <int kEach>
__global__ void __launch_bounds__(kRouteWarps * 32) route_kernel(const RouteArgs args) {
  __shared__ float choice[kRouteWarps][kEach * 32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRouteWarps + threadIdx.x / 32;
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  zero_counters(args, static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, int64_t{gridDim.x} * blockDim.x);
  if (row < args.rows) route_row<kEach>(args, row, choice[threadIdx.x / 32]);
}

template <int kEach>
__global__ void __launch_bounds__(kGroupThreads) route_and_group_kernel(const RouteArgs args) {
  extern __shared__ int counts[];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  __shared__ int32_t chosen[kRowsInOneKernel * kMaxExpertsPerRow];
  zero_counters(args, threadIdx.x, kGroupThreads);
  // Each warp's scores take the memory in which it counts afterwards.
  const int warp = threadIdx.x / 32;
  float* choice = reinterpret_cast<float*>(counts + warp * args.rule.experts);
  for (int64_t row = warp; row < args.rows; row += kGroupWarps) route_row<kEach>(args, row, choice, chosen);
  __syncthreads();
  group_entries(args, AllEntries{chosen}, args.rows * args.rule.top_k, counts);
}

__global__ void __launch_bounds__(kGroupThreads) group_kernel(const RouteArgs args) {
  extern __shared__ int counts[];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  group_entries(args, AllEntries{args.experts}, args.rows * args.rule.top_k, counts);
}

// args.rows: those of a part. counts_there: rows of each part that exist, or null if all do.
__global__ void __launch_bounds__(kGroupThreads)
    group_chosen_kernel(const RouteArgs args, const int32_t* chosen, const ExpertRange own, const int32_t* counts_there,
                        int parts) {
  extern __shared__ int counts[];
  __shared__ int before[kMostRowParts + 1];
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  if (threadIdx.x == 0) {
    before[0] = 0;
    for (int i = 0; i < parts; ++i) {
      // Clamped: after a fault of another GPU it may be anything.
      const int there = counts_there == nullptr ? args.rows : min(max(__ldcg(counts_there + i), 0), args.rows);
      before[i + 1] = before[i] + there * args.rule.top_k;
    }
  }
  __syncthreads();
  const EntriesOfParts entries{chosen, own, args.experts, args.rows * args.rule.top_k, before};
  group_entries(args, entries, before[parts], counts);
}

cuda::Launch group_launch(const RouterRule& rule) {
  return {.grid = dim3(1),
          .block = dim3(kGroupThreads),
          .shared_bytes = static_cast<size_t>(kGroupWarps) * rule.experts * sizeof(int),
          .early = true};
}

template <int kEach>
void launch_route(Stream& stream, const RouteArgs& args) {
  if (args.rows <= kRowsInOneKernel) {
    return cuda::launch(route_and_group_kernel<kEach>, group_launch(args.rule), stream, args);
  }
  cuda::launch(route_kernel<kEach>,
               {.grid = cuda::dims(divide_up(args.rows, kRouteWarps)), .block = dim3(kRouteWarps * 32), .early = true},
               stream, args);
  cuda::launch(group_kernel, group_launch(args.rule), stream, args);
}

void route_cuda(Stream& stream, const RouterRule& rule, const RouteCall& call, const Routing& out) {
  const RouteArgs args = route_args(rule, call, out);
  if (rule.experts <= 128) return launch_route<4>(stream, args);
  if (rule.experts <= 256) return launch_route<8>(stream, args);
  launch_route<16>(stream, args);
}

void group_chosen_cuda(Stream& stream, const ChosenRows& chosen, const ExpertRange& own, const Routing& out,
                       int64_t* touched_total) {
  RouterRule rule;
  rule.experts = static_cast<int32_t>(out.expert_count());
  rule.top_k = static_cast<int32_t>(out.top_k());
  RouteCall call;
  call.touched_total = touched_total;
  RouteArgs args = route_args(rule, call, out);
  args.rows = static_cast<int>(out.rows() / chosen.parts);
  cuda::launch(group_chosen_kernel, group_launch(rule), stream, args,
               static_cast<const int32_t*>(chosen.experts.as<int32_t>()), own, chosen.counts, chosen.parts);
}

}  // namespace

const RouterKernels RouterKernels::kCuda = {route_cuda, route_few_rows_cuda, group_chosen_cuda};

}  // namespace volley::ops
