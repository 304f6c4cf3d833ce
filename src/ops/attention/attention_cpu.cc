#include "ops/attention/attention_cpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numbers>
#include <string>

#include "device/cpu/thread_pool.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/attention_plan.h"
#include "ops/cpu_features.h"
#include "ops/paged_kv/cpu_tile.h"

namespace volley::ops {
namespace {

// The least multiply-adds of a task, about 2 µs: below that, waking a thread costs more than it saves.
constexpr int64_t kMacsPerTask = 200'000;

ChunkKernels choose_kernels(DType dtype) {
  ChunkKernels kernels = attention_kernels_portable(dtype);
#if defined(__x86_64__)
  // Also asks Highway's choice, so that a test that narrows it to a lower instruction set gets that one.
  if (dtype == DType::kBF16 && kernels.avx512 && cpu_has_avx512_bf16()) {
    kernels.chunk = attention_chunk_avx512bf16;
  }
#endif
  return kernels;
}

// The query rows of one block and KV head.
class BlockRun {
 public:
  BlockRun(const AttentionCall& call, const ChunkKernels& kernels, const AttentionBlock& block, int32_t kv_head)
      : args_(call.args),
        page_table_(call.view.page_table),
        kernels_(kernels),
        segment_(call.rows.segments[block.segment]),
        tiles_(args_.kv),
        group_(args_.heads / args_.kv.kv_heads),
        kv_head_(kv_head),
        rows_(block.end - block.begin) {
    tiles_.dtype = attention_dtype(args_.kv.dtype);
    const int32_t* begin = call.view.begin.as<int32_t>();
    const int32_t* end = call.view.end.as<int32_t>();
    for (int i = 0; i < rows_; ++i) {
      const int32_t row = segment_.row_begin + (block.begin + i) / group_;
      element_[i] = int64_t{row} * args_.heads + kv_head * group_ + (block.begin + i) % group_;
      begin_[i] = begin[row];
      end_[i] = end[row];
    }
  }

  bool sees(int i, int32_t chunk) const {
    return begin_[i] < (chunk + 1) * kAttentionChunk && end_[i] > chunk * kAttentionChunk;
  }

  // Partial results of one chunk: [rows][partial_floats]; undefined for rows that see none of it. made:
  // made_tile_bytes() of memory, or null if kernels take the cache's tiles.
  void run_chunk(int32_t chunk, std::byte* made, float* partials) const;

  // Chunks are folded in ascending order, then finished.
  void fold_chunk(int32_t chunk, const float* partials, float* running) const {
    const int stride = partial_floats(args_.kv.value_dim());
    for (int i = 0; i < rows_; ++i) {
      if (sees(i, chunk)) kernels_.fold(running + i * stride, partials + i * stride, args_.kv.value_dim());
    }
  }
  void start(float* running) const {
    const int stride = partial_floats(args_.kv.value_dim());
    std::fill(running, running + rows_ * stride, 0.0f);
    for (int i = 0; i < rows_; ++i) running[i * stride] = -std::numeric_limits<float>::infinity();
  }
  void finish(float* running) const {
    const int stride = partial_floats(args_.kv.value_dim());
    if (args_.sinks.data != nullptr) fold_sinks(running);
    for (int i = 0; i < rows_; ++i) {
      kernels_.finish(running + i * stride, args_.kv.v_scale, row_of(args_.out, i), args_.kv.value_dim());
    }
  }

