// The sampling rule on a GPU over Qwen3's vocabulary, at 16 to 512 rows, as CUDA graphs, beside a kernel that only
// reads the logits. Prints one JSON object a line.
#include <cmath>
#include <cstdio>
#include <random>

#include "cuda_limits.cuh"
#include "device/cuda/dependent.cuh"
#include "device/dry_run.h"
#include "ops/choice/choice.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int32_t kVocab = 151936, kMaxRows = 512, kBlock = 16;
constexpr int kCalls = 10;  // in a graph

using bench::allocate;

__global__ void read_kernel(const float4* from, int64_t count, float* to) {
  cuda::launch_dependents();
  cuda::wait_for_predecessors();
  float most = -INFINITY;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 8
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const float4 v = from[i];
    most = fmaxf(most, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  if (most == 12345.0f) *to = most;
}

// Most tokens far below a few, as a language model has it.
std::vector<float> make_logits(int64_t rows) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0.0f, 2.2f);
  std::exponential_distribution<float> raised(0.4f);
  std::vector<float> pool(1 << 20);
  for (float& x : pool) x = normal(rng);
  std::vector<float> logits(static_cast<size_t>(rows) * kVocab);
  for (int64_t row = 0; row < rows; ++row) {
    float* to = logits.data() + row * kVocab;
    const size_t shift = rng() % (pool.size() - kVocab);
    std::copy_n(pool.begin() + static_cast<ptrdiff_t>(shift), kVocab, to);
    for (int i = 0; i < 64; ++i) to[rng() % kVocab] = 8.0f + raised(rng);
  }
  return logits;
}

struct Mode {
  const char* name;
  SamplingParams params;
  bool probability;
};

std::vector<Mode> modes() {
  using Params = SamplingParams;
  const Params filtered = {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20};
  Params penalised = filtered;
  penalised.presence_penalty = 1.5f;
  return {{"greedy", Params{.temperature = 0.0f}, false},
          {"sampled", Params{.temperature = 0.8f}, false},
          {"greedy, probability", Params{.temperature = 0.0f}, true},
          {"sampled, probability", Params{.temperature = 0.8f}, true},
          {"top-k 20, top-p 0.95", filtered, false},
          {"top-k 20, top-p 0.95, presence", penalised, false},
          {"top-p 0.95", Params{.top_p = 0.95f}, false},
          {"top-k 200", Params{.top_k = 200}, false},
          {"min-p 0.05", Params{.min_p = 0.05f}, false}};
}

class Bench {
 public:
  explicit Bench(Device& device)
      : device_(device),
        state_(std::move(ops::SamplerState::create(device, kMaxRows / kBlock, kVocab)).value()),
        logits_(allocate(device, size_t{4} * kMaxRows * kVocab)),
        segments_(allocate(device, sizeof(ops::ChoiceSegment) * kMaxRows)),
        prefix_(allocate(device, sizeof(TokenId) * kBlock)),
        out_(allocate(device, size_t{8} * kMaxRows)),
        scratch_(allocate(device, scratch_bytes(device.stream()))) {
    const std::vector<float> logits = make_logits(kMaxRows);
    device.upload(logits_.data(), logits.data(), logits.size() * sizeof(float));
  }

  size_t scratch_bytes(Stream& stream) const {
    return static_cast<size_t>(measure_scratch(stream, [&](Arena& arena) {
      ops::ChoiceOutput out;
      out.tokens = static_cast<TokenId*>(out_.data());
      const std::span segments(static_cast<const ops::ChoiceSegment*>(segments_.data()), 1);
      ops::choose(stream, logits_.view(DType::kF32, {kMaxRows, kVocab}), segments, *state_, out, arena);
    }));
  }

  double read_us(int32_t rows) {
    const auto* from = static_cast<const float4*>(logits_.data());
    return per_call([&] {
      cuda::launch(read_kernel, {.grid = dim3(132 * 8), .block = dim3(256), .early = true}, device_.stream(), from,
                   int64_t{rows} * kVocab / 4, static_cast<float*>(out_.data()));
    });
  }

  // in_order: as a draft block, whose choices count in its own penalties.
  double choose_us(const Mode& mode, int32_t rows, bool in_order = false) {
    std::vector<ops::ChoiceSegment> segments;
    for (int32_t slot = 0; slot < rows / kBlock; ++slot) {
      ops::SlotSampling s;
      s.params = mode.params;
      s.seed = 17 + static_cast<uint64_t>(slot);
      VOLLEY_CHECK(state_->start(slot, s, {}, {}).ok());
      ops::ChoiceSegment segment;
      segment.slot = slot;
      segment.row_begin = slot * kBlock;
      segment.rows = kBlock;
      segment.first_index = 100;
      segment.prefix = in_order ? nullptr : static_cast<const TokenId*>(prefix_.data());
      segments.push_back(segment);
    }
    device_.upload(segments_.data(), segments.data(), segments.size() * sizeof(segments[0]));
    ops::ChoiceOutput out;
    out.tokens = static_cast<TokenId*>(out_.data());
    if (mode.probability) out.probability = static_cast<float*>(out_.data()) + kMaxRows;
    const TensorView view = logits_.view(DType::kF32, {rows, kVocab});
    return per_call([&] {
      ops::choose(device_.stream(), view, {static_cast<const ops::ChoiceSegment*>(segments_.data()), segments.size()},
                  *state_, out, scratch_);
    });
  }

 private:
  double per_call(const std::function<void()>& call) {
    return bench::graph_us(device_,
                           [&] {
                             for (int i = 0; i < kCalls; ++i) call();
                           }) /
           kCalls;
  }

  Device& device_;
  std::unique_ptr<ops::SamplerState> state_;
  Buffer logits_, segments_, prefix_, out_;
  Arena scratch_;
};

}  // namespace

int main() {
  const auto owner = bench::cuda_device();
  Bench bench(*owner);
  for (const int32_t rows : {16, 128, 512}) {
    const double read = bench.read_us(rows);
    std::printf("{\"rows\": %d, \"mode\": \"read\", \"us\": %.2f}\n", rows, read);
    for (const Mode& mode : modes()) {
      const double us = bench.choose_us(mode, rows);
      std::printf("{\"rows\": %d, \"mode\": \"%s\", \"us\": %.2f, \"of_read\": %.2f}\n", rows, mode.name, us,
                  us / read);
    }
    const Mode penalised = modes()[5];
    std::printf("{\"rows\": %d, \"mode\": \"%s, drafting in order\", \"us\": %.2f}\n", rows, penalised.name,
                bench.choose_us(penalised, rows, true));
    std::fflush(stdout);
  }
  return 0;
}
