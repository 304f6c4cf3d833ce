// Shared by the tests of the gated delta rule, for a CPU, a GPU and the simulated blocks of one: weights, sequences, an
// fp64 oracle, the slots of a device; and the checks themselves.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "ops/device_for_test.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/gated_delta/gated_delta_layout.h"
#include "ops/values_for_test.h"

namespace volley::ops {

inline constexpr float kEps = 1e-6f;

struct Weights {
  DeltaShape shape;
  std::vector<float> conv, a_log, dt_bias, norm;

  explicit Weights(const DeltaShape& shape)
      : shape(shape),
        conv(normal_values(shape.channels() * shape.taps, 1)),
        a_log(normal_values(shape.v_heads, 2)),
        dt_bias(normal_values(shape.v_heads, 3)),
        norm(normal_values(shape.v_dim, 4)) {}
  int64_t row_width() const { return shape.channels() + shape.v_width(); }
};

// The rows of a sequence, as the projections would make them.
struct Sequence {
  std::vector<float> projected, gates;
  Sequence(const Weights& w, int rows, uint32_t seed)
      : projected(normal_values(rows * w.row_width(), seed)),
        gates(normal_values(rows * 2 * w.shape.v_heads, seed + 1)) {
    for (float& x : projected) x = to_float(to_bfloat16(x));  // the same in either type
  }
};

// One row after the other, in fp64.
inline std::vector<std::vector<double>> oracle(const Weights& w, const Sequence& sequence, int rows) {
  const DeltaShape& s = w.shape;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::vector<double> state(s.v_width() * s.k_dim);
  std::vector<std::vector<double>> out;
  for (int t = 0; t < rows; ++t) {
    std::vector<double> mixed(s.channels());
    for (int64_t c = 0; c < s.channels(); ++c) {
      for (int j = 0; j < s.taps; ++j) {
        const int row = t + j - (s.taps - 1);
        if (row >= 0) mixed[c] += double{w.conv[c * s.taps + j]} * sequence.projected[row * w.row_width() + c];
      }
      mixed[c] *= sigmoid(mixed[c]);
    }
    const auto unit = [&](int64_t begin, double scale) {
      double squares = 0;
      for (int i = 0; i < s.k_dim; ++i) squares += mixed[begin + i] * mixed[begin + i];
      std::vector<double> x(s.k_dim);
      for (int i = 0; i < s.k_dim; ++i) x[i] = mixed[begin + i] * scale / std::sqrt(squares + 1e-6);
      return x;
    };
    std::vector<double>& y = out.emplace_back(s.v_width());
    for (int h = 0; h < s.v_heads; ++h) {
      const int kh = h / (s.v_heads / s.k_heads);
      const auto q = unit(kh * s.k_dim, 1 / std::sqrt(double(s.k_dim))), k = unit(s.k_width() + kh * s.k_dim, 1);
      const float* gates = &sequence.gates[t * 2 * s.v_heads];
      const double x = double{gates[s.v_heads + h]} + w.dt_bias[h];
      const double decay = std::exp(-std::exp(double{w.a_log[h]}) * std::log1p(std::exp(x)));
      const double beta = sigmoid(gates[h]);
      double* S = &state[int64_t{h} * s.k_dim * s.v_dim];
      double squares = 0;
      for (int j = 0; j < s.v_dim; ++j) {
        double memory = 0, o = 0;
        for (int i = 0; i < s.k_dim; ++i) memory += k[i] * (S[i * s.v_dim + j] *= decay);
        const double delta = beta * (mixed[2 * s.k_width() + h * s.v_dim + j] - memory);
        for (int i = 0; i < s.k_dim; ++i) o += q[i] * (S[i * s.v_dim + j] += k[i] * delta);
        y[h * s.v_dim + j] = o;
        squares += o * o;
      }
      for (int j = 0; j < s.v_dim; ++j) {
        const double z = sequence.projected[t * w.row_width() + s.channels() + h * s.v_dim + j];
        y[h * s.v_dim + j] *= w.norm[j] / std::sqrt(squares / s.v_dim + kEps) * z * sigmoid(z);
      }
    }
  }
  return out;
}

// The device or simulation that computes a call.
using DeltaRun = std::function<void(Stream&, const Rows&, const GatedDelta&, Arena&)>;

// The memory of some slots on a device, full of NaN as former owners may leave it, and that of calls at fixed
// addresses.
class World {
 public:
  static constexpr int kRows = 192, kSegments = 5;  // most rows and segments of a call