 private:
  // A sink is treated as a chunk of one position without V, after all others.
  void fold_sinks(float* running) const {
    alignas(64) float sink[kMaxPartial] = {0.0f, 1.0f};
    for (int i = 0; i < rows_; ++i) {
      sink[0] = args_.sinks.as<float>()[element_[i] % args_.heads] * std::numbers::log2e_v<float>;
      kernels_.fold(running + i * partial_floats(args_.kv.value_dim()), sink, args_.kv.value_dim());
    }
  }
  // Query row i of q or of the output.
  std::byte* row_of(const TensorView& tensor, int i) const {
    const int64_t width = &tensor == &args_.q ? args_.kv.head_dim : args_.kv.value_dim();
    return static_cast<std::byte*>(tensor.data) + element_[i] * width * static_cast<int64_t>(dtype_size(tensor.dtype));
  }
  int64_t value_tile_bytes() const {
    return int64_t{kKvTile} * tiles_.value_dim() * static_cast<int64_t>(dtype_size(tiles_.dtype));
  }
  void find_tiles(int32_t first_tile, int n_tiles, const std::byte** k, const std::byte** v) const;
  void make_tiles(int n_tiles, std::byte* made, const std::byte** k, const std::byte** v) const;
  bool hidden_values_finite(const ChunkJob& job) const;
  void run_row_alone(const ChunkJob& all, int i, float* partial) const;

