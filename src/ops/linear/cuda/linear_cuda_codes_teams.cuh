// Few rows against 4-bit codes on sm_90a: teams of one or two warpgroups, for the same weight rows.
//
// Widening a block of 64 columns takes a warp longer than its bytes take to arrive, and the products of a row must be
// added in the order of k. So teams take chunks of k in turn: each widens its chunk in registers while others do the
// same, gets the sums so far from the team before, adds its products, and hands them on. A thread holds the same sums
// in every team, so that a warp waits for one warp alone.
#pragma once

#include "ops/linear/cuda/linear_cuda_codes_consume.cuh"

namespace volley::ops {

// Where sums wait on their way from a team to the next.
struct Relay {
  uint64_t* batons;  // barriers of all teams' warps: the sums that a warp waits for are there; one arrival each
  float4* sums;      // [four sums][thread of a team]
};

// Shape: kTeams, of kConsumers threads each; kChunk: blocks of k that a team takes at a time.
template <typename Shape>
struct Team {
  static constexpr int kWarps = Shape::kConsumers / 32;

  static __device__ int index() { return static_cast<int>(threadIdx.x) / Shape::kConsumers; }

  static __device__ void receive(const Relay& relay, uint32_t& parity, float (&sums)[Shape::kColumns / 2]) {
    hopper::barrier_wait(&relay.batons[threadIdx.x / 32], parity);
    parity ^= 1;
    const float4* from = relay.sums + threadIdx.x % Shape::kConsumers;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 8; ++i) {
      const float4 v = from[i * Shape::kConsumers];
      sums[4 * i] = v.x;
      sums[4 * i + 1] = v.y;
      sums[4 * i + 2] = v.z;
      sums[4 * i + 3] = v.w;
    }
  }

  // To the team whose index is one less, which has the chunk after this.
  static __device__ void hand_on(const Relay& relay, const float (&sums)[Shape::kColumns / 2]) {
    float4* to = relay.sums + threadIdx.x % Shape::kConsumers;
#pragma unroll
    for (int i = 0; i < Shape::kColumns / 8; ++i) {
      to[i * Shape::kConsumers] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    }
    __syncwarp();  // all lanes have stored
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) {
      hopper::barrier_arrive(&relay.batons[warp < kWarps ? warp + (Shape::kTeams - 1) * kWarps : warp - kWarps]);
    }
  }

  static __device__ __forceinline__ void advance(RingReader& reader, int blocks) {
    reader.stage += blocks;
    if (reader.stage >= Shape::kStages) {
      reader.stage -= Shape::kStages;
      reader.parity ^= 1;
    }
  }

  // kBlocks blocks from the reader's stage on; `receives`: before the products; `hands_on`: after them.
  template <int kBlocks, typename Codes>
  static __device__ __forceinline__ void add_blocks(const CodeRing& ring, const CodeKind& kind, const Relay& relay,
                                                    RingReader& reader, bool receives, bool hands_on, uint32_t& parity,
                                                    float (&sums)[Shape::kColumns / 2]) {
    using namespace hopper;
    uint32_t a[kBlocks][4][4], x[kBlocks], empty[kBlocks];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      Codes codes;
      load_block<Shape>(ring, kind, reader, codes);
      codes::widen(kind, codes, a[j]);
      x[j] = ring.x + reader.stage * (Shape::kStageBytes / 16);
      empty[j] = ring.empty + reader.stage * 8;
      advance(reader, 1);
    }
    if (receives) receive(relay, parity, sums);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        asm volatile("" : "+r"(a[j][k][0]), "+r"(a[j][k][1]), "+r"(a[j][k][2]), "+r"(a[j][k][3])::"memory");
      }
    }
    products_begin();
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        RegisterProduct<Shape::kColumns>::run(sums, a[j][k], matrix_descriptor(x[j] + k * 2));
      }
    }
    products_commit();
    products_wait<0>();
    if (hands_on) hand_on(relay, sums);  // first: another team waits for this
    if (threadIdx.x % 128 == 0) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) barrier_arrive(empty[j]);
    }
  }
};

// As consume_codes() of all k of a tile, for all teams: the sums are those of team 0.
template <typename Shape>
__device__ __forceinline__ void consume_codes_in_turn(const Ring& stages, const Relay& relay, const OwnCodes& own,
                                                      int count, float (&sums)[Shape::kColumns / 2]) {
  using namespace hopper;
  static_assert(Shape::kTeams > 1 && Shape::kCommon == Common::kNothing);
  // A team that has the sums of its chunk knows that the blocks before have arrived, so that a stage's barrier can be
  // no more than one phase behind the one that the team waits for next.
  static_assert(Shape::kStages >= Shape::kTeams * Shape::kChunk);
  constexpr int kChunk = Shape::kChunk;
  const int chunks = (count + kChunk - 1) / kChunk, left = chunks - 1 - Team<Shape>::index();
  if (left < 0) return;
  const int first = left % Shape::kTeams;  // the last chunk is team 0's
  codes::with_reading<Shape::kWide>(own.kind, [&](auto reading) {
    using Codes = codes::StoredCodes<decltype(reading)>;
    const CodeRing ring = {held_in_register(shared_address(stages.full)),
                           held_in_register(shared_address(stages.empty)),
                           held_in_register(descriptor_low(shared_address(stages.stages + Shape::kNSideAt))),
                           held_in_register(own.half + Codes::words_at(own.set)),
                           held_in_register(own.half + Codes::scales_at(own.kind, own.set))};
    RingReader reader;
    uint32_t parity = 0;
    Team<Shape>::advance(reader, first * kChunk);
#pragma unroll 1
    for (int chunk = first; chunk < chunks; chunk += Shape::kTeams) {
      if (const int blocks = count - chunk * kChunk; blocks >= kChunk) {
        Team<Shape>::template add_blocks<kChunk, Codes>(ring, own.kind, relay, reader, chunk > 0, chunk + 1 < chunks,
                                                        parity, sums);
      } else {  // the last chunk
#pragma unroll 1
        for (int i = 0; i < blocks; ++i) {
          Team<Shape>::template add_blocks<1, Codes>(ring, own.kind, relay, reader, chunk > 0 && i == 0, false, parity,
                                                     sums);
        }
      }
      Team<Shape>::advance(reader, (Shape::kTeams - 1) * kChunk);
    }
  });
}

}  // namespace volley::ops
