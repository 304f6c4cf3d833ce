#include <algorithm>
#include <cmath>
#include <cstring>

#include "device/cpu/thread_pool.h"
#include "ops/paged_kv/cpu_tile.h"
#include "ops/paged_kv/paged_kv_kernels.h"

// Arrays of vectors cannot be made of sizeless ones; machines that have those have a fixed-size target too.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/paged_kv/paged_kv_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu_bf16-inl.h"

#ifndef VOLLEY_OPS_PAGED_KV_CPU_ONCE_
#define VOLLEY_OPS_PAGED_KV_CPU_ONCE_
namespace volley::ops {

// The arguments of a call.
struct WriteCall {
  const Rows& rows;
  const RowView& view;
  const QkvWrite& args;
};

// A unit of work: one head (of q, K or V) of the rows of a segment that fall into one tile. Units touch disjoint
// memory, so clearing the rest of a tile cannot race with a neighbour's rows.
struct WriteUnit {
  int32_t slot;
  int32_t row;       // first row in the batch
  int32_t rows;      // 1 … kKvTile
  int32_t position;  // cache position of the first row
  int32_t head;      // [0, heads): q; then, for each layer, kv_heads of K and kv_heads of V
};

}  // namespace volley::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace volley::ops::HWY_NAMESPACE {

// At most 8 lanes: halves of a head (RoPE's pairs) are multiples of 8 elements.
using DF = hn::CappedTag<float, 8>;

// 1 / sqrt(mean(x^2) + eps). Sixteen partial sums, element i in sum i mod 16, then halved: the order depends on
// head_dim alone.
float inverse_rms(const float* HWY_RESTRICT x, int head_dim, float eps) {
  const DF d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
  constexpr int kSums = 16 / kLanes;
  hn::Vec<DF> sum[kSums];
  for (auto& s : sum) s = hn::Zero(d);
  for (int i = 0; i < head_dim; i += 16) {
    for (int j = 0; j < kSums; ++j) {
      const auto v = hn::LoadU(d, x + i + j * kLanes);
      sum[j] = hn::MulAdd(v, v, sum[j]);
    }
  }
  for (int n = kSums / 2; n > 0; n /= 2) {
    for (int j = 0; j < n; ++j) sum[j] = hn::Add(sum[j], sum[j + n]);
  }
  const float squares = hn::GetLane(hn::SumOfLanes(d, sum[0]));
  return 1.0f / std::sqrt(squares / static_cast<float>(head_dim) + eps);
}

// y = x / rms(x).
void norm_without_weight(const float* HWY_RESTRICT x, float eps, int head_dim, float* HWY_RESTRICT y) {
  const float inverse = inverse_rms(x, head_dim, eps);
  for (int i = 0; i < head_dim; ++i) y[i] = x[i] * inverse;
}

// y = RoPE(RMSNorm(x)); norm may be null.
void norm_and_rotate(const float* HWY_RESTRICT x, const float* HWY_RESTRICT norm, float eps,
                     const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin, int head_dim,
                     float* HWY_RESTRICT y) {
  const DF d;
  const int half = head_dim / 2;
  const auto inverse = hn::Set(d, norm != nullptr ? inverse_rms(x, head_dim, eps) : 1.0f);
  for (int i = 0; i < half; i += static_cast<int>(hn::Lanes(d))) {
    auto a = hn::LoadU(d, x + i);
    auto b = hn::LoadU(d, x + half + i);
    if (norm != nullptr) {
      a = hn::Mul(hn::Mul(a, inverse), hn::LoadU(d, norm + i));
      b = hn::Mul(hn::Mul(b, inverse), hn::LoadU(d, norm + half + i));
    }
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, y + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, y + half + i);
  }
}

void store_row(const float* HWY_RESTRICT x, int head_dim, uint16_t* HWY_RESTRICT to) {
  const DF d;
  for (int i = 0; i < head_dim; i += static_cast<int>(hn::Lanes(d))) store_bf16(d, hn::LoadU(d, x + i), to + i);
}

