// A mixture of experts on a GPU, in the shapes of Qwen3-30B-A3B (hidden 2048, 128 experts of 768, 8 a row), for layers
// with distinct weights one after the other in a CUDA graph: as the model runs it (the router with its product, and the
// experts), as separate operations (the router's product, the routing, gate and up, down, the combination), and each of
// them alone. Routing is simulated: independent of the values, so that the experts
// that are touched are as many as chance has it. Against what reading their weights, or multiplying, takes at least.
//
// Prints one JSON object a line. Options: --json FILE writes the same lines there; --rows N takes that number of rows
// alone; --portable takes the kernels for GPUs without wgmma; --rested lets the GPU rest before each measurement;
// --wide leaves the experts' outputs in fp32; --codes NAME stores experts as codes: fp8 (scales of 128 columns, bf16
// numbers), fp8-long (the same with fp32 scales), mxfp4 or int4.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "cuda_limits.cuh"
#include "device/dry_run.h"
#include "ops/grouped_linear/grouped_linear_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/router/route_rows.h"

namespace {

using namespace volley;  // NOLINT: a program, not a header

constexpr int kLayers = 8;
constexpr int64_t kHidden = 2048, kInner = 768, kExperts = 128, kTopK = 8, kMostRows = 2048;
constexpr int kRows[] = {1, 4, 8, 16, 32, 64, 128, 256, 512, 2048};
constexpr int64_t kMostCounters = 64 << 10;
constexpr double kFlopsPerUs = 790e6;  // what a GPU at its power limit sustains

using bench::allocate;

ops::RouterRule rule() {
  return {.experts = kExperts, .top_k = kTopK};
}

// How experts are stored.
struct Storage {
  std::string name = "bf16";
  ops::WeightFormat format = DType::kBF16;
  float scale = 0x1.24p-8f;
};

std::optional<Storage> storage_of(const std::string& name) {
  for (const Storage& known :
       {Storage{}, Storage{"fp8", ops::kFp8Weights, 0x1.24p-12f}, Storage{"fp8-long", ops::kFp8Weights, 0x1.23456p-12f},
        Storage{"mxfp4", ops::kMxfp4Weights, 0x1p-8f}, Storage{"int4", ops::kInt4Weights}}) {
    if (known.name == name) return known;
  }
  return std::nullopt;
}

// The same codes in all layers, whose memory is their own.
ops::ExpertWeights code_experts(Device& device, const ops::ExpertWeights* first, const Storage& storage, int64_t n,
                                int64_t k, ops::LinearLayout layout) {
  if (first != nullptr) {
    ops::ExpertWeights w;
    w.experts = first->experts;
    w.n = n;
    w.k = k;
    w.format = first->format;
    w.layout = layout;
    w.packed = allocate(device, static_cast<int64_t>(first->packed.bytes()));
    device.enqueue_copy(w.packed.data(), first->packed.data(), first->packed.bytes());
    return w;
  }
  const int64_t each = layout == ops::LinearLayout::kGateUp ? 2 : 1;
  std::vector<ops::WeightRows> parts;
  for (int64_t i = 0; i < kExperts * each; ++i) {
    ops::WeightRows part;
    part.rows = n / each;
    part.codes = [i, &storage](int64_t row, const ops::CodedRow& out) {
      auto state = static_cast<uint32_t>(i * 4096 + row + 1) * 2654435761u;
      const uint32_t mask = storage.format.is_nibbles() ? 0xf : 0xbf;  // of e4m3 below 2
      for (uint8_t& code : out.codes) code = (state = state * 1664525u + 1013904223u) >> 24 & mask;
      for (float& scale : out.scales) scale = storage.scale;
    };
    parts.push_back(std::move(part));
  }
  return std::move(ops::pack_experts(device, parts, kExperts, k, storage.format, layout)).value();
}

ops::ExpertWeights experts(Device& device, int64_t n, int64_t k, ops::LinearLayout layout, uint32_t seed) {
  ops::ExpertWeights w;
  w.experts = kExperts;
  w.n = n;
  w.k = k;
  w.layout = layout;
  w.packed = allocate(device, kExperts * ops::grouped_cuda_expert_bytes(n, k, w.format.code, layout));
  bench::fill_bf16(device, w.packed.data(), kExperts * n * k, seed, 1.7f / std::sqrt(static_cast<float>(k)));
  return w;
}

struct Layer {
  ops::LinearWeight router;
  ops::ExpertWeights gate_up, down;
  std::unique_ptr<Arena> arena;

