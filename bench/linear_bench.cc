// The linear operation against what the machine could do: max(bytes / bandwidth, products / peak). Shapes of Qwen3-0.6B
// with weights from memory, as in decoding (layers take turns, so that none is still in a cache), and shapes of a model
// of a few million weights, which the caches hold.
//
// Counters: best_us, the fastest call; ratio, best_us over the machine's limit (1.0 is perfect).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "device/probe.h"
#include "ops/cpu_features.h"
#include "ops/linear/linear.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

struct Shape {
  const char* name;
  int64_t k, n;
  ops::EndKind kind;
};

constexpr Shape kLarge[] = {{"qkv", 1024, 4096, ops::EndKind::kStore},
                            {"o", 2048, 1024, ops::EndKind::kAdd},
                            {"gate_up", 1024, 6144, ops::EndKind::kSwiGlu},
                            {"down", 3072, 1024, ops::EndKind::kAdd},
                            {"head", 1024, 151936, ops::EndKind::kStore}};
constexpr Shape kSmall[] = {{"qkv", 256, 640, ops::EndKind::kStore},
                            {"o", 384, 256, ops::EndKind::kAdd},
                            {"gate_up", 256, 1536, ops::EndKind::kSwiGlu},
                            {"down", 768, 256, ops::EndKind::kAdd},
                            {"head", 256, 2048, ops::EndKind::kStore}};

// Weights of as many layers as it takes to fill `bytes`, at least of one.
std::vector<ops::LinearWeight> make_layers(Device& device, const Shape& shape, size_t bytes) {
  std::vector<uint16_t> rows(shape.n * shape.k);
  std::minstd_rand random(1);
  for (uint16_t& w : rows) w = static_cast<uint16_t>(0x3c00 | (random() & 0x81ff));
  const bool pairs = shape.kind == ops::EndKind::kSwiGlu;
  std::vector<ops::WeightRows> parts;
  for (int64_t p = 0; p < (pairs ? 2 : 1); ++p) {
    const int64_t n = pairs ? shape.n / 2 : shape.n;
    parts.push_back({rows.data() + p * n * shape.k, DType::kBF16, n});
  }
  std::vector<ops::LinearWeight> layers;
  for (size_t have = 0; have == 0 || have < bytes; have += rows.size() * sizeof(uint16_t)) {
    layers.push_back(std::move(ops::pack_linear(device, parts, shape.k, DType::kBF16,
                                                pairs ? ops::LinearLayout::kGateUp : ops::LinearLayout::kPlain))
                         .value());
  }
  return layers;
}

// What the machine can do at best.
struct Limits {
  double read_bytes_per_ns = 0;  // from memory, all threads together
  double products_per_ns = 0;    // bf16 multiply-adds, all threads together; 0 where the kernels have no such product
};

Limits measure_limits(int threads) {
  const MachineSpeed speed = MachineProbe(threads).measure(MachineProbe::kBytes);
  return {speed.read_bytes_per_s * 1e-9, ops::cpu_has_avx512_bf16() ? speed.bf16_flops / 2 * 1e-9 : 0};
}

void run_linear(benchmark::State& state, Device& device, const Limits& limits, const Shape& shape, size_t bytes) {
  const int64_t rows = state.range(0);
  const std::vector<ops::LinearWeight> layers = make_layers(device, shape, bytes);
  const bool add = shape.kind == ops::EndKind::kAdd, head = std::string(shape.name) == "head";
  const int64_t columns = shape.kind == ops::EndKind::kSwiGlu ? shape.n / 2 : shape.n;
  Buffer x = std::move(device.allocate(rows * shape.k * 2)).value();
  Buffer y = std::move(device.allocate(rows * columns * 4)).value();
  std::fill_n(static_cast<uint16_t*>(x.data()), rows * shape.k, uint16_t{0x3f00});
  const TensorView x_view = x.view(DType::kBF16, {rows, shape.k});
  const TensorView y_view = y.view(add || head ? DType::kF32 : DType::kBF16, {rows, columns});
  Arena none{Buffer()};
  double best = 1e300;
  size_t layer = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    ops::linear(device.stream(), layers[layer], x_view, y_view, {shape.kind}, none);
    const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, ns);
    layer = (layer + 1) % layers.size();
    state.SetIterationTime(ns * 1e-9);
  }
  const double weights = static_cast<double>(shape.k * shape.n);
  const double reading = bytes > 0 ? 2 * weights / limits.read_bytes_per_ns : 0;
  const double multiplying = limits.products_per_ns > 0 ? weights * rows / limits.products_per_ns : 0;
  state.counters["best_us"] = best * 1e-3;
  state.counters["GMAC/s"] = weights * rows / best;
  if (const double limit = std::max(reading, multiplying); limit > 0) state.counters["ratio"] = best / limit;
}

void handing_out(benchmark::State& state, Device& device) {
  for (auto _ : state) device.stream().pool().parallel_for(2, [](int64_t, int) {});
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  auto device = *make_cpu_device(0);
  const Limits limits = measure_limits(device->stream().pool().threads());
  std::printf("%s, %d threads: reads %.1f GB/s, %.1f GMAC/s\n", ops::cpu_instruction_set().c_str(),
              device->stream().pool().threads(), limits.read_bytes_per_ns, limits.products_per_ns);
  benchmark::RegisterBenchmark("handing_out", [&](benchmark::State& s) { handing_out(s, *device); });
  for (const Shape& shape : kSmall) {
    benchmark::RegisterBenchmark((std::string("small/") + shape.name).c_str(),
                                 [&](benchmark::State& s) { run_linear(s, *device, limits, shape, 0); })
        ->ArgName("rows")
        ->Arg(1)
        ->Arg(16)
        ->UseManualTime();
  }
  for (const Shape& shape : kLarge) {
    constexpr size_t kBytes = 192 << 20;
    auto* run = benchmark::RegisterBenchmark((std::string("large/") + shape.name).c_str(), [&](benchmark::State& s) {
      run_linear(s, *device, limits, shape, kBytes);
    });
    run->ArgName("rows")->UseManualTime()->Arg(1)->Arg(4)->Arg(8)->Arg(16)->Arg(64);
    if (shape.n < 100000) run->Arg(512);  // a prompt's chunk takes the head at its last row alone
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