// The e4m3 nearest to each lane, as to_float8_e4m3() rounds.
void store_e4m3(const float* HWY_RESTRICT x, float scale, int head_dim, uint8_t* HWY_RESTRICT to) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint8_t, DF> d8;
  for (int i = 0; i < head_dim; i += static_cast<int>(hn::Lanes(d))) {
    const auto value = hn::Div(hn::LoadU(d, x + i), hn::Set(d, scale));
    const auto magnitude = hn::Min(hn::Abs(value), hn::Set(d, kMaxFloat8E4M3));
    const auto bits = hn::BitCast(du, magnitude);
    const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<20>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7ffff))));
    const auto normal = hn::Sub(rounded, hn::Set(du, 120 << 3));
    // Below 2^-6 steps are 2^-9 wide: the unit in the last place of a sum with 2^14.
    const auto small = hn::And(hn::BitCast(du, hn::Add(magnitude, hn::Set(d, 0x1p14f))), hn::Set(du, 0xf));
    auto code = hn::IfThenElse(hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-6f))), small, normal);
    code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, 0x7f), code);
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, value)), hn::Set(du, 0x80));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, hn::Or(code, sign))), d8, to + i);
  }
}

void store_k_row(const float* HWY_RESTRICT x, int head_dim, int in_tile, const KvLayer& kv, std::byte* tile) {
  if (kv.dtype == DType::kF8E4M3) {
    HWY_ALIGN uint8_t codes[kMaxHeadDim];
    store_e4m3(x, kv.k_scale, head_dim, codes);
    std::byte* to = tile + in_tile * 2;
    for (int i = 0; i < head_dim; i += 2) std::memcpy(to + i * kKvTile, codes + i, 2);
    return;
  }
  if (kv.dtype == DType::kF32) {
    float* to = reinterpret_cast<float*>(tile) + in_tile;
    for (int i = 0; i < head_dim; ++i) to[i * kKvTile] = x[i];
    return;
  }
  HWY_ALIGN uint16_t row[kMaxHeadDim];
  store_row(x, head_dim, row);
  std::byte* to = tile + in_tile * 4;
  for (int i = 0; i < head_dim; i += 2) std::memcpy(to + (i / 2) * kKvTile * 4, row + i, 4);
}

// V of an even position is the lower half of a word that it shares with the odd position after it.
void store_v_row(const float* HWY_RESTRICT x, int head_dim, int in_tile, const KvLayer& kv, std::byte* tile) {
  if (kv.dtype == DType::kF8E4M3) {
    HWY_ALIGN uint8_t codes[kMaxHeadDim];
    store_e4m3(x, kv.v_scale, head_dim, codes);
    std::byte* to = tile + in_tile / 2 * head_dim * 2 + in_tile % 2;
    for (int i = 0; i < head_dim; ++i) std::memcpy(to + i * 2, codes + i, 1);
    return;
  }
  if (kv.dtype == DType::kF32) {
    std::memcpy(tile + static_cast<size_t>(in_tile) * head_dim * 4, x, static_cast<size_t>(head_dim) * 4);
    return;
  }
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  uint32_t* words = reinterpret_cast<uint32_t*>(tile) + in_tile / 2 * head_dim;
  const bool odd = in_tile % 2 != 0;
  const auto keep = hn::Set(du, odd ? 0x0000ffffu : 0xffff0000u);
  for (int i = 0; i < head_dim; i += static_cast<int>(hn::Lanes(d))) {
    auto word = bf16_words(d, hn::LoadU(d, x + i));
    if (!odd) word = hn::ShiftRight<16>(word);
    hn::StoreU(hn::Or(hn::And(hn::LoadU(du, words + i), keep), word), du, words + i);
  }
}

