// The loop of the tile kernels of sm_90a where the M side are codes: each warp widens its 16 rows in registers while
// the matrix unit multiplies the rows widened before.
#pragma once

#include "ops/linear/cuda/linear_cuda_codes_products.cuh"
#include "ops/linear/cuda/linear_cuda_ring.cuh"
#include "ops/linear/cuda/linear_cuda_widen_bytes.cuh"

namespace volley::ops {

// The operands of a warp.
struct OwnCodes {
  CodeKind kind;
  uint32_t half;  // the address of its half in the first stage; of e4m3 that of its panel
  int set;        // which 16 rows of that half or panel
};

// Addresses that the loop keeps.
struct CodeRing {
  uint32_t full, empty;    // barriers
  uint32_t x;              // the first stage's x, for the matrix unit
  uint32_t words, scales;  // in it, that this lane loads
};

// The codes at the reader's stage, as soon as they have arrived. kSecond: it is the second of two blocks.
template <typename Shape, bool kSecond = false, typename Codes>
__device__ __forceinline__ void load_block(const CodeRing& ring, const CodeKind& kind, const RingReader& reader,
                                           Codes& codes) {
  hopper::barrier_wait(ring.full + reader.stage * 8, reader.parity);
  if constexpr (requires { Shape::kThreadsCopy; }) hopper::shared_writes_to_units();  // rows of x that threads copied
  const uint32_t offset = reader.stage * Shape::kStageBytes;
  if constexpr (requires { Codes::kShares; }) {
    codes.template load<kSecond>(kind, ring.words + offset, ring.scales + offset);
  } else {
    codes.load(kind, ring.words + offset, ring.scales + offset);
  }
}

template <typename Shape>
__device__ __forceinline__ void give_back_codes(const CodeRing& ring, RingReader& reader) {
  if (threadIdx.x % 128 == 0 && reader.held >= 0) {
    if constexpr (Shape::kCommon != Common::kNothing) {
      for (uint32_t block : {0u, 1u}) hopper::barrier_arrive_at(ring.empty + reader.held * 8, block);
    } else {
      hopper::barrier_arrive(ring.empty + reader.held * 8);
    }
  }
}

// Whether codes are loaded while the block before is multiplied. With many sums there are no registers for it, and the
// products take longer than widening.
template <typename Shape>
constexpr bool kLoadsAhead = Shape::kColumns < 128;

// The block of k at the reader's stage, whose codes are in `codes`; then loads those of the block after it, if there is
// one, while the matrix unit multiplies. a: registers that the block before the last has done with. kSecond: it is the
// second of two blocks.
template <typename Shape, bool kSecond, typename Codes>
__device__ __forceinline__ void multiply_block(const CodeRing& ring, const CodeKind& kind, RingReader& reader,
                                               Codes& codes, bool is_last, uint32_t (&a)[4][4],
                                               float (&sums)[Shape::kColumns / 2]) {
  using namespace hopper;
  if constexpr (!kLoadsAhead<Shape>) load_block<Shape, kSecond>(ring, kind, reader, codes);
  codes::widen(kind, codes, a);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])::"memory");
  }
  products_begin();
  const uint32_t x = ring.x + reader.stage * (Shape::kStageBytes / 16);
#pragma unroll
  for (int k = 0; k < 4; ++k) RegisterProduct<Shape::kColumns>::run(sums, a[k], matrix_descriptor(x + k * 2));
  products_commit();
  const int stage = reader.stage;
  if (++reader.stage == Shape::kStages) {
    reader.stage = 0;
    reader.parity ^= 1;
  }
  if (kLoadsAhead<Shape> && !is_last) load_block<Shape, !kSecond>(ring, kind, reader, codes);
  products_wait<1>();  // the block before: its stage, and the registers that the next is widened to
  give_back_codes<Shape>(ring, reader);
  reader.held = stage;
}

// Adds the products of the next `count` blocks of k, as consume() does with bf16. For loops: with several readings in
// one, the compiler makes each product wait for the one before.
template <typename Shape, typename Reading>
__device__ __forceinline__ void consume_codes_as(const Ring& stages, RingReader& reader, const OwnCodes& own, int count,
                                                 float (&sums)[Shape::kColumns / 2]) {
  using namespace hopper;
  if (count == 0) return;
  codes::StoredCodes<Reading> codes;
  const CodeRing ring = {held_in_register(shared_address(stages.full)), held_in_register(shared_address(stages.empty)),
                         held_in_register(descriptor_low(shared_address(stages.stages + Shape::kNSideAt))),
                         held_in_register(own.half + codes.words_at(own.set)),
                         held_in_register(own.half + codes.scales_at(own.kind, own.set))};
  uint32_t even[4][4], odd[4][4];
  if constexpr (kLoadsAhead<Shape>) load_block<Shape>(ring, own.kind, reader, codes);
#pragma unroll 1
  for (int i = 0; i < count; i += 2) {
    multiply_block<Shape, false>(ring, own.kind, reader, codes, i + 1 == count, even, sums);
    if (i + 1 < count) multiply_block<Shape, true>(ring, own.kind, reader, codes, i + 2 >= count, odd, sums);
  }
  products_wait<0>();
}

template <typename Shape>
__device__ __forceinline__ void consume_codes(const Ring& stages, RingReader& reader, const OwnCodes& own, int count,
                                              float (&sums)[Shape::kColumns / 2]) {
  codes::with_reading<Shape::kWide>(
      own.kind, [&](auto reading) { consume_codes_as<Shape, decltype(reading)>(stages, reader, own, count, sums); });
}

}  // namespace volley::ops
