// Times the vision tower over one picture, on random weights, and beside it the rate of its widest product alone, the
// floor of arithmetic: vision_bench [DEVICE [FOLDER [WIDTH HEIGHT]]].
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/dry_run.h"
#include "families/family.h"
#include "model/vision/tower.h"
#include "weights/dummy_codes.h"

namespace volley {
namespace {

template <typename T>
T needed(Result<T> result) {
  VOLLEY_CHECK_MSG(result.ok(), result.ok() ? "" : result.error().message);
  return std::move(result).value();
}

// TFLOP/s of a unit's rows times the first matrix of a layer's network.
double product_rate(Device& device, const model::TowerSpec& spec) {
  constexpr int kCalls = 32;
  const int64_t rows = model::TowerPass::rows_of_unit(device.kind()), k = spec.hidden, n = spec.inner;
  const std::vector<float> values(static_cast<size_t>(n * k), 0.01f);
  const ops::WeightRows part = {values.data(), DType::kF32, n};
  const ops::LinearWeight weight = needed(ops::pack_linear(device, {&part, 1}, k, DType::kBF16));
  const Buffer x = needed(device.allocate(static_cast<size_t>(rows * k) * sizeof(BFloat16)));
  const Buffer y = needed(device.allocate(static_cast<size_t>(rows * n) * sizeof(BFloat16)));
  const auto product = [&](Arena& scratch) {
    const TensorView to = y.view(DType::kBF16, {rows, n});
    ops::linear(device.stream(), weight, x.view(DType::kBF16, {rows, k}), to, {}, scratch);
  };
  Arena scratch(needed(device.allocate(static_cast<size_t>(measure_scratch(device.stream(), product)))));
  const auto begin = device.make_fence(), end = device.make_fence();
  for (int call = -kCalls; call < kCalls; ++call) {
    if (call == 0) begin->set();
    product(scratch);
  }
  end->set();
  end->wait();
  return 2e-12 * static_cast<double>(rows * n * k) * kCalls / end->seconds_since(*begin);
}

void measure(const std::string& on, const std::string& folder, int32_t width, int32_t height) {
  const auto device = needed(on == "cuda" ? make_cuda_device(0) : make_cpu_device(0));
  std::optional<model::TowerSpec> spec = needed(families::read_target(folder)).decoder.tower;
  VOLLEY_CHECK_MSG(spec.has_value(), folder + " has no vision tower");
  spec->rules.max_pixels = int64_t{width} * height;
  const auto weights = weights::make_dummy_checkpoint(1);
  const model::Numerics numerics = model::resolve_numerics(ComputeType::kBFloat16, DType::kBF16);
  const std::vector<model::Param> params = model::tower_params(*spec);
  model::WeightLoader loader(*device, *weights, numerics, params);
  const auto tower = needed(model::Tower::load(loader, *spec, numerics));
  const auto pass = needed(model::TowerPass::create(*device, *tower));
  Arena measuring = Arena::measuring();
  {
    const DryRun dry(device->stream());
    pass->run_dry(measuring);
  }
  Arena scratch(needed(device->allocate(measuring.peak())));
  std::vector<uint8_t> rgb(static_cast<size_t>(3) * width * height);
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  const int32_t patch = spec->rules.patch_size;
  const model::TowerUnits units(*spec, int64_t{width / patch} * (height / patch),
                                model::TowerPass::rows_of_unit(device->kind()));
  double macs = 0;
  for (int32_t unit = 0; unit < units.count(); ++unit) macs += units.macs(unit);
  const double rate = product_rate(*device, *spec);
  std::printf("product alone: %.2f TFLOP/s, so the floor is %.2f ms\n", rate, 2e-9 * macs / rate);
  const int runs = device->kind() == DeviceKind::kCpu ? 2 : 8;
  for (int run = 0; run < runs; ++run) {
    pass->begin({width, height, rgb});
    pass->run(0, units.count(), scratch);
    const auto made = pass->take();
    double sum = 0;
    for (const float value : *made.values) sum += value;
    std::printf("%d x %d: %.2f ms, %.2f TFLOP, %.1f TFLOP/s, sum %.6g\n", width, height, made.seconds * 1e3,
                2e-12 * macs, 2e-12 * macs / made.seconds, sum);
  }
}

}  // namespace
}  // namespace volley

int main(int argc, char** argv) {
  const auto size = [&](int at) { return argc > at ? std::atoi(argv[at]) : 1024; };
  volley::measure(argc > 1 ? argv[1] : "cpu", argc > 2 ? argv[2] : "models/shapes/qwen3.5-9b", size(3), size(4));
}