  const Attention& args_;
  const TensorView& page_table_;
  const ChunkKernels& kernels_;
  const RowSegment& segment_;
  KvLayer tiles_;  // args_.kv, as the kernels get its tiles
  int32_t group_;
  int32_t kv_head_;
  int rows_;
  std::array<int64_t, kMaxBlockRows> element_;  // row * heads + head of the query row
  std::array<int32_t, kMaxBlockRows> begin_, end_;
};

void BlockRun::find_tiles(int32_t first_tile, int n_tiles, const std::byte** k, const std::byte** v) const {
  const KvLayer& kv = args_.kv;
  const int32_t tiles_per_page = kv.page_size / kKvTile;
  const int64_t bytes = kv_tile_bytes(kv);
  const int32_t* pages = page_table_.as<int32_t>() + segment_.slot * page_table_.dim(1);
  int32_t page_index = first_tile / tiles_per_page;
  int32_t in_page = first_tile % tiles_per_page;
  for (int i = 0; i < n_tiles; ++page_index, in_page = 0) {
    VOLLEY_CHECK_GE(pages[page_index], 0);
    const HeadTiles head = kv_head_tiles(kv, pages[page_index], kv_head_);
    for (; in_page < tiles_per_page && i < n_tiles; ++in_page, ++i) {
      k[i] = head.k + in_page * bytes;
      v[i] = head.v == nullptr ? nullptr : head.v + in_page * bytes;
    }
  }
}

// The V tile that lies in a K tile.
void transpose_tile(const std::byte* k_tile, const KvLayer& kv, std::byte* v_tile) {
  const auto* k = reinterpret_cast<const uint32_t*>(k_tile);
  auto* v = reinterpret_cast<uint32_t*>(v_tile);
  const int n = kv.v_in_k;
  if (kv.dtype == DType::kF32) {
    for (int i = 0; i < n; ++i) {
      for (int p = 0; p < kKvTile; ++p) v[p * n + i] = k[i * kKvTile + p];
    }
    return;
  }
  // A word of K has two elements of one position, a word of V one element of two positions.
  for (int i = 0; i < n; i += 2, k += kKvTile) {
    for (int p = 0; p < kKvTile; p += 2) {
      uint32_t* const pair = v + p / 2 * n + i;
      pair[0] = (k[p] & 0x0000ffffu) | k[p + 1] << 16;
      pair[1] = k[p] >> 16 | (k[p + 1] & 0xffff0000u);
    }
  }
}

// Makes K and V of a chunk in the form that kernels take, where the cache has another: once for all rows of a block.
void BlockRun::make_tiles(int n_tiles, std::byte* made, const std::byte** k, const std::byte** v) const {
  const int64_t bytes = kv_tile_bytes(tiles_), value_bytes = value_tile_bytes();
  const bool widens = tiles_.dtype != args_.kv.dtype;
  const auto widen = [&](const std::byte** tiles) {
    for (int i = 0; i < n_tiles; ++i, made += bytes) {
      kernels_.widen(tiles[i], int64_t{kKvTile} * tiles_.head_dim, made);
      tiles[i] = made;
    }
  };
  if (widens) widen(k);
  if (tiles_.v_in_k == 0) return widen(v);
  for (int i = 0; i < n_tiles; ++i, made += value_bytes) {
    transpose_tile(k[i], tiles_, made);
    v[i] = made;
  }
}

// Whether V is finite at all of the tile's positions that some, but not all, of the rows see. If so, a probability of
// zero hides a position: zero times its V adds nothing.
bool BlockRun::hidden_values_finite(const ChunkJob& job) const {
  const int32_t all_begin = *std::max_element(begin_.begin(), begin_.begin() + rows_);
  const int32_t all_end = *std::min_element(end_.begin(), end_.begin() + rows_);
  const int64_t bytes = value_tile_bytes();
  for (int t = 0; t < job.n_tiles; ++t) {
    const int32_t position = job.position + t * kKvTile;
    const bool seen_by_all = position >= all_begin && position + kKvTile <= all_end;
    if (!seen_by_all && !kernels_.all_finite(job.v_tiles[t], bytes)) return false;
  }
  return true;
}

void copy_visible(const std::byte* tile, const KvLayer& kv, uint32_t lanes, std::byte* to) {
  const int pair = kv.dtype == DType::kBF16 ? 2 : 1;  // positions interleaved in a row of the V tile
  const size_t size = dtype_size(kv.dtype), width = static_cast<size_t>(kv.value_dim());
  std::memset(to, 0, kKvTile * width * size);
  for (int p = 0; p < kKvTile; ++p) {
    if ((lanes >> p & 1u) == 0) continue;
    for (size_t i = 0; i < width; ++i) {
      const size_t at = ((static_cast<size_t>(p / pair) * width + i) * pair + p % pair) * size;
      std::memcpy(to + at, tile + at, size);
    }
  }
}

// A position that a row does not see holds an infinity or NaN (a neighbour's overflow, say): zero times that would be
// NaN, so the row runs over copies of its first and last V tile without the positions it does not see.
void BlockRun::run_row_alone(const ChunkJob& all, int i, float* partial) const {
  alignas(64) std::byte copies[2][kKvTile * kMaxValueDim * sizeof(float)];
  const std::byte* v_tiles[kChunkTiles];
  ChunkJob job = all;
  job.rows = 1;
  job.q[0] = row_of(args_.q, i);
  job.begin[0] = begin_[i];
  job.end[0] = end_[i];
  job.partials = partial;
  const TileRange range = visible_tiles(job, 0);
  if (range.begin == range.end) return;
  job.position += range.begin * kKvTile;
  job.n_tiles = range.end - range.begin;
  job.k_tiles += range.begin;
  std::copy_n(all.v_tiles + range.begin, job.n_tiles, v_tiles);
  for (const int t : {0, job.n_tiles - 1}) {
    const uint32_t lanes = visible_lanes(job.position + t * kKvTile, begin_[i], end_[i]);
    std::byte* copy = copies[t == 0 ? 0 : 1];
    copy_visible(all.v_tiles[range.begin + t], tiles_, lanes, copy);
    v_tiles[t] = copy;
  }
  job.v_tiles = v_tiles;
  kernels_.chunk(job);
}

void BlockRun::run_chunk(int32_t chunk, std::byte* made, float* partials) const {
  alignas(64) float scores[kJobRows * kMaxScoreStride];
  const std::byte *k_tiles[kChunkTiles], *v_tiles[kChunkTiles];
  const int32_t begin = *std::min_element(begin_.begin(), begin_.begin() + rows_);
  const int32_t end = *std::max_element(end_.begin(), end_.begin() + rows_);
  const int32_t first_tile = std::max(begin, chunk * kAttentionChunk) / kKvTile;
  const int32_t end_tile = (std::min(end, (chunk + 1) * kAttentionChunk) + kKvTile - 1) / kKvTile;
  ChunkJob job;
  job.n_tiles = end_tile - first_tile;
  job.position = first_tile * kKvTile;
  job.head_dim = args_.kv.head_dim;
  job.value_dim = args_.kv.value_dim();
  job.scale_log2 = args_.scale * std::numbers::log2e_v<float> * args_.kv.k_scale;
  job.k_tiles = k_tiles;
  job.v_tiles = v_tiles;
  job.scores = scores;
  find_tiles(first_tile, job.n_tiles, k_tiles, v_tiles);
  if (made != nullptr) make_tiles(job.n_tiles, made, k_tiles, v_tiles);
  const int stride = partial_floats(job.value_dim);
  if (!hidden_values_finite(job)) {
    for (int i = 0; i < rows_; ++i) run_row_alone(job, i, partials + i * stride);
    return;
  }
  for (int first = 0; first < rows_; first += kJobRows) {
    job.rows = std::min(kJobRows, rows_ - first);
    for (int i = 0; i < job.rows; ++i) {
      job.q[i] = row_of(args_.q, first + i);
      job.begin[i] = begin_[first + i];
      job.end[i] = end_[first + i];
    }
    job.partials = partials + first * stride;
    kernels_.chunk(job);
  }
}

// A task: one block and KV head over all its chunks.
void run_whole(const AttentionCall& call, const ChunkKernels& kernels, const AttentionBlock& block, int32_t kv_head,
               std::byte* made) {
  alignas(64) float running[kMaxBlockRows * kMaxPartial];
  alignas(64) float partials[kMaxBlockRows * kMaxPartial];
  const BlockRun run(call, kernels, block, kv_head);
  run.start(running);
  for (int32_t chunk = block.chunk_begin; chunk < block.chunk_end; ++chunk) {
    run.run_chunk(chunk, made, partials);
    run.fold_chunk(chunk, partials, running);
  }
  run.finish(running);
}

// Memory for the tiles of a chunk that are made, a piece for each thread; null if none are.
class MadeTiles {
 public:
  MadeTiles(const KvLayer& kv, int threads, Arena& scratch) : bytes_(made_tile_bytes(kv)) {
    if (bytes_ > 0) base_ = scratch.take(DType::kU8, {threads, bytes_}).as<std::byte>();
  }
  std::byte* of(int thread) const { return bytes_ > 0 ? base_ + thread * bytes_ : nullptr; }