  World(Device& device, const Weights& weights, int slots, int tape_rows, DType dtype, DeltaRun run = gated_delta,
        int most_rows = kRows)
      : w_(weights),
        device_(device),
        most_rows_(most_rows),
        run_(std::move(run)),
        layout_(weights.shape, tape_rows, dtype),
        scratch_(*device.allocate(16 << 20)),
        memory_(device, nan_but_cursors(slots)),
        conv_(device, weights.conv),
        a_log_(device, weights.a_log),
        dt_bias_(device, weights.dt_bias),
        norm_(device, weights.norm),
        projected_(device, most_rows * w_.row_width() * dtype_size(dtype)),
        gates_(device, most_rows * 2 * w_.shape.v_heads * sizeof(float)),
        out_(device, most_rows * w_.shape.v_width() * dtype_size(dtype)),
        positions_(device, most_rows * sizeof(int32_t)),
        row_slots_(device, most_rows * sizeof(int32_t)),
        segments_(device, kSegments * sizeof(RowSegment)) {
    const TensorView memory = memory_.view(DType::kU8, {static_cast<int64_t>(slots * layout_.bytes)});
    state_ = {static_cast<std::byte*>(memory.data), slots, tape_rows, dtype};
  }

  // From now on each call is recorded, with kRows rows and kSegments segments: unused ones are rows and segments of a
  // scrap slot.
  void record() {
    graph_ = device_.record([&] { call(kRows, kSegments); });
    ASSERT_NE(graph_, nullptr);
  }

  // Rows of one slot in a call: some of a sequence from `position` on, then others that are none of it.
  struct Piece {
    int slot, position, rows, wrong;
    const Sequence* sequence;
  };
  // Outputs of each piece, `wrong` rows left out: [rows * v_width()].
  std::vector<std::vector<float>> run(const std::vector<Piece>& pieces, int spare_rows = 0) {
    const DeltaShape& shape = w_.shape;
    std::vector<float> projected, gates;
    std::vector<int32_t> positions, slots;
    std::vector<RowSegment> segments;
    const auto take = [&](const std::vector<float>& from, int64_t width, const Piece& p, std::vector<float>& to) {
      to.insert(to.end(), from.begin() + p.position * width, from.begin() + (p.position + p.rows) * width);
      const auto others = normal_values(p.wrong * width, 1000 + static_cast<uint32_t>(++calls_));
      to.insert(to.end(), others.begin(), others.end());
    };
    for (const Piece& p : pieces) {
      segments.push_back({static_cast<int32_t>(positions.size()), p.rows + p.wrong, p.slot});
      for (int i = 0; i < p.rows + p.wrong; ++i) positions.push_back(p.position + i);
      slots.resize(positions.size(), p.slot);
      take(p.sequence->projected, w_.row_width(), p, projected);
      take(p.sequence->gates, 2 * shape.v_heads, p, gates);
    }
    const auto used = static_cast<int64_t>(positions.size());
    const int64_t n = graph_ ? kRows : used + spare_rows;
    EXPECT_LE(n, most_rows_);
    EXPECT_LE(segments.size(), size_t{kSegments});
    // Recorded segments that are left over: some have a row, some have none.
    for (int64_t row = used; graph_ && segments.size() < kSegments; ++row) {
      segments.push_back({static_cast<int32_t>(row), segments.size() % 2 == 0 ? 1 : 0, state_.slots});
    }
    positions.resize(n);
    slots.resize(n, state_.slots);
    projected.resize(n * w_.row_width(), NAN);
    gates.resize(n * 2 * shape.v_heads, NAN);
    put_values(projected_, projected);
    put(gates_, gates);
    put(positions_, positions);
    put(row_slots_, slots);
    put(segments_, segments);
    put(out_, std::vector<char>(n * shape.v_width() * dtype_size(state_.dtype), '\xff'));
    if (graph_) {
      graph_->launch();
    } else {
      call(static_cast<int32_t>(n), static_cast<int32_t>(segments.size()));
    }
    std::vector<float> out = values(out_, n * shape.v_width());
    for (int64_t i = used * shape.v_width(); i < n * shape.v_width(); ++i) EXPECT_EQ(out[i], 0);
    std::vector<std::vector<float>> parts;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto begin = out.begin() + segments[i].row_begin * shape.v_width();
      parts.emplace_back(begin, begin + pieces[i].rows * shape.v_width());
    }
    return parts;
  }

