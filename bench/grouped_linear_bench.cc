// Grouped products of experts against linear() reading as many bytes: experts of 768 with 2048 inputs, 8 a row, of
// which this has 32 (Qwen3-30B-A3B has 128). Routing is simulated, another one each time, so that weights come from
// memory.
//
// Counters: GB/s of the weights of experts that have rows, by the fastest call; experts, how many these are.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "device/dry_run.h"
#include "ops/grouped_linear/grouped_linear.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int64_t kHidden = 2048, kInner = 768, kMostRows = 512;
constexpr int32_t kExperts = 32, kTopK = 8;

ops::RouterRule rule() {
  return {.experts = kExperts, .top_k = kTopK};
}

struct World {
  std::unique_ptr<Device> device = std::move(make_cpu_device(0)).value();
  ops::ExpertWeights gate_up, down;
  ops::LinearWeight same_bytes;  // gate and up of top_k experts as one matrix
  Arena arena;
  Buffer x, m, d;

  World()
      : arena(allocate(
            measure_scratch(device->stream(), [](Arena& routing) { ops::take_routing(routing, rule(), kMostRows); }))) {
    std::vector<uint16_t> values(2 * kInner * kHidden);
    std::minstd_rand random(1);
    for (uint16_t& v : values) v = static_cast<uint16_t>(0x3c00 | (random() & 0x81ff));
    const ops::WeightRows half{values.data(), DType::kBF16, kInner}, out{values.data(), DType::kBF16, kHidden};
    gate_up = std::move(ops::pack_experts(*device, std::vector(2 * kExperts, half), kExperts, kHidden, DType::kBF16,
                                          ops::LinearLayout::kGateUp))
                  .value();
    down = std::move(ops::pack_experts(*device, std::vector(kExperts, out), kExperts, kInner, DType::kBF16,
                                       ops::LinearLayout::kPlain))
               .value();
    const ops::WeightRows all{values.data(), DType::kBF16, kInner};
    same_bytes = std::move(ops::pack_linear(*device, std::vector(2 * kTopK, all), kHidden, DType::kBF16)).value();
    x = allocate(kMostRows * kHidden * 2);
    m = allocate(kMostRows * kTopK * kInner * 2);
    d = allocate(kMostRows * kTopK * kHidden * 2);
    std::fill_n(static_cast<uint16_t*>(x.data()), kMostRows * kHidden, uint16_t{0x3f00});
    std::fill_n(static_cast<uint16_t*>(m.data()), kMostRows * kTopK * kInner, uint16_t{0x3f00});
  }
  Buffer allocate(int64_t bytes) const { return std::move(device->allocate(static_cast<size_t>(bytes))).value(); }

  ops::Routing route(int64_t rows, uint32_t layer) {
    arena.release(0);
    const ops::Routing routing = ops::take_routing(arena, rule(), rows);
    std::vector<int32_t> numbers(rows);
    for (int64_t i = 0; i < rows; ++i) numbers[i] = static_cast<int32_t>(i);
    ops::RouteCall call;
    call.simulated = {{numbers.data(), DType::kI32, {rows}}, 1, layer};
    ops::route(device->stream(), rule(), call, routing);
    return routing;
  }
};

// call(routing); bytes_each: of an expert.
template <typename Call>
void run(benchmark::State& state, World& world, double bytes_each, const Call& call) {
  double best = 0, experts = 0;
  uint32_t layer = 0;
  for (auto _ : state) {
    const ops::Routing routing = world.route(state.range(0), ++layer);
    const int32_t touched = *routing.touched_count.as<int32_t>();
    const auto start = std::chrono::steady_clock::now();
    call(routing);
    const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, touched * bytes_each / ns);
    experts += touched;
    state.SetIterationTime(ns * 1e-9);
  }
  state.counters["GB/s"] = best;
  state.counters["experts"] = experts / static_cast<double>(state.iterations());
}

void grouped(benchmark::State& state, World& world, bool in) {
  const int64_t rows = state.range(0), entries = rows * kTopK;
  const TensorView x = world.x.view(DType::kBF16, {rows, kHidden}), m = world.m.view(DType::kBF16, {entries, kInner}),
                   d = world.d.view(DType::kBF16, {entries, kHidden});
  run(state, world, (in ? 4.0 : 2.0) * kInner * kHidden, [&](const ops::Routing& routing) {
    ops::grouped_linear(world.device->stream(), in ? world.gate_up : world.down, in ? x : m, routing, in ? m : d,
                        {.rows = in ? ops::GroupedRows::kIn : ops::GroupedRows::kOut},
                        {in ? ops::EndKind::kSwiGlu : ops::EndKind::kStore});
  });
}

// 50 MB, which no cache here holds.
void linear_of_as_many_bytes(benchmark::State& state, World& world) {
  const int64_t rows = state.range(0);
  Buffer y = world.allocate(rows * world.same_bytes.n * 4);
  Arena none{Buffer()};
  double best = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    ops::linear(world.device->stream(), world.same_bytes, world.x.view(DType::kBF16, {rows, kHidden}),
                y.view(DType::kF32, {rows, world.same_bytes.n}), {}, none);
    const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * static_cast<double>(world.same_bytes.n * kHidden) / ns);
    state.SetIterationTime(ns * 1e-9);
  }
  state.counters["GB/s"] = best;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  World world;
  benchmark::RegisterBenchmark("linear", [&](benchmark::State& s) { linear_of_as_many_bytes(s, world); })
      ->ArgName("rows")
      ->Arg(1)
      ->UseManualTime();
  for (const bool in : {true, false}) {
    auto* bench = benchmark::RegisterBenchmark(in ? "gate_up" : "down",
                                               [&world, in](benchmark::State& s) { grouped(s, world, in); });
    bench->ArgName("rows")->UseManualTime()->Arg(1)->Arg(4)->Arg(16)->Arg(64)->Arg(512);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
