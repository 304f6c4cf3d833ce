// FP8 with scales of blocks: 32 outputs by 128 columns of a weight, a row by 128 columns of x. A stage of the ring is
// such a block of k: its products are added by the matrix unit, and their sum goes with the product of both scales into
// a second, fp32, sum, one block after the other.
//
// Weight scales wait in registers, a lane of a warp for each of 32 blocks of k. Scales of rows come with the rows: the
// thread that copies these copies them, too.
#pragma once

#include "ops/linear/cuda/linear_cuda_ring.cuh"
#include "ops/linear/cuda/linear_cuda_tile_shape.cuh"

namespace volley::ops {

// As produce_x(), with the rows' scales of each block. Scales of rows that do not exist are arbitrary: the sums that
// use them are never stored.
template <typename Shape>
__device__ void produce_scaled_x(const Ring& ring, const CUtensorMap* x_map, const TileArgs& args, Slice slice,
                                 int row) {
  using namespace hopper;
  prefetch_tensor_map(x_map);
  const uint64_t policy = l2_evict_last();
  const int scale_bytes = min(Shape::kRows, args.row_scales_stride - row) * 4;
  const auto copy = [&](int block, int stage) {
    const int k_block = slice.begin + block;
    uint8_t* const to = ring.stages + stage * Shape::kStageBytes + Shape::kWeightBytes;
    uint8_t* const scales_to = ring.stages + Shape::kScalesAt + stage * Shape::kStageScaleBytes;
    barrier_expect(&ring.full[stage], Shape::kRows * 128 + scale_bytes);
    tensor_copy(to, x_map, k_block * Shape::kBlockColumns, row, &ring.full[stage], policy);
    bulk_copy(scales_to, args.row_scales + static_cast<int64_t>(k_block) * args.row_scales_stride + row, scale_bytes,
              &ring.full[stage], policy);
  };
  cuda::wait_for_predecessors();
  const int ahead = min(Shape::kStages, slice.count);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) copy(i, i);
  refill<Shape>(ring, ahead, slice.count, copy);
}

// The sums of the slice. Each warp gives a stage back when it has read the scales there and its own products are done;
// other warpgroups multiply meanwhile.
template <typename Shape>
__device__ __forceinline__ void consume_blocks(const Ring& ring, const TileArgs& args, Slice slice, int half,
                                               float (&sums)[Shape::kColumns / 2]) {
  using namespace hopper;
  constexpr int kLanes = 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t group = threadIdx.x / 128 * static_cast<uint32_t>(kBlockBytes);  // 64 rows of the M side
  const uint32_t a = held_in_register(descriptor_low(shared_address(ring.stages) + Shape::kMSideAt + group));
  const uint32_t b = held_in_register(descriptor_low(shared_address(ring.stages + Shape::kNSideAt)));
  const uint32_t full = held_in_register(shared_address(ring.full));
  const uint32_t empty = held_in_register(shared_address(ring.empty));
  // Each two warps have 32 outputs; the last two may have none.
  const int own_half = half + static_cast<int>(threadIdx.x) / 64;
  const float* const weight_scales = args.weight_scales + static_cast<int64_t>(own_half) * args.k_blocks + slice.begin;
  const auto weight_scales_from = [&](int block) {
    return own_half < args.halves && block + lane < slice.count ? weight_scales[block + lane] : 0.0f;
  };
  float held = weight_scales_from(0), next = weight_scales_from(kLanes);
  int stage = 0;
  uint32_t parity = 0;
  float products[Shape::kColumns / 2];
#pragma unroll
  for (float& product : products) product = 0;
#pragma unroll 1
  for (int i = 0; i < slice.count; ++i) {
    if (i > 0 && i % kLanes == 0) {
      held = next;
      next = weight_scales_from(i + kLanes);
    }
    const float weight_scale = __shfl_sync(0xffffffff, held, i % kLanes);
    const uint32_t offset = stage * (Shape::kStageBytes / 16);
    barrier_wait(full + stage * 8, parity);
    sums_settle(products);
    products_begin();
    multiply<Shape::kColumns, Shape::kProductLimit, Operand::kE4M3, false>(products, matrix_descriptor(a + offset),
                                                                           matrix_descriptor(b + offset));
#pragma unroll
    for (int k = 1; k < 4; ++k) {
      multiply<Shape::kColumns, Shape::kProductLimit, Operand::kE4M3>(products, matrix_descriptor(a + offset + k * 2),
                                                                      matrix_descriptor(b + offset + k * 2));
    }
    products_commit();
    products_wait<0>();
    sums_settle(products);
    const auto* const row_scales =
        reinterpret_cast<const float2*>(ring.stages + Shape::kScalesAt + stage * Shape::kStageScaleBytes) + lane % 4;
#pragma unroll
    for (int j = 0; j < Shape::kColumns / 8; ++j) {
      const float2 rows = row_scales[j * 4];  // scales of the thread's two columns of these eight
      const float2 scales = {__fmul_rn(weight_scale, rows.x), __fmul_rn(weight_scale, rows.y)};
      float* const to = sums + j * 4;
      const float* const of = products + j * 4;
      to[0] = fmaf(of[0], scales.x, to[0]);
      to[1] = fmaf(of[1], scales.y, to[1]);
      to[2] = fmaf(of[2], scales.x, to[2]);
      to[3] = fmaf(of[3], scales.y, to[3]);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage * 8);
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

}  // namespace volley::ops
