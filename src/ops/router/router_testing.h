// Shared by the router's tests, for a CPU and for a GPU: a routing in a device's memory, and its values read back.
#pragma once

#include "device/dry_run.h"
#include "ops/device_for_test.h"
#include "ops/router/router.h"

namespace volley::ops {

// The results of route(), in host memory.
struct Routed {
  std::vector<int32_t> experts, entries, offsets, touched;
  std::vector<float> weights;
  int64_t total = 0;  // RouteCall::touched_total

  bool operator==(const Routed&) const = default;
};

// The inputs, in host memory; an empty one is a null view.
struct RouterInputs {
  std::vector<float> logits = {}, logit_bias = {}, choice_bias = {}, expert_scale = {};
  std::vector<int32_t> row_slots = {}, positions = {};
  int32_t skipped_slot = -1;
  uint32_t seed = 0, layer = 0;
  int64_t zeroed = 0;  // counters
};

// A device's memory for a call and its results.
class RouterWorld {
 public:
  RouterWorld(Device& device, const RouterRule& rule, int64_t rows, const RouterInputs& in)
      : device_(device),
        rule_(rule),
        rows_(rows),
        arena_(std::move(device.allocate(static_cast<size_t>(
                             measure_scratch(device.stream(), [&](Arena& arena) { take_routing(arena, rule, rows); }))))
                   .value()),
        total_(device, std::vector<int64_t>{1000}) {
    call_.logits = put<float>(in.logits, DType::kF32, {rows, rule.experts});
    call_.logit_bias = put<float>(in.logit_bias, DType::kF32, {rule.experts});
    call_.choice_bias = put<float>(in.choice_bias, DType::kF32, {rule.experts});
    call_.expert_scale = put<float>(in.expert_scale, DType::kF32, {rule.experts});
    call_.row_slots = put<int32_t>(in.row_slots, DType::kI32, {rows});
    call_.skipped_slot = in.skipped_slot;
    call_.simulated = {put<int32_t>(in.positions, DType::kI32, {rows}), in.seed, in.layer};
    call_.zeroed = put<int32_t>(std::vector<int32_t>(in.zeroed, 77), DType::kI32, {in.zeroed});
    call_.touched_total = static_cast<int64_t*>(total_.view(DType::kI32, {2}).data);
    routing_ = take_routing(arena_, rule, rows);
  }

  void run() { route(device_.stream(), rule_, call_, routing_); }
  const Routing& routing() const { return routing_; }
  const RouteCall& call() const { return call_; }
  std::vector<int32_t> zeroed() const { return read<int32_t>(call_.zeroed, call_.zeroed.count()); }

  Routed read() const {
    Routed r;
    const int64_t entries = rows_ * rule_.top_k;
    r.experts = read<int32_t>(routing_.experts, entries);
    r.weights = read<float>(routing_.weights, entries);
    r.offsets = read<int32_t>(routing_.offsets, rule_.own() + 1);
    r.entries = read<int32_t>(routing_.entries, r.offsets.back());
    r.touched = read<int32_t>(routing_.touched, read<int32_t>(routing_.touched_count, 1)[0]);
    r.total = total_.read<int64_t>()[0] - 1000;
    return r;
  }

 private:
  template <typename T>
  TensorView put(const std::vector<T>& values, DType dtype, std::initializer_list<int64_t> dims) {
    if (values.empty()) return {};
    held_.push_back(std::make_unique<DeviceTensor>(device_, values));
    return held_.back()->view(dtype, dims);
  }
  template <typename T>
  std::vector<T> read(const TensorView& view, int64_t count) const {
    std::vector<T> values(count);
    if (count > 0) device_.download(values.data(), view.data, count * sizeof(T));
    return values;
  }

  Device& device_;
  RouterRule rule_;
  int64_t rows_;
  Arena arena_;
  DeviceTensor total_;
  std::vector<std::unique_ptr<DeviceTensor>> held_;
  RouteCall call_;
  Routing routing_;
};

inline Routed route_for_test(Device& device, const RouterRule& rule, int64_t rows, const RouterInputs& in) {
  RouterWorld world(device, rule, rows, in);
  world.run();
  return world.read();
}

}  // namespace volley::ops
