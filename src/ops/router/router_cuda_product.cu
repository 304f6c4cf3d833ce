// The router's product and its choices for few rows in one kernel on sm_90: a cluster of blocks, each with some
// experts, whose weights are on their way before the rows are there. mma.sync adds along k as linear()'s kernels do, in
// the same slices, so the logits have their bits. The first block gets all logits, chooses and groups.
#include <algorithm>
#include <iterator>

#include "base/math.h"
#include "device/cuda/block_sum.cuh"
#include "device/cuda/dependent.cuh"
#include "device/cuda/hopper.cuh"
#include "device/cuda/launch.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/cuda/linear_cuda_fragments.cuh"
#include "ops/router/router_cuda_rows.cuh"

namespace volley::ops {
namespace {

using namespace fragments;  // NOLINT: what this file is written in

constexpr int kBlocks = 8;                             // blocks of the cluster
constexpr int kGroupRows = 16;                         // experts that a product of a warp takes
constexpr int kThreads = 512, kWarps = kThreads / 32;  // a warp a row
constexpr int kAtOnce = 8;                             // entries
constexpr int kSliceBytes = kGroupRows * 128;          // a group's slice: 64 along k
static_assert(kWarps >= kRowsWithProduct);
constexpr int64_t kMostSharedBytes = 224 << 10;

struct ProductArgs {
  RouteArgs route;
  const uint8_t* weights;  // packed
  const uint8_t* h;        // [rows, k] bf16
  int k_blocks, split;
  int groups;  // groups of kGroupRows experts in each block; the last blocks may have fewer

  // Those of block `rank`.
  __device__ int groups_of(int rank) const {
    const int all = (route.rule.experts + kGroupRows - 1) / kGroupRows;
    return max(0, min(groups, all - rank * groups));
  }
};

// The shared memory of a block.
struct SharedPlan {
  int weights = 0;  // [groups][k blocks][16 rows][128 bytes], swizzled as in memory
  int h, sums, logits, bytes;
  int h_stride;

  // places: for rows, a multiple of the instruction's 8.
  __host__ __device__ SharedPlan(int groups, int k_blocks, int split, int experts, int places) {
    h_stride = k_blocks * 128 + 16;  // so that neighbouring rows begin in different banks
    h = groups * k_blocks * kSliceBytes;
    sums = h + places * h_stride;
    logits = sums + groups * (split - 1) * 32 * 8 * 4;
    bytes = logits + places * experts * 4 + 128;
  }
};

// Called by one thread: weights may be copied before earlier kernels have ended.
__device__ void copy_weights(const ProductArgs& args, int first_group, int groups, uint8_t* to, uint64_t* barrier) {
  using namespace hopper;
  const uint64_t policy = l2_evict_normal();
  barrier_expect(barrier, groups * args.k_blocks * kSliceBytes);
  for (int g = 0; g < groups; ++g) {
    const int row = (first_group + g) * kGroupRows;
    const uint8_t* from =
        args.weights + static_cast<int64_t>(row) / kPanelRows * args.k_blocks * kBlockBytes + row % kPanelRows * 128;
    for (int block = 0; block < args.k_blocks; ++block) {
      bulk_copy(to + (g * args.k_blocks + block) * kSliceBytes, from + block * kBlockBytes, kSliceBytes, barrier,
                policy);
    }
  }
}

// A block of 64 along k.
struct Fragments {
  uint32_t a[4][4];
  uint32_t b[2][2][4];  // right sides of 8 rows: two steps of k each
};

template <int kTiles>
__device__ void load_block(Fragments& f, uint32_t weights, uint32_t h, int h_stride) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) load_fragments(f.a[i], weights + swizzled(lane % 16, i * 2 + lane / 16));
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_fragments(f.b[j][i], h + (j * 8 + lane % 8) * h_stride + (i * 4 + lane / 8) * 16);
    }
  }
}

template <int kTiles>
__device__ void multiply_block(float (&sums)[2][4], const Fragments& f) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      multiply16(sums[j], f.a[i], f.b[j][i / 2][i % 2 * 2], f.b[j][i / 2][i % 2 * 2 + 1]);
  }
}

