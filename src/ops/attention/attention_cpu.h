// Between the plan of a CPU attention call (attention_cpu.cc) and its kernels, one set per instruction set.
//
// The unit of arithmetic is a *query row*: one head of one row of the batch. Kernels work on up to kJobRows query rows
// of the same KV head, which share the loads of K and V; a query row's result does not depend on the others.
//
// Functions here are static: other files must not call the copy that a file compiled for AVX-512 makes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/attention.h"

namespace volley::ops {

inline constexpr int kJobRows = 12;
inline constexpr int kMaxKeyDim = kMaxLatentKey, kMaxValueDim = kMaxLatent;
inline constexpr int kChunkTiles = kAttentionChunk / kKvTile;

// A partial result of a query row, fp32: [0] maximum of the scores in units of log2, [1] sum of the probabilities
// 2^(score - maximum), [kPartialHeader …] their product with V, not yet divided by the sum. A row that has seen nothing
// yet has maximum -infinity and zeros.
inline constexpr int kPartialHeader = 16;
inline constexpr int kMaxPartial = kPartialHeader + kMaxValueDim;
static inline int partial_floats(int value_dim) {
  return kPartialHeader + value_dim;
}

// Floats between the score rows of a job: not a power of two, which would put the rows into the same cache sets.
static inline int score_stride(int n_tiles) {
  return n_tiles * kKvTile + 16;
}
inline constexpr int kMaxScoreStride = kAttentionChunk + 16;

// Some query rows of one KV head over some tiles of one chunk.
struct ChunkJob {
  const std::byte* const* k_tiles = nullptr;  // [n_tiles], ascending positions
  const std::byte* const* v_tiles = nullptr;
  int n_tiles = 0;
  int32_t position = 0;             // cache position of the first tile's start
  int head_dim = 0, value_dim = 0;  // elements of K and of V
  float scale_log2 = 0;             // scale * log2(e)
  int rows = 0;                     // 1 … kJobRows
  const std::byte* q[kJobRows] = {};
  int32_t begin[kJobRows] = {}, end[kJobRows] = {};  // visible positions; may lie outside the tiles, in part or whole
  float* partials = nullptr;                         // out: [rows][partial_floats(value_dim)]
  float* scores = nullptr;                           // workspace: [kJobRows][kMaxScoreStride], 64-byte aligned
};

// Tiles [begin, end) of the job in which the row sees any position; begin == end when it sees none.
struct TileRange {
  int begin = 0;
  int end = 0;
};
static inline TileRange visible_tiles(const ChunkJob& job, int row) {
  const int32_t stop = job.position + job.n_tiles * kKvTile;
  const int32_t begin = job.begin[row] > job.position ? job.begin[row] : job.position;
  const int32_t end = job.end[row] < stop ? job.end[row] : stop;
  if (begin >= end) return {};
  return {(begin - job.position) / kKvTile, (end - job.position + kKvTile - 1) / kKvTile};
}

// Lanes of the tile at `tile_position` that the row sees, bit i for position tile_position + i.
static inline uint32_t visible_lanes(int32_t tile_position, int32_t begin, int32_t end) {
  const int32_t from = begin > tile_position ? begin - tile_position : 0;
  const int32_t to = end < tile_position + kKvTile ? end - tile_position : kKvTile;
  if (from >= to) return 0;
  return ((1u << to) - 1u) & ~((1u << from) - 1u);
}

struct ChunkKernels {
  void (*chunk)(const ChunkJob& job) = nullptr;
  // running = running merged with the partial of the next chunk.
  void (*fold)(float* running, const float* chunk, int value_dim) = nullptr;
  // out = running / sum * scale, rounded to the dtype of the call.
  void (*finish)(const float* running, float scale, void* out, int value_dim) = nullptr;
  bool (*all_finite)(const std::byte* tile, int64_t bytes) = nullptr;
  // The bf16 of n e4m3 codes, in order; n is a multiple of 32.
  void (*widen)(const std::byte* codes, int64_t n, std::byte* to) = nullptr;
  bool avx512 = false;  // compiled for AVX-512
};

// dtype: attention_dtype() of K and V.
ChunkKernels attention_kernels_portable(DType dtype);  // attention_cpu_simd.cc
#if defined(__x86_64__)
void attention_chunk_avx512bf16(const ChunkJob& job);  // attention_cpu_avx512bf16.cc
#endif

}  // namespace volley::ops