  Layer(Device& device, uint32_t seed, bool portable, const Storage& storage, const Layer* first)
      : gate_up(storage.format.is_codes() ? code_experts(device, first == nullptr ? nullptr : &first->gate_up, storage,
                                                         2 * kInner, kHidden, ops::LinearLayout::kGateUp)
                                          : experts(device, 2 * kInner, kHidden, ops::LinearLayout::kGateUp, seed)),
        down(storage.format.is_codes() ? code_experts(device, first == nullptr ? nullptr : &first->down, storage,
                                                      kHidden, kInner, ops::LinearLayout::kPlain)
                                       : experts(device, kHidden, kInner, ops::LinearLayout::kPlain, seed + 1)),
        arena(std::make_unique<Arena>(allocate(device, measure_scratch(device.stream(), [](Arena& routing) {
                                                 ops::take_routing(routing, rule(), kMostRows);
                                               })))) {
    router.n = kExperts;
    router.k = kHidden;
    router.packed =
        allocate(device, ops::linear_cuda_packed_bytes(router.n, router.k, router.format.code, router.layout));
    bench::fill_bf16(device, router.packed.data(), router.n * router.k, seed + 2, 0.04f);
    router.portable = gate_up.portable = down.portable = portable;
  }
};

// kRouteRows is kRouter and kRoute in one, kFfn the three that follow them.
enum Part {
  kRouter = 1,
  kRoute = 2,
  kGateUp = 4,
  kDown = 8,
  kCombine = 16,
  kApart = kRouter | kRoute | kGateUp | kDown | kCombine,
  kRouteRows = 32,
  kFfn = 64,
  kLayer = kRouteRows | kFfn
};

struct Model {
  Device& device;
  DType d_dtype;
  std::string weights;
  std::vector<Layer> layers;
  Buffer x, logits, m, d, y, positions, slots, touched, counters;

  Model(Device& device, bool portable, DType d_dtype, const Storage& storage)
      : device(device),
        d_dtype(d_dtype),
        weights(storage.name),
        x(allocate(device, kMostRows * kHidden * 2)),
        logits(allocate(device, kMostRows * kExperts * 4)),
        m(allocate(device, kMostRows * kTopK * kInner * 2)),
        d(allocate(device, kMostRows * kTopK * kHidden * 4)),
        y(allocate(device, kMostRows * kHidden * 4)),
        positions(allocate(device, kMostRows * 4)),
        slots(allocate(device, kMostRows * 4)),
        touched(allocate(device, 8)),
        counters(allocate(device, kMostCounters * 4)) {
    bench::fill_bf16(device, x.data(), kMostRows * kHidden, 7, 1.0f);
    bench::fill_bf16(device, m.data(), kMostRows * kTopK * kInner, 8, 1.0f);
    std::vector<int32_t> numbers(kMostRows);
    for (int64_t i = 0; i < kMostRows; ++i) numbers[i] = static_cast<int32_t>(i);
    device.upload(slots.data(), numbers.data(), numbers.size() * 4);
    layers.reserve(kLayers);
    for (int i = 0; i < kLayers; ++i) {
      layers.emplace_back(device, static_cast<uint32_t>(10 * i + 1), portable, storage,
                          i == 0 ? nullptr : layers.data());
    }
    device.synchronize();
  }

  void run(int64_t rows, int parts) {
    const int64_t entries = rows * kTopK;
    const TensorView in(x.data(), DType::kBF16, {rows, kHidden}), inner(m.data(), DType::kBF16, {entries, kInner}),
        out(d.data(), d_dtype, {entries, kHidden}), scores(logits.data(), DType::kF32, {rows, kExperts});
    for (size_t i = 0; i < layers.size(); ++i) {
      Layer& layer = layers[i];
      ArenaScope scope(*layer.arena);
      const ops::Routing routing = ops::take_routing(*layer.arena, rule(), rows);  // the same memory each time
      ops::RouteCall call;
      call.row_slots = slots.view(DType::kI32, {rows});
      call.simulated = {positions.view(DType::kI32, {rows}), 1, static_cast<uint32_t>(i)};
      call.logits = scores;
      call.touched_total = static_cast<int64_t*>(touched.data());
      if ((parts & kFfn) && ops::experts_gain_from_counters(rule(), kInner, rows)) {
        call.zeroed = counters.view(DType::kI32, {ops::experts_counters(rule(), rows)});
      }
      Stream& stream = device.stream();
      if (parts & kRouter) ops::linear(stream, layer.router, in, scores, {}, *layer.arena);
      if (parts & kRoute) ops::route(stream, rule(), call, routing);
      if (parts & kGateUp) {
        ops::grouped_linear(stream, layer.gate_up, in, routing, inner, {.rows = ops::GroupedRows::kIn},
                            {ops::EndKind::kSwiGlu});
      }
      if (parts & kDown) {
        ops::grouped_linear(stream, layer.down, inner, routing, out,
                            {.rows = ops::GroupedRows::kOut, .routing_ready = (parts & kGateUp) != 0}, {});
      }
      if (parts & kRouteRows) ops::route_rows(stream, rule(), layer.router, in, call, routing, *layer.arena);
      if (parts & kFfn) {
        ops::experts_ffn(stream,
                         {layer.gate_up, layer.down, in, inner, out, call.zeroed, y.view(DType::kF32, {rows, kHidden})},
                         routing);
      }
      if (parts & kCombine) ops::combine_experts(stream, routing, out, y.view(DType::kF32, {rows, kHidden}));
    }
  }