// Sums of 16 experts and 8 * kTiles rows over the blocks [begin, end) of k, in their order; the next block's operands
// are read meanwhile.
template <int kTiles>
__device__ void multiply_slice(float (&sums)[2][4], uint32_t weights, uint32_t h, int h_stride, int begin, int end) {
  Fragments even, odd;
  const auto load = [&](Fragments& f, int block) {
    if (block < end) load_block<kTiles>(f, weights + block * kSliceBytes, h + block * 128, h_stride);
  };
  load(even, begin);
#pragma unroll 1
  for (int block = begin; block < end; block += 2) {
    load(odd, block + 1);
    multiply_block<kTiles>(sums, even);
    load(even, block + 2);
    if (block + 1 < end) multiply_block<kTiles>(sums, odd);
  }
}

// Puts a few entries in the order of their experts. A thread has the experts threadIdx.x, threadIdx.x + kThreads, ….
// chosen: the expert of each entry, padded to a multiple of kAtOnce with a number that no expert has.
__device__ void group_few(const RouteArgs& args, const int32_t* chosen) {
  const int entries = args.rows * args.rule.top_k, experts = args.rule.own();
  __shared__ int carried;
  int before = 0;  // what earlier experts have: entries in the low half of the word, touched experts in the high one
  for (int first = 0; first < experts; first += kThreads) {
    const int e = first + static_cast<int>(threadIdx.x);
    int count = 0;
    for (int i = 0; i < entries; i += kAtOnce) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) count += chosen[i + j] == e ? 1 : 0;
    }
    const int own = (count > 0 ? 1 << 16 : 0) | count;
    const int all = before + cuda::block_sum_before<kWarps>(own);
    int at = all & 0xffff;
    if (e < experts) {
      args.offsets[e] = at;
      if (count > 0) args.touched[all >> 16] = e;
    }
    if (e == experts - 1) {
      const int touched = (all + own) >> 16;
      args.offsets[experts] = at + count;
      *args.touched_count = touched;
      if (args.touched_total != nullptr) *args.touched_total += touched;
    }
    if (count > 0) {
      for (int i = 0; i < entries; i += kAtOnce) {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (chosen[i + j] == e) args.entries[at++] = i + j;
        }
      }
    }
    if (first + kThreads >= experts) return;
    if (threadIdx.x == kThreads - 1) carried = all + own;
    __syncthreads();
    before = carried;
    __syncthreads();
  }
}

__device__ void send_logits(const float (&sums)[2][4], int tiles, int rows, int expert, int experts, uint32_t to) {
  const int lane = threadIdx.x % 32;
  for (int j = 0; j < tiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = j * 8 + lane % 4 * 2 + i % 2, e = expert + lane / 4 + i / 2 * 8;
      if (row >= rows || e >= experts) continue;
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to + (row * experts + e) * 4), "f"(sums[j][i]) : "memory");
    }
  }
}