  // The state of a slot and the rows that its convolution still sees, as bits.
  std::vector<std::byte> state(int slot) const {
    const auto bytes = memory_.read<std::byte>();
    const std::byte* begin = bytes.data() + slot * layout_.bytes;
    const int64_t before = (w_.shape.taps - 1) * w_.shape.channels() * static_cast<int64_t>(dtype_size(state_.dtype));
    std::vector<std::byte> bits(begin + layout_.state, begin + layout_.state + w_.shape.v_width() * w_.shape.k_dim * 4);
    bits.insert(bits.end(), begin + layout_.rows, begin + layout_.rows + before);
    return bits;
  }

 private:
  std::vector<std::byte> nan_but_cursors(int slots) const {
    std::vector<std::byte> bytes(slots * layout_.bytes, std::byte{0xff});
    for (int slot = 0; slot < slots; ++slot) {
      std::fill_n(bytes.begin() + slot * layout_.bytes, w_.shape.k_heads * sizeof(DeltaCursor), std::byte{0});
    }
    return bytes;
  }

  template <typename T>
  void put(const DeviceTensor& to, const std::vector<T>& from) {
    device_.upload(to.view(DType::kU8, {1}).data, from.data(), from.size() * sizeof(T));
  }
  void put_values(const DeviceTensor& to, const std::vector<float>& from) {
    if (state_.dtype == DType::kF32) return put(to, from);
    std::vector<BFloat16> halves;
    for (const float x : from) halves.push_back(to_bfloat16(x));
    put(to, halves);
  }
  std::vector<float> values(const DeviceTensor& from, int64_t n) const {
    std::vector<float> to(n);
    if (state_.dtype == DType::kF32) {
      device_.download(to.data(), from.view(DType::kU8, {1}).data, n * sizeof(float));
    } else {
      std::vector<BFloat16> halves(n);
      device_.download(halves.data(), from.view(DType::kU8, {1}).data, n * sizeof(BFloat16));
      std::transform(halves.begin(), halves.end(), to.begin(), [](BFloat16 x) { return to_float(x); });
    }
    return to;
  }

  void call(int32_t n, int32_t segments) {
    const DeltaShape& shape = w_.shape;
    Rows rows;
    rows.rows = n;
    rows.cache_positions = positions_.view(DType::kI32, {n});
    rows.slots = row_slots_.view(DType::kI32, {n});
    rows.segments = static_cast<RowSegment*>(segments_.view(DType::kU8, {1}).data);
    rows.n_segments = segments;
    rows.max_segment_rows = n;
    GatedDelta args;
    args.shape = shape;
    args.projected = projected_.view(state_.dtype, {n, w_.row_width()});
    args.gates = gates_.view(DType::kF32, {n, 2 * shape.v_heads});
    args.conv = conv_.view(DType::kF32, {shape.channels() * shape.taps});
    args.a_log = a_log_.view(DType::kF32, {shape.v_heads});
    args.dt_bias = dt_bias_.view(DType::kF32, {shape.v_heads});
    args.norm = norm_.view(DType::kF32, {shape.v_dim});
    args.eps = kEps;
    args.state = state_;
    args.out = out_.view(state_.dtype, {n, shape.v_width()});
    run_(device_.stream(), rows, args, scratch_);
  }

  const Weights& w_;
  Device& device_;
  const int most_rows_;
  const DeltaRun run_;
  DeltaLayout layout_;
  Arena scratch_;
  DeviceTensor memory_, conv_, a_log_, dt_bias_, norm_, projected_, gates_, out_, positions_, row_slots_, segments_;
  DeltaState state_;
  std::unique_ptr<StepGraph> graph_;
  int calls_ = 0;
};

