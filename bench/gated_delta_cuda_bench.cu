// The gated delta rule on a GPU: a layer of Qwen3.5-9B's shape in rounds of requests that verify 16 rows each, of which
// 6 become part of the sequence; in rounds of one row; and over a prompt. Microseconds of a layer beside its floor,
// which is one read and one write of the states.
//
// A graph holds some rounds over 24 layers with memory of their own, so that no state is in the cache from the round
// before; the first round begins the sequences anew, so its time is taken off.
#include <cstdio>

#include "cuda_limits.cuh"
#include "ops/gated_delta/gated_delta.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr ops::DeltaShape kShape = {16, 32, 128, 128, 4};
constexpr int kLayers = 24, kMostRequests = 64, kBlock = 16, kAccepted = 6, kMostRows = 8192;
constexpr int kRounds = 4;

class Bench {
 public:
  explicit Bench(Device& device) : device_(device), slot_bytes_(ops::delta_state_bytes(kShape, kBlock - 1, kType)) {
    states_ = take(kLayers * kMostRequests * slot_bytes_);
    projected_ = values(int64_t{kMostRows} * width(), 1.0f);
    out_ = take(int64_t{kMostRows} * kShape.v_width() * 2);
    gates_ = floats(int64_t{kMostRows} * 2 * kShape.v_heads);
    weights_ = floats(kShape.channels() * kShape.taps);
  }

  // Rounds of `requests` segments of `rows` rows, of which `kept` become part of the sequence.
  void rounds(int requests, int rows, int kept) {
    const double us =
        (graph_us(requests, rows, kept, kRounds) - graph_us(requests, rows, kept, 1)) / ((kRounds - 1) * kLayers);
    const double bytes = 2.0 * requests * static_cast<double>(kShape.v_width()) * kShape.k_dim * sizeof(float);
    const double floor = bytes / bandwidth_;
    std::printf("{\"requests\": %d, \"rows\": %d, \"us\": %.2f, \"floor_us\": %.2f, \"over_floor\": %.2f}\n", requests,
                rows, us, floor, us / floor);
  }

  void prompt(int rows) {
    const double us = graph_us(1, rows, rows, 1) / kLayers;
    std::printf("{\"prompt_rows\": %d, \"us\": %.2f, \"us_a_row\": %.3f}\n", rows, us, us / rows);
  }

 private:
  static constexpr DType kType = DType::kBF16;
  static int64_t width() { return kShape.channels() + kShape.v_width(); }

  Buffer take(int64_t bytes) {
    auto buffer = device_.allocate(static_cast<size_t>(bytes));
    VOLLEY_CHECK_MSG(buffer.ok(), "out of GPU memory");
    return std::move(*buffer);
  }
  Buffer values(int64_t count, float scale) {
    Buffer buffer = take(count * 2);
    bench::fill_bf16(device_, buffer.data(), count, 1, scale);
    return buffer;
  }
  // Uniform in (-1, 1).
  Buffer floats(int64_t count) {
    Buffer buffer = take(count * 4);
    std::vector<float> host(static_cast<size_t>(count));
    uint32_t state = 1;
    for (float& x : host) x = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
    device_.upload(buffer.data(), host.data(), host.size() * sizeof(float));
    return buffer;
  }
  template <typename T>
  TensorView upload(const std::vector<T>& host) {
    kept_.push_back(take(static_cast<int64_t>(host.size() * sizeof(T))));
    device_.upload(kept_.back().data(), host.data(), host.size() * sizeof(T));
    return kept_.back().view(DType::kU8, {1});
  }

  double graph_us(int requests, int rows, int kept, int rounds) {
    const int all = requests * rows;
    std::vector<ops::RowSegment> segments;
    std::vector<int32_t> slots;
    for (int i = 0; i < requests; ++i) {
      segments.push_back({i * rows, rows, i});
      slots.resize(slots.size() + rows, i);
    }
    ops::Rows batch;
    batch.rows = all;
    batch.segments = static_cast<ops::RowSegment*>(upload(segments).data);
    batch.n_segments = requests;
    batch.max_segment_rows = rows;
    batch.slots = TensorView(upload(slots).data, DType::kI32, {all});
    std::vector<TensorView> positions;
    for (int round = 0; round < rounds; ++round) {
      std::vector<int32_t> host;
      for (int i = 0; i < all; ++i) host.push_back(round * kept + i % rows);
      positions.emplace_back(upload(host).data, DType::kI32, std::initializer_list<int64_t>{all});
    }
    ops::GatedDelta args;
    args.shape = kShape;
    args.projected = projected_.view(kType, {all, width()});
    args.gates = gates_.view(DType::kF32, {all, 2 * kShape.v_heads});
    args.conv = weights_.view(DType::kF32, {kShape.channels() * kShape.taps});
    args.a_log = args.dt_bias = weights_.view(DType::kF32, {kShape.v_heads});
    args.norm = weights_.view(DType::kF32, {kShape.v_dim});
    args.eps = 1e-6f;
    args.out = out_.view(kType, {all, kShape.v_width()});
    Arena scratch(take(64 << 20));
    const double us = bench::graph_us(device_, [&] {
      for (int round = 0; round < rounds; ++round) {
        batch.cache_positions = positions[static_cast<size_t>(round)];
        for (int layer = 0; layer < kLayers; ++layer) {
          auto* base = static_cast<std::byte*>(states_.data()) + layer * kMostRequests * slot_bytes_;
          args.state = {base, kMostRequests, kBlock - 1, kType};
          ops::gated_delta(device_.stream(), batch, args, scratch);
        }
      }
    });
    kept_.clear();
    return us;
  }

  Device& device_;
  const int64_t slot_bytes_;
  const double bandwidth_ = bench::read_bandwidth();
  Buffer states_, projected_, out_, gates_, weights_;
  std::vector<Buffer> kept_;
};

}  // namespace

int main() {
  const auto owner = bench::cuda_device();
  Bench bench(*owner);
  for (const int requests : {1, 2, 4, 8, 16, 32, 64}) bench.rounds(requests, kBlock, kAccepted);
  for (const int requests : {1, 8, 64}) bench.rounds(requests, 1, 1);
  for (const int rows : {256, 2048, kMostRows}) bench.prompt(rows);
  return 0;
}