  // Experts that a layer touches, in the mean. Leaves the routings of all layers.
  double touched_experts(int64_t rows) {
    const int64_t zero = 0;
    int64_t total = 0;
    device.upload(touched.data(), &zero, 8);
    run(rows, kRoute);
    device.download(&total, touched.data(), 8);
    return static_cast<double>(total) / kLayers;
  }
};

struct Lines {
  std::FILE* file = nullptr;

  void print(const std::string& line) const {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    if (file != nullptr) std::fprintf(file, "%s\n", line.c_str());
  }
};

std::string number(const char* name, double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "\"%s\": %.*f", name, digits, value);
  return text;
}

void measure(Model& model, const Lines& lines, int64_t rows, double bandwidth, int rest_ms) {
  const Layer& layer = model.layers[0];
  const double experts = model.touched_experts(rows);
  const double bytes =
      experts * static_cast<double>(layer.gate_up.packed.bytes() + layer.down.packed.bytes()) / kExperts;
  const double flops = 2.0 * static_cast<double>(rows * kTopK) * 3 * kHidden * kInner;
  const double floor = std::max(bytes / bandwidth, flops / kFlopsPerUs);
  const auto time = [&](int parts) {
    return bench::graph_us(
               model.device, [&] { model.run(rows, parts); }, 4, 5, rest_ms) /
           kLayers;
  };
  const double all = time(kLayer), apart = time(kApart), products = time(kGateUp | kDown);
  const double gate_up = time(kGateUp), down = time(kDown);
  lines.print("{\"weights\": \"" + model.weights + "\", " + number("rows", static_cast<double>(rows), 0) + ", " +
              number("experts", experts, 1) + ", " + number("MB", bytes * 1e-6, 1) + ", " +
              number("floor_us", floor, 1) + ", " + number("layer_us", all, 1) + ", " +
              number("floor_over_layer", floor / all, 3) + ", " + number("apart_us", apart, 1) + ", " +
              number("route_rows_us", time(kRouteRows), 1) + ", " + number("gate_up_and_down_us", products, 1) + ", " +
              number("gate_up_us", gate_up, 1) + ", " + number("gate_up_of_floor", floor * 2 / 3 / gate_up, 3) + ", " +
              number("down_us", down, 1) + ", " + number("down_of_floor", floor / 3 / down, 3) + ", " +
              number("router_us", time(kRouter), 1) + ", " + number("route_us", time(kRoute), 1) + ", " +
              number("combine_us", time(kCombine), 1) + "}");
}

}  // namespace

int main(int argc, char** argv) {
  const auto asked = [&](const char* option) {
    char** const at = std::find_if(argv + 1, argv + argc, [&](char* a) { return std::strcmp(a, option) == 0; });
    return at == argv + argc ? nullptr : at;
  };
  char** const json_at = asked("--json");
  char** const rows_at = asked("--rows");
  char** const codes_at = asked("--codes");
  const auto storage = storage_of(codes_at != nullptr && codes_at[1] != nullptr ? codes_at[1] : "bf16");
  if (!storage) {
    std::fprintf(stderr, "--codes is fp8, fp8-long, mxfp4 or int4.\n");
    return 1;
  }
  const auto owner = bench::cuda_device();
  Lines lines;
  if (json_at != nullptr && json_at[1] != nullptr) {
    lines.file = std::fopen(json_at[1], "w");
    if (lines.file == nullptr) {
      std::fprintf(stderr, "%s cannot be written.\n", json_at[1]);
      return 1;
    }
  }
  const double bandwidth = bench::read_bandwidth();
  lines.print("{" + number("read_TBps", bandwidth * 1e-6, 3) + "}");
  Model model(*owner, asked("--portable") != nullptr, asked("--wide") ? DType::kF32 : DType::kBF16, *storage);
  for (int rows : kRows) {
    if (rows_at != nullptr && rows_at[1] != nullptr && rows != std::atoi(rows_at[1])) continue;
    measure(model, lines, rows, bandwidth, asked("--rested") ? 200 : 0);
  }
  if (lines.file != nullptr) std::fclose(lines.file);
  return 0;
}
