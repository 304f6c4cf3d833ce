// What the tests of grouped products share, for a CPU and for a GPU: random experts, a routing, and calls on them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "ops/grouped_linear/grouped_linear.h"
#include "ops/router/router_testing.h"
#include "ops/values_for_test.h"

namespace volley::ops {

inline std::vector<float> rounded(std::vector<float> values, DType dtype) {
  if (dtype == DType::kBF16) {
    for (float& v : values) v = to_float(to_bfloat16(v));
  }
  return values;
}

inline std::vector<char> encoded(const std::vector<float>& values, DType dtype) {
  std::vector<char> bytes(values.size() * dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    const BFloat16 b = to_bfloat16(values[i]);
    std::memcpy(&bytes[i * dtype_size(dtype)], dtype == DType::kF32 ? static_cast<const void*>(&values[i]) : &b,
                dtype_size(dtype));
  }
  return bytes;
}

inline std::vector<float> decoded(const std::vector<char>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / dtype_size(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    BFloat16 b;
    std::memcpy(&b, &bytes[i * dtype_size(dtype)], 2);
    if (dtype == DType::kF32) std::memcpy(&values[i], &bytes[i * 4], 4);
    if (dtype == DType::kBF16) values[i] = to_float(b);
  }
  return values;
}

// Codes as a checkpoint may have them, where a format is only read; `first` and on of all rows.
inline void bring_codes(WeightRows& part, const WeightFormat& format, int64_t first) {
  if (!format.zeros && format.code != DType::kF4E2M1) return;
  part.codes = [first](int64_t row, const CodedRow& out) {
    const int64_t at = (first + row) * 7919;
    for (size_t i = 0; i < out.codes.size(); ++i) out.codes[i] = static_cast<uint8_t>((at + i * i / 3) % 16);
    for (size_t g = 0; g < out.scales.size(); ++g) out.scales[g] = 0.01f * static_cast<float>(at % 13 + g + 1);
    for (size_t g = 0; g < out.zeros.size(); ++g) out.zeros[g] = static_cast<uint8_t>((at + g) % 17);
  };
}

struct Experts {
  int64_t count = 0, n = 0, k = 0;
  DType dtype = DType::kBF16;
  std::vector<float> values;  // [count][n][k], exact in dtype
  ExpertWeights packed;

  Experts(Device& device, int64_t count, int64_t n, int64_t k, DType dtype, LinearLayout layout, bool portable = false,
          std::optional<WeightFormat> format = {})
      : count(count), n(n), k(k), dtype(dtype), values(rounded(normal_values(count * n * k, 11), dtype)) {
    const std::vector<char> bytes = encoded(values, dtype);
    const int64_t each = layout == LinearLayout::kGateUp ? 2 : 1, rows = n / each;
    std::vector<WeightRows> parts;
    for (int64_t i = 0; i < count * each; ++i) {
      parts.push_back({bytes.data() + i * rows * k * static_cast<int64_t>(dtype_size(dtype)), dtype, rows});
      if (format) bring_codes(parts.back(), *format, i * rows);
    }
    packed = std::move(pack_experts(device, parts, count, k, format.value_or(dtype), layout)).value();
    packed.portable = portable;
  }
};

// A routing of random logits; `favoured`: that many experts get all rows; of `skipped_every` rows the last is
// left out.
struct TestRouting {
  RouterRule rule;
  int64_t rows;
  RouterInputs all;
  RouterWorld world;
  Routed routed;

  TestRouting(Device& device, int32_t experts, int32_t top_k, int64_t rows, int32_t favoured = 0,
              int64_t skipped_every = 0)
      : rule(make_rule(experts, top_k)),
        rows(rows),
        all(inputs(rule, rows, favoured, skipped_every)),
        world(device, rule, rows, all) {
    world.run();
    routed = world.read();
  }
  const Routing& routing() const { return world.routing(); }
  int64_t entries() const { return rows * rule.top_k; }
  // The same for some rows.
  RouterInputs inputs(int64_t begin, int64_t count) const {
    RouterInputs some = all;
    some.logits = {all.logits.begin() + begin * rule.experts, all.logits.begin() + (begin + count) * rule.experts};
    if (!all.row_slots.empty()) {
      some.row_slots = {all.row_slots.begin() + begin, all.row_slots.begin() + begin + count};
    }
    return some;
  }

  static RouterRule make_rule(int32_t experts, int32_t top_k) {
    RouterRule rule;
    rule.experts = experts;
    rule.top_k = top_k;
    return rule;
  }
  static RouterInputs inputs(const RouterRule& rule, int64_t rows, int32_t favoured, int64_t skipped_every) {
    RouterInputs in;
    in.logits = normal_values(std::max<int64_t>(rows, 1) * rule.experts, 21);
    for (size_t i = 0; i < in.logits.size(); ++i) {
      if (static_cast<int32_t>(i) % rule.experts < favoured) in.logits[i] += 100;
    }
    for (int64_t r = 0; skipped_every > 0 && r < rows; ++r)
      in.row_slots.push_back((r + 1) % skipped_every == 0 ? 7 : 0);
    in.skipped_slot = 7;
    return in;
  }
};

inline End end_of(const ExpertWeights& w) {
  return {w.layout == LinearLayout::kGateUp ? EndKind::kSwiGlu : EndKind::kStore};
}

// Ends with a bias for each expert, and with the clamped activation where there are gates.
struct BiasedEnd {
  std::vector<float> values;
  DeviceTensor bias;
  End end;

  BiasedEnd(Device& device, const ExpertWeights& w)
      : values(normal_values(w.experts * w.n, 31)), bias(device, values), end(end_of(w)) {
    end.bias = bias.view(DType::kF32, {w.experts, w.n});
    if (end.kind == EndKind::kSwiGlu) end.kind = EndKind::kClampedSwiGlu;
    end.clamp = {1.702f, 7.0f};
  }
};

// One grouped product of x, and what it leaves; what it does not write is NaN.
inline std::vector<char> grouped_for_test(Device& device, const Experts& w, const std::vector<float>& x, DType x_dtype,
                                          const Routing& routing, DType y_dtype, GroupedRows rows,
                                          const std::optional<End>& end = {}) {
  const int64_t x_rows = static_cast<int64_t>(x.size()) / w.k, entries = routing.rows() * routing.top_k();
  const int64_t outputs = w.packed.layout == LinearLayout::kGateUp ? w.n / 2 : w.n;
  const DeviceTensor from(device, encoded(x, x_dtype)), to(device, entries * outputs * dtype_size(y_dtype));
  grouped_linear(device.stream(), w.packed, from.view(x_dtype, {x_rows, w.k}), routing,
                 to.view(y_dtype, {entries, outputs}), {.rows = rows}, end.value_or(end_of(w.packed)));
  return to.read<char>();
}

}  // namespace volley::ops