inline const DeltaShape kShapes[] = {
    {1, 1, 16, 16, 4}, {2, 6, 32, 16, 3}, {2, 4, 16, 80, 4}, {1, 2, 128, 128, 4}, {2, 2, 16, 32, 1}};

inline void check_values(Device& device, const DeltaRun& run, const DeltaShape& shape) {
  const Weights w(shape);
  const int rows = 70;
  const Sequence sequence(w, rows, 10);
  const auto want = oracle(w, sequence, rows);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World world(device, w, 1, 4, dtype, run);
    const auto got = world.run({{0, 0, rows, 0, &sequence}})[0];
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < rows * shape.v_width(); ++i) {
      const double value = want[i / shape.v_width()][i % shape.v_width()];
      difference += std::pow(got[i] - value, 2);
      norm += std::pow(value, 2);
    }
    // Over all rows, because the norm amplifies a row whose q and k are nearly orthogonal: such a row is mostly
    // rounding errors. fp32 sums over k_dim and over the rows before; bf16 rounds the output once.
    EXPECT_LT(std::sqrt(difference / norm), dtype == DType::kF32 ? 4e-6 : 0x1p-9) << "k_dim " << shape.k_dim;
  }
}

// A sequence row by row, on its own.
struct Reference {
  std::vector<float> out;
  std::vector<std::byte> state;
  Reference(Device& device, const DeltaRun& run, const Weights& w, const Sequence& sequence, int rows, DType dtype) {
    World world(device, w, 1, 0, dtype, run);
    for (int t = 0; t < rows; ++t) {
      const auto row = world.run({{0, t, 1, 0, &sequence}})[0];
      out.insert(out.end(), row.begin(), row.end());
    }
    state = world.state(0);
  }
};

// Three sequences in calls of random pieces, now parts of prompts, now blocks of which some rows were wrong.
inline void check_invariance(Device& device, const DeltaRun& run, const DeltaShape& shape, DType dtype, int tape_rows,
                             uint32_t seed, bool recorded = false) {
  constexpr int kSlots = 3, kRows = 67;
  const Weights w(shape);
  std::vector<Sequence> sequences;
  for (int i = 0; i < kSlots; ++i) sequences.emplace_back(w, kRows, 20 + 2 * i);
  World world(device, w, kSlots, tape_rows, dtype, run);
  if (recorded) world.record();
  std::mt19937 random(seed);
  std::vector<int> done(kSlots);
  std::vector<std::vector<float>> out(kSlots);
  const auto left = [&](int slot) { return kRows - done[slot]; };
  while (left(0) + left(1) + left(2) > 0) {
    std::vector<World::Piece> pieces;
    for (int slot = 0; slot < kSlots; ++slot) {
      if (left(slot) == 0 || random() % 4 == 0) continue;
      // The last row comes alone, so that all before it are in the state.
      const bool prompt = random() % 3 == 0;
      const int drafted = static_cast<int>(random() % (tape_rows + 1));
      const int most = std::max(1, left(slot) - 1);
      const int rows = std::min(
          most, prompt ? 1 + static_cast<int>(random() % 30) : 1 + (drafted > 0 ? int(random() % (drafted + 1)) : 0));
      const int wrong = prompt || left(slot) == 1 ? 0 : std::max(0, 1 + drafted - rows);
      pieces.push_back({slot, done[slot], rows, wrong, &sequences[slot]});
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    const auto parts = world.run(pieces, static_cast<int>(random() % 2));
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int slot = pieces[i].slot;
      out[slot].insert(out[slot].end(), parts[i].begin(), parts[i].end());
      done[slot] += pieces[i].rows;
    }
  }
  for (int slot = 0; slot < kSlots; ++slot) {
    const Reference alone(device, run, w, sequences[slot], kRows, dtype);
    ASSERT_EQ(std::memcmp(out[slot].data(), alone.out.data(), alone.out.size() * sizeof(float)), 0) << "slot " << slot;
    ASSERT_EQ(world.state(slot), alone.state) << "slot " << slot;
  }
}