template <int kEach, int kTiles>
__global__ void __launch_bounds__(kThreads) route_product_kernel(const __grid_constant__ ProductArgs args) {
#if __CUDA_ARCH__ >= 900
  using namespace hopper;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t weights_there, rows_there;
  __shared__ int32_t chosen[kRowsWithProduct * kMaxExpertsPerRow];
  const int experts = args.route.rule.experts, rows = args.route.rows, warp = threadIdx.x / 32;
  const int rank = static_cast<int>(blockIdx.x), first_group = rank * args.groups, groups = args.groups_of(rank);
  const SharedPlan plan(args.groups, args.k_blocks, args.split, experts, kTiles * 8);
  uint8_t* const shared = dynamic + (128 - hopper::shared_address(dynamic) % 128) % 128;
  if (threadIdx.x == 0) {
    barrier_init(&weights_there, 1);
    barrier_init(&rows_there, 1);
    barrier_init_fence();
    copy_weights(args, first_group, groups, shared, &weights_there);
  }
  cuda::launch_dependents();
  cluster_arrive_relaxed();  // this block runs
  __syncthreads();
  cuda::wait_for_predecessors();
  if (threadIdx.x == 0 && groups > 0) {  // otherwise the block could end before the copies
    const int bytes = args.k_blocks * 128;
    barrier_expect(&rows_there, rows * bytes);
    for (int r = 0; r < rows; ++r) {
      bulk_copy(shared + plan.h + r * plan.h_stride, args.h + static_cast<int64_t>(r) * bytes, bytes, &rows_there,
                l2_evict_normal());
    }
  }
  zero_counters(args.route, rank * kThreads + static_cast<int>(threadIdx.x), kBlocks * kThreads);
  cluster_wait();

  // A warp a group and slice.
  const int group = warp / args.split, slice = warp % args.split;
  float sums[2][4] = {};
  const bool multiplies = group < groups;
  if (multiplies) {
    barrier_wait(&weights_there, 0);
    barrier_wait(&rows_there, 0);
    const uint32_t base = hopper::shared_address(shared);
    multiply_slice<kTiles>(sums, base + group * args.k_blocks * kSliceBytes, base + plan.h, plan.h_stride,
                           slice * args.k_blocks / args.split, (slice + 1) * args.k_blocks / args.split);
    if (slice == 1) {
      auto* left = reinterpret_cast<float4*>(shared + plan.sums) + group * 64 + threadIdx.x % 32;
      for (int j = 0; j < kTiles; ++j) left[j * 32] = {sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
    }
  }
  __syncthreads();
  if (multiplies && slice == 0) {
    if (args.split == 2) {
      const auto* left = reinterpret_cast<const float4*>(shared + plan.sums) + group * 64 + threadIdx.x % 32;
      for (int j = 0; j < kTiles; ++j) {
        const float4 other = left[j * 32];
        sums[j][0] += other.x;
        sums[j][1] += other.y;
        sums[j][2] += other.z;
        sums[j][3] += other.w;
      }
    }
    send_logits(sums, kTiles, rows, (first_group + group) * kGroupRows, experts,
                shared_address_in(shared + plan.logits, 0));
  }
  cluster_sync();  // all logits are in the first block
  if (rank != 0) return;
  RouteArgs route = args.route;
  route.logits = reinterpret_cast<const float*>(shared + plan.logits);
  if (warp < rows) {
    // A warp's scores by group take the place of the logits that they are made of.
    route_row<kEach>(route, warp, reinterpret_cast<float*>(shared + plan.logits) + warp * experts, chosen);
  }
  const int entries = rows * route.rule.top_k;
  if (threadIdx.x < kAtOnce && entries + threadIdx.x < std::size(chosen)) chosen[entries + threadIdx.x] = -2;
  __syncthreads();
  group_few(route, chosen);
#else
  __trap();
#endif
}

template <int kEach>
void launch(Stream& stream, const ProductArgs& args, size_t shared_bytes) {
  const cuda::Launch how = {
      .grid = dim3(kBlocks), .block = dim3(kThreads), .shared_bytes = shared_bytes, .cluster = kBlocks, .early = true};
  if (args.route.rows <= 8) return cuda::launch(route_product_kernel<kEach, 1>, how, stream, args);
  cuda::launch(route_product_kernel<kEach, 2>, how, stream, args);
}

}  // namespace

bool route_few_rows_cuda(Stream& stream, const RouterRule& rule, const LinearWeight& router, const Input& h,
                         const RouteCall& call, const Routing& out) {
  const int64_t rows = out.rows(), groups = divide_up(rule.experts, kBlocks * kGroupRows);
  if (rows == 0 || rows > kRowsWithProduct ||
      linear_cuda_kernel(stream.gpu(), router, h.values.dtype) != LinearKernel::kTiles ||
      router.format.code != DType::kBF16 || router.k % kBlockK != 0) {
    return false;
  }
  ProductArgs args;
  args.route = route_args(rule, call, out);
  args.weights = static_cast<const uint8_t*>(router.packed.data());
  args.h = static_cast<const uint8_t*>(h.values.data);
  args.k_blocks = static_cast<int>(linear_cuda_k_blocks(router.k));
  args.split = LinearCudaPlan::make(router.n, router.k, router.layout, rows).split;
  args.groups = static_cast<int>(groups);
  const SharedPlan plan(args.groups, args.k_blocks, args.split, rule.experts, rows <= 8 ? 8 : kRowsWithProduct);
  if (args.groups * args.split > kWarps || plan.bytes > kMostSharedBytes) return false;
  const auto bytes = static_cast<size_t>(plan.bytes);
  if (rule.experts <= 128) {
    launch<4>(stream, args, bytes);
  } else if (rule.experts <= 256) {
    launch<8>(stream, args, bytes);
  } else {
    launch<16>(stream, args, bytes);
  }
  return true;
}

}  // namespace volley::ops