// The tile of a K or V unit, cleared when the unit begins it and does not fill it.
std::byte* prepare_tile(const WriteCall& call, const WriteUnit& unit, int32_t layer, int32_t kv_head, bool is_k) {
  KvLayer kv = call.args.kv;
  const TensorView& table = call.view.page_table;
  const int32_t page = table.as<int32_t>()[unit.slot * table.dim(1) + unit.position / kv.page_size];
  kv.base += layer * kv_layer_bytes(kv.page_size, kv.kv_heads, kv.head_dim, kv.dtype);
  const HeadTiles tiles = kv_head_tiles(kv, page, kv_head);
  const int64_t bytes = kv_tile_bytes(kv);
  std::byte* tile = (is_k ? tiles.k : tiles.v) + unit.position % kv.page_size / kKvTile * bytes;
  if (unit.position % kKvTile == 0 && unit.rows < kKvTile) std::memset(tile, 0, static_cast<size_t>(bytes));
  return tile;
}

void write_unit(const WriteCall& call, const WriteUnit& unit) {
  const QkvWrite& args = call.args;
  const int head_dim = args.kv.head_dim, source_dim = args.source_dim();
  const int64_t qkv_stride = args.qkv.dim(1);
  const bool is_q = unit.head < args.heads;
  const int32_t kv_heads = args.kv.kv_heads, layer = is_q ? 0 : (unit.head - args.heads) / (2 * kv_heads);
  const int32_t in_layer = unit.head - args.heads - layer * 2 * kv_heads;
  const bool is_v = !is_q && in_layer >= kv_heads;
  const int first = unit.position % kKvTile;
  // The unit's head among those of qkv.
  int32_t source = unit.head;
  if (args.v_from_k) source -= layer * kv_heads + (is_v ? kv_heads : 0);
  const float* x = args.qkv.as<float>() + unit.row * qkv_stride + int64_t{source} * source_dim;
  const float* bias = args.bias.data != nullptr ? args.bias.as<float>() + int64_t{source} * source_dim : nullptr;
  HWY_ALIGN float made[kMaxHeadDim] = {};
  const auto row = [&](int r) -> const float* {
    const float* plain = x + r * qkv_stride;
    if (bias == nullptr && source_dim == head_dim) return plain;
    for (int i = 0; i < source_dim; ++i) {
      const int to = i < source_dim / 2 ? i : i + (head_dim - source_dim) / 2;
      made[to] = bias == nullptr ? plain[i] : plain[i] + bias[i];
    }
    return made;
  };
  if (is_v) {
    std::byte* tile = prepare_tile(call, unit, layer, in_layer - kv_heads, false);
    for (int r = 0; r < unit.rows; ++r) {
      HWY_ALIGN float normed[kMaxHeadDim];
      const float* v = row(r);
      if (args.v_norm) norm_without_weight(v, args.eps, head_dim, normed);
      store_v_row(args.v_norm ? normed : v, head_dim, first + r, args.kv, tile);
    }
    return;
  }
  std::byte* tile = is_q ? nullptr : prepare_tile(call, unit, layer, in_layer, true);
  const TensorView& norm = is_q ? args.q_norm : args.k_norm;
  const float* weight = norm.data != nullptr ? norm.as<float>() + int64_t{layer} * head_dim : nullptr;
  const int32_t* rope_positions = call.rows.rope_positions.as<int32_t>() + unit.row;
  for (int r = 0; r < unit.rows; ++r) {
    const int64_t angle = int64_t{rope_positions[r]} * (head_dim / 2);
    HWY_ALIGN float y[kMaxHeadDim];
    norm_and_rotate(row(r), weight, args.eps, args.rope.cos.as<float>() + angle, args.rope.sin.as<float>() + angle,
                    head_dim, y);
    if (!is_q) {
      store_k_row(y, head_dim, first + r, args.kv, tile);
      continue;
    }
    const int64_t out = (int64_t{unit.row + r} * args.heads + unit.head) * head_dim;
    if (args.q_out.dtype == DType::kF32) {
      std::memcpy(args.q_out.as<float>() + out, y, sizeof(float) * static_cast<size_t>(head_dim));
    } else {
      store_row(y, head_dim, reinterpret_cast<uint16_t*>(args.q_out.as<BFloat16>() + out));
    }
  }
}

}  // namespace volley::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops {
namespace {

HWY_EXPORT(write_unit);

// Elements of one task. Less than half of that (some 2 µs) would not be worth a thread.
constexpr int64_t kElementsPerTask = 4096;
constexpr int64_t kTasksPerThread = 4;

int64_t tile_groups(const Rows& rows, const RowSegment& segment) {
  if (segment.rows == 0) return 0;
  const int32_t position = rows.cache_positions.as<int32_t>()[segment.row_begin];
  return (position % kKvTile + segment.rows + kKvTile - 1) / kKvTile;
}

// Units [begin, end) in the order of segments, tiles and heads.
void write_units(const WriteCall& call, int64_t begin, int64_t end) {
  const Rows& rows = call.rows;
  const int64_t heads = call.args.all_heads();
  const auto write = HWY_DYNAMIC_DISPATCH(write_unit);
  int64_t base = 0;
  for (int32_t i = 0; i < rows.n_segments && base < end; ++i) {
    const RowSegment& segment = rows.segments[i];
    const int64_t units = tile_groups(rows, segment) * heads;
    const int64_t from = std::max(begin, base);
    const int64_t to = std::min(end, base + units);
    for (int64_t unit = from; unit < to; ++unit) {
      const int32_t first = rows.cache_positions.as<int32_t>()[segment.row_begin];
      const int32_t tile = first / kKvTile + static_cast<int32_t>((unit - base) / heads);
      const int32_t position = std::max(first, tile * kKvTile);
      const int32_t stop = std::min(first + segment.rows, (tile + 1) * kKvTile);
      write(call, {segment.slot, segment.row_begin + position - first, stop - position, position,
                   static_cast<int32_t>((unit - base) % heads)});
    }
    base += units;
  }
}

// Positions are the engine's own numbers: wrong ones would write into another request's pages.
void check_segment(const Rows& rows, const RowView& view, const QkvWrite& args, const RowSegment& segment) {
  VOLLEY_CHECK(segment.row_begin >= 0 && segment.rows >= 0 && segment.row_begin + segment.rows <= rows.rows);
  VOLLEY_CHECK(segment.slot >= 0 && segment.slot < view.page_table.dim(0));
  if (segment.rows == 0) return;
  const int32_t* cache = rows.cache_positions.as<int32_t>() + segment.row_begin;
  const int32_t* rope = rows.rope_positions.as<int32_t>() + segment.row_begin;
  const int32_t* pages = view.page_table.as<int32_t>() + segment.slot * view.page_table.dim(1);
  VOLLEY_CHECK_GE(cache[0], 0);
  for (int32_t i = 0; i < segment.rows; ++i) {
    VOLLEY_CHECK_EQ(cache[i], cache[0] + i);
    VOLLEY_CHECK(rope[i] >= 0 && rope[i] < args.rope.cos.dim(0));
  }
  const int64_t last = cache[segment.rows - 1] / args.kv.page_size;
  VOLLEY_CHECK_LT(last, view.page_table.dim(1));
  for (int64_t i = cache[0] / args.kv.page_size; i <= last; ++i) VOLLEY_CHECK_GE(pages[i], 0);
}

void write_qkv_cpu(Stream& stream, const Rows& rows, const RowView& view, const QkvWrite& args) {
  if (stream.dry()) return;
  for (int32_t i = 0; i < rows.n_segments; ++i) check_segment(rows, view, args, rows.segments[i]);
  const WriteCall call{rows, view, args};
  int64_t units = 0;
  for (int32_t i = 0; i < rows.n_segments; ++i) units += tile_groups(rows, rows.segments[i]);
  units *= args.all_heads();
  if (units == 0) return;
  ThreadPool& pool = stream.pool();
  const int64_t elements = args.qkv.count();
  const int64_t useful = std::max(
      {int64_t{1}, elements / kElementsPerTask, std::min<int64_t>(pool.threads(), 2 * elements / kElementsPerTask)});
  const int64_t tasks = std::min({units, useful, pool.threads() * kTasksPerThread});
  pool.parallel_for(tasks,
                    [&](int64_t task, int) { write_units(call, units * task / tasks, units * (task + 1) / tasks); });
}

}  // namespace

const PagedKvKernels PagedKvKernels::kCpu = {write_qkv_cpu};

}  // namespace volley::ops
#endif