// Prompts in few long calls, with a request that decodes beside them, compared with calls of at most 60 rows.
inline void check_long_prompts(Device& device, const DeltaRun& run, const DeltaShape& shape, DType dtype,
                               int tape_rows) {
  constexpr int kEach = 2600, kShort = 60, kFirst[] = {1300, 1171, 1};
  const Weights w(shape);
  std::vector<Sequence> sequences;
  for (int i = 0; i < 3; ++i) sequences.emplace_back(w, kEach, 90 + 2 * i);
  World alone(device, w, 3, tape_rows, dtype, run), longer(device, w, 3, tape_rows, dtype, run, 2 * kEach);
  std::vector<std::vector<float>> want(3), got(3);
  const auto take = [&](World& world, const std::vector<World::Piece>& pieces, std::vector<std::vector<float>>& out) {
    const auto parts = world.run(pieces);
    for (size_t i = 0; i < pieces.size(); ++i) {
      out[pieces[i].slot].insert(out[pieces[i].slot].end(), parts[i].begin(), parts[i].end());
    }
  };
  for (int slot = 0; slot < 3; ++slot) {
    const int all = slot < 2 ? kEach : 3;
    for (int done = 0; done < all - 1; done += kShort) {
      take(alone, {{slot, done, std::min(kShort, all - 1 - done), 0, &sequences[slot]}}, want);
    }
    take(alone, {{slot, all - 1, 1, 0, &sequences[slot]}}, want);
  }
  std::vector<World::Piece> pieces[3];
  for (int slot = 0; slot < 3; ++slot) {
    const int all = slot < 2 ? kEach : 3, first = kFirst[slot];
    pieces[0].push_back({slot, 0, first, 0, &sequences[slot]});
    pieces[1].push_back({slot, first, all - 1 - first, 0, &sequences[slot]});
    pieces[2].push_back({slot, all - 1, 1, 0, &sequences[slot]});
  }
  for (const auto& call : pieces) take(longer, call, got);
  for (int slot = 0; slot < 3; ++slot) {
    ASSERT_EQ(got[slot].size(), want[slot].size());
    ASSERT_EQ(std::memcmp(got[slot].data(), want[slot].data(), want[slot].size() * sizeof(float)), 0)
        << "slot " << slot;
    ASSERT_EQ(longer.state(slot), alone.state(slot)) << "slot " << slot;
  }
}

inline void check_slot_begins_anew(Device& device, const DeltaRun& run) {
  const Weights w(kShapes[1]);
  const Sequence first(w, 40, 50), second(w, 40, 60);
  World world(device, w, 1, 3, DType::kF32, run);
  world.run({{0, 0, 30, 3, &first}});
  const auto got = world.run({{0, 0, 40, 0, &second}})[0];
  EXPECT_EQ(got, World(device, w, 1, 3, DType::kF32, run).run({{0, 0, 40, 0, &second}})[0]);
}

// A slot that is done brings a segment of no rows, or none.
inline void check_slot_without_rows_stays(Device& device, const DeltaRun& run) {
  const Weights w(kShapes[1]);
  const Sequence first(w, 20, 70), second(w, 20, 80);
  World world(device, w, 2, 3, DType::kF32, run);
  world.run({{0, 0, 8, 0, &first}, {1, 0, 6, 0, &second}});
  world.run({{0, 8, 1, 2, &first}, {1, 6, 1, 0, &second}});
  const auto before = world.state(0);
  auto parts = world.run({{0, 8, 0, 0, &first}, {1, 7, 4, 0, &second}})[1];
  EXPECT_EQ(world.state(0), before);
  const auto more = world.run({{1, 11, 3, 0, &second}})[0];
  EXPECT_EQ(world.state(0), before);
  parts.insert(parts.end(), more.begin(), more.end());
  const auto alone = World(device, w, 1, 0, DType::kF32, run).run({{0, 0, 14, 0, &second}})[0];
  EXPECT_EQ(parts, std::vector<float>(alone.begin() + 7 * w.shape.v_width(), alone.end()));
}

}  // namespace volley::ops
