// Protects: values against an fp64 oracle, and that a row's bits depend only on its sequence: not on how passes divide
// it, on pages, on other rows, or on rejected rows at later positions.
#include "ops/short_conv/short_conv.h"

#include <cmath>
#include <random>

#include "ops/device_for_test.h"
#include "ops/values_for_test.h"

namespace volley::ops {
namespace {

constexpr int kSlots = 3, kPositions = 64;

struct Kind {
  DType cache, out;
  int channels, taps, page_size;
};

float as(DType dtype, float x) {
  return dtype == DType::kBF16 ? to_float(to_bfloat16(x)) : x;
}

// Rows [from, to) of a slot; a rejected row has another input than the one that is kept.
struct Piece {
  int slot, from, to;
  bool rejected = false;
};

class World {
 public:
  World(Device& device, const Kind& kind)
      : device_(device),
        kind_(kind),
        bytes_(int64_t{kind.page_size} * kind.channels * static_cast<int64_t>(dtype_size(kind.cache))),
        pages_(device, static_cast<size_t>(kSlots * kPositions / kind.page_size * bytes_)),
        kernel_(normal_values(int64_t{kind.channels} * kind.taps, 3)) {
    for (int i = 0; i < kSlots * kPositions / kind.page_size; ++i) table_.push_back(i);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
  }

  std::vector<float> input(const Piece& piece, int position) const {
    return normal_values(3 * kind_.channels, (piece.rejected ? 5000 : 1000) + 97 * piece.slot + position);
  }
  // y of all rows, one after the other.
  std::vector<float> run(const std::vector<Piece>& pieces) {
    std::vector<float> in;
    std::vector<int32_t> positions, slots;
    std::vector<RowSegment> segments;
    for (const Piece& piece : pieces) {
      segments.push_back({static_cast<int32_t>(slots.size()), piece.to - piece.from, piece.slot});
      for (int p = piece.from; p < piece.to; ++p) {
        const std::vector<float> row = input(piece, p);
        in.insert(in.end(), row.begin(), row.end());
        positions.push_back(p);
        slots.push_back(piece.slot);
      }
    }
    const auto rows = static_cast<int64_t>(slots.size());
    const int64_t n = kind_.channels;
    const DeviceTensor on_in(device_, in), on_positions(device_, positions), on_slots(device_, slots),
        table(device_, table_), kernel(device_, kernel_),
        y(device_, static_cast<size_t>(rows * n) * dtype_size(kind_.out));
    Rows batch;
    batch.rows = static_cast<int32_t>(rows);
    batch.slots = on_slots.view(DType::kI32, {rows});
    batch.cache_positions = on_positions.view(DType::kI32, {rows});
    batch.segments = segments.data();
    batch.n_segments = static_cast<int32_t>(segments.size());
    RowView view;
    view.page_table = table.view(DType::kI32, {kSlots, kPositions / kind_.page_size});
    ShortConv conv;
    conv.in = on_in.view(DType::kF32, {rows, 3 * n});
    conv.kernel = kernel.view(DType::kF32, {n * kind_.taps});
    conv.kv = {.base = pages_.view(DType::kU8, {1}).as<std::byte>(),
               .page_stride = bytes_,
               .page_size = kind_.page_size,
               .kv_heads = 1,
               .head_dim = kind_.channels,
               .dtype = kind_.cache,
               .v_in_k = kind_.channels};
    conv.y = y.view(kind_.out, {rows, n});
    short_conv(device_.stream(), batch, view, conv);
    if (kind_.out == DType::kF32) return y.read<float>();
    std::vector<float> values;
    for (const BFloat16 x : y.read<BFloat16>()) values.push_back(to_float(x));
    return values;
  }
  void expect_oracle(int slot, int position, const float* got) const {
    const int64_t n = kind_.channels;
    std::vector<std::vector<float>> inputs;  // of the position, and of those before it
    for (int o = 0; o < kind_.taps && o <= position; ++o) inputs.push_back(input({slot, 0, 0}, position - o));
    const std::vector<float>& own = inputs[0];
    for (int64_t ch = 0; ch < n; ++ch) {
      double sum = 0, magnitude = 0;
      for (size_t o = 0; o < inputs.size(); ++o) {
        const std::vector<float>& row = inputs[o];
        const double product = double{kernel_[static_cast<size_t>((ch + 1) * kind_.taps - 1) - o]} *
                               as(kind_.cache, row[ch] * row[2 * n + ch]);
        sum += product;
        magnitude += std::abs(product);
      }
      const double want = own[n + ch] * sum;
      const double tolerance = std::abs(own[n + ch]) * magnitude * (kind_.taps + 1) * 0x1p-24 +
                               (kind_.out == DType::kBF16 ? std::abs(want) * 0x1p-8 : 0);
      ASSERT_NEAR(got[ch], want, tolerance) << "slot " << slot << ", position " << position << ", channel " << ch;
    }
  }

 private:
  Device& device_;
  const Kind kind_;
  const int64_t bytes_;
  const DeviceTensor pages_;
  const std::vector<float> kernel_;
  std::vector<int32_t> table_;
};

DEVICE_TEST(ShortConv, MatchesTheOracleHoweverPassesDivideIt) {
  DEVICE_UNDER_TEST;
  for (const Kind& kind : {Kind{DType::kF32, DType::kF32, 48, 3, 16},
                           {DType::kBF16, DType::kBF16, 272, 3, 32},
                           {DType::kBF16, DType::kF32, 20, 4, 16},
                           {DType::kF32, DType::kBF16, 304, 1, 64}}) {
    const auto n = static_cast<size_t>(kind.channels);
    World whole(device, kind);
    const std::vector<float> all = whole.run({{0, 0, 37}, {2, 0, 1}, {1, 0, 50}});
    for (int p = 0; p < 37; ++p) whole.expect_oracle(0, p, &all[n * static_cast<size_t>(p)]);
    whole.expect_oracle(2, 0, &all[n * 37]);
    for (int p = 0; p < 50; ++p) whole.expect_oracle(1, p, &all[n * static_cast<size_t>(38 + p)]);

    World parts(device, kind);
    std::vector<float> joined;
    for (int from = 0; from < 37; from += 4) {
      const int kept = std::min(from + 4, 37);
      parts.run({{1, from, kept}, {0, from, kept + 6, true}});  // a block, of which nothing is accepted
      const std::vector<float> rows = parts.run({{2, from, kept}, {0, from, kept}});
      joined.insert(joined.end(), rows.begin() + static_cast<std::ptrdiff_t>(n) * (kept - from), rows.end());
    }
    EXPECT_EQ(joined, std::vector<float>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n) * 37));
  }
}

}  // namespace
}  // namespace volley::ops