 private:
  int64_t bytes_;
  std::byte* base_ = nullptr;
};

// Where a split call stores the partial results of (block, KV head, chunk).
struct SplitScratch {
  float* base;
  int stride;
  float* at(const AttentionBlock& block, int32_t kv_head, int32_t chunk) const {
    const int64_t chunks = block.chunk_end - block.chunk_begin;
    const int64_t index = kv_head * chunks + chunk - block.chunk_begin;
    return base + (block.partial_offset + index * (block.end - block.begin)) * stride;
  }
};

void run_split(Stream& stream, const AttentionCall& call, const ChunkKernels& kernels, const AttentionPlan& plan,
               const MadeTiles& made, Arena& scratch) {
  const KvLayer& kv = call.args.kv;
  const int stride = partial_floats(kv.value_dim());
  const SplitScratch partials{scratch.take(DType::kF32, {plan.partials, stride}).as<float>(), stride};
  int64_t max_chunks = 0;
  for (const AttentionBlock& block : plan.blocks) {
    max_chunks = std::max<int64_t>(max_chunks, block.chunk_end - block.chunk_begin);
  }
  const int64_t items = static_cast<int64_t>(plan.blocks.size()) * kv.kv_heads;
  stream.pool().parallel_for(items * max_chunks, [&](int64_t task, int thread) {
    const AttentionBlock& block = plan.blocks[task / max_chunks / kv.kv_heads];
    const auto kv_head = static_cast<int32_t>(task / max_chunks % kv.kv_heads);
    const auto chunk = static_cast<int32_t>(block.chunk_begin + task % max_chunks);
    if (chunk >= block.chunk_end) return;
    BlockRun(call, kernels, block, kv_head).run_chunk(chunk, made.of(thread), partials.at(block, kv_head, chunk));
  });
  stream.pool().parallel_for(items, [&](int64_t item, int) {
    alignas(64) float running[kMaxBlockRows * kMaxPartial];
    const AttentionBlock& block = plan.blocks[item / kv.kv_heads];
    const auto kv_head = static_cast<int32_t>(item % kv.kv_heads);
    const BlockRun run(call, kernels, block, kv_head);
    run.start(running);
    for (int32_t chunk = block.chunk_begin; chunk < block.chunk_end; ++chunk) {
      run.fold_chunk(chunk, partials.at(block, kv_head, chunk), running);
    }
    run.finish(running);
  });
}

void check_segment(const AttentionCall& call, const RowSegment& segment) {
  const RowView& view = call.view;
  VOLLEY_CHECK(segment.row_begin >= 0 && segment.rows >= 0 && segment.row_begin + segment.rows <= call.rows.rows);
  VOLLEY_CHECK(segment.slot >= 0 && segment.slot < view.page_table.dim(0));
  const int32_t* begin = view.begin.as<int32_t>() + segment.row_begin;
  const int32_t* end = view.end.as<int32_t>() + segment.row_begin;
  for (int32_t i = 0; i < segment.rows; ++i) {
    VOLLEY_CHECK(begin[i] >= 0 && begin[i] < end[i]);
    VOLLEY_CHECK_LE(end[i], view.page_table.dim(1) * call.args.kv.page_size);
  }
}

void attention_cpu(Stream& stream, const Rows& rows, const RowView& view, const Attention& args, Arena& scratch) {
  const AttentionCall call{rows, view, args};
  const ArenaScope scope(scratch);
  if (stream.dry()) {  // the visible positions are not known: the most there can be
    scratch.take(DType::kU8, {attention_scratch_bytes(rows.rows, args.heads, args.kv.value_dim(), rows.max_positions,
                                                      stream.threads())});
    MadeTiles(args.kv, stream.threads(), scratch);
    return;
  }
  for (int32_t i = 0; i < rows.n_segments; ++i) check_segment(call, rows.segments[i]);
  ThreadPool& pool = stream.pool();
  const ChunkKernels kernels = choose_kernels(attention_dtype(args.kv.dtype));
  const AttentionPlan plan = plan_attention(call, pool.threads(), scratch);
  const MadeTiles made(args.kv, pool.threads(), scratch);
  if (plan.split) return run_split(stream, call, kernels, plan, made, scratch);
  const int64_t items = static_cast<int64_t>(plan.blocks.size()) * args.kv.kv_heads;
  const int64_t tasks = std::min(items, std::max<int64_t>(1, plan.macs / kMacsPerTask));
  pool.parallel_for(tasks, [&](int64_t task, int thread) {
    for (int64_t item = items * task / tasks; item < items * (task + 1) / tasks; ++item) {
      run_whole(call, kernels, plan.blocks[item / args.kv.kv_heads], static_cast<int32_t>(item % args.kv.kv_heads),
                made.of(thread));
    }
  });
}

Result<AttentionBackend> resolve_backend_cpu(const GpuInfo& /*gpu*/, AttentionBackend asked, DType /*kv*/,
                                             int32_t /*head_dim*/, int32_t /*v_in_k*/) {
  if (asked == AttentionBackend::kAuto) return asked;
  return unimplemented("The attention backend \"" + std::string(attention_backend_name(asked)) +
                       "\" is a GPU's: the CPU has one of its own, with auto.");
}

// The CPU divides the work inside attention().
AttentionWork plan_attention_cpu(Stream& /*stream*/, const Rows& /*rows*/, const RowView& /*view*/,
                                 const HeadShape& /*shape*/, Arena& /*scratch*/) {
  return {};
}

}  // namespace

const AttentionKernels AttentionKernels::kCpu = {resolve_backend_cpu, plan_attention_cpu, attention_cpu};

}  // namespace volley::ops
