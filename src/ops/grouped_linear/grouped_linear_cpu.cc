// Packed: for each expert the panels of a matrix as ops/linear packs it. The order of an expert's sums is linear()'s.
#include "ops/grouped_linear/grouped_linear_kernels.h"

#include <algorithm>

#include "device/cpu/thread_pool.h"
#include "ops/linear/cpu/linear_cpu.h"

namespace volley::ops {
namespace {

int64_t expert_bytes(const ExpertWeights& w) {
  return linear_panels(w.n, w.layout) * linear_panel_bytes(w.k, w.format);
}

// The terms of a row's sum.
struct RowSlots {
  const int32_t* experts;  // negative: the slot was left out
  const float* weights;
  int64_t top_k;
};

template <typename T>
void combine_row(const RowSlots& slots, const T* d, int64_t width, float* y) {
  constexpr int64_t kBlock = 256;  // sums that stay in the first-level cache
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    const int64_t count = std::min(kBlock, width - begin);
    float sums[kBlock];
    bool any = false;
    for (int64_t s = 0; s < slots.top_k; ++s) {
      if (slots.experts[s] < 0) continue;
      const T* from = d + s * width + begin;
      const float weight = slots.weights[s];
      for (int64_t i = 0; i < count; ++i) {
        const float product = weight * to_float(from[i]);
        sums[i] = any ? sums[i] + product : product;
      }
      any = true;
    }
    if (!any) return;
    for (int64_t i = 0; i < count; ++i) y[begin + i] += sums[i];
  }
}

Result<ExpertWeights> pack_experts_cpu(Device& device, std::span<const WeightRows> parts, ExpertWeights w) {
  const int64_t bytes = expert_bytes(w);
  VOLLEY_ASSIGN(w.packed, device.allocate(static_cast<size_t>(w.experts * bytes)));
  if (device.stream().dry()) return Result<ExpertWeights>(std::move(w));
  const size_t each = parts.size() / static_cast<size_t>(w.experts);
  for (int64_t e = 0; e < w.experts; ++e) {
    pack_panels_cpu(device.stream().pool(), parts.subspan(e * each, each), w.k, w.format, w.layout,
                    static_cast<char*>(w.packed.data()) + e * bytes);
  }
  return Result<ExpertWeights>(std::move(w));
}

// The panels of all experts that have rows are shared out as if they were those of one matrix.
void grouped_linear_cpu(Stream& stream, const ExpertWeights& w, TensorView x, const Routing& routing, TensorView y,
                        const GroupedCall& call, const End& end) {
  if (stream.dry()) return;
  const int32_t* touched = routing.touched.as<int32_t>();
  const int32_t* offsets = routing.offsets.as<int32_t>();
  const int32_t* entries = routing.entries.as<int32_t>();
  const int64_t count = *routing.touched_count.as<int32_t>();
  if (count == 0) return;
  PanelProduct all = PanelProduct::make(nullptr, w.n, w.k, w.format, w.layout, x, y, end.kind);
  all.clamp = end.clamp;
  if (call.rows == GroupedRows::kIn) {
    all.x_rows = entries;
    all.x_divisor = routing.top_k();
  } else {
    all.y_rows = entries;
  }
  const int64_t units = all.panels / all.unit, total = count * units;
  const int64_t mean_rows = std::max<int64_t>(1, offsets[w.experts] / count);
  const int64_t tasks =
      LinearPlan::make(mean_rows, w.k, count * all.panels, all.panel_bytes, all.unit, stream.pool().threads())
          .panel_tasks;
  const auto run_expert = [&](int32_t expert, int64_t unit, int64_t unit_end) {
    const int64_t begin = offsets[expert], rows = offsets[expert + 1] - begin;
    PanelProduct product = all;
    product.weights = static_cast<const char*>(w.packed.data()) + expert * expert_bytes(w);
    if (end.bias.data != nullptr) product.bias = end.bias.as<float>() + expert * w.n;
    // Rows are counted from the list's begin, so that they are also the grouped rows of x or y.
    const int64_t group = LinearPlan::make(rows, w.k, all.panels, all.panel_bytes, all.unit, 1).group;
    run_panels(product, group, begin, begin + rows, unit * all.unit, unit_end * all.unit);
  };
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    const int64_t task_end = total * (task + 1) / tasks;
    for (int64_t at = total * task / tasks; at < task_end;) {
      const int64_t i = at / units, stop = std::min(task_end, (i + 1) * units);
      run_expert(touched[i], at - i * units, stop - i * units);
      at = stop;
    }
  });
}

void combine_experts_cpu(Stream& stream, const Routing& routing, TensorView d, TensorView y,
                         const ExpertShards& shards) {
  VOLLEY_CHECK_MSG(shards.shifts == nullptr, "replicas on the CPU have all products in one memory");
  if (stream.dry()) return;
  constexpr int64_t kTaskElements = 64 << 10;  // some microseconds: below that, handing the work out costs too much
  const int64_t rows = y.shape[0], width = y.shape[1], top_k = routing.top_k();
  const int64_t tasks = std::clamp(rows * width * top_k / kTaskElements, int64_t{1}, rows);
  const auto combine = [&](int64_t r) {
    const int64_t first = r * top_k;
    const RowSlots slots = {routing.experts.as<int32_t>() + first, routing.weights.as<float>() + first, top_k};
    float* to = y.as<float>() + r * width;
    if (d.dtype == DType::kF32) return combine_row(slots, d.as<float>() + first * width, width, to);
    combine_row(slots, d.as<BFloat16>() + first * width, width, to);
  };
  stream.pool().parallel_for(tasks, [&](int64_t t, int) {
    for (int64_t r = rows * t / tasks; r < rows * (t + 1) / tasks; ++r) combine(r);
  });
}

}  // namespace

const GroupedLinearKernels GroupedLinearKernels::kCpu = {pack_experts_cpu, grouped_linear_cpu, combine_experts_cpu};

}  // namespace volley::ops
