// Shared by the tests of grouped products, for a CPU and for a GPU: experts of random values or of codes, a routing,
// calls on them, and the fp64 oracle of an output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>
#include <tuple>
#include <utility>

#include "ops/grouped_linear/experts.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/router/router_testing.h"
#include "ops/values_for_test.h"

namespace volley::ops {

constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;
constexpr LinearLayout kPlain = LinearLayout::kPlain, kGateUp = LinearLayout::kGateUp;
constexpr GroupedRows kIn = GroupedRows::kIn, kOut = GroupedRows::kOut;

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
  if (!format.zeros && !format.minimums && format.code != DType::kF4E2M1 && format.code != DType::kI6) return;
  part.codes = [first](int64_t row, const CodedRow& out) {
    const int64_t at = (first + row) * 7919;
    for (size_t i = 0; i < out.codes.size(); ++i) out.codes[i] = static_cast<uint8_t>((at + i * i / 3) % 16);
    for (size_t g = 0; g < out.scales.size(); ++g) out.scales[g] = 0.01f * static_cast<float>(at % 13 + g + 1);
    for (size_t g = 0; g < out.zeros.size(); ++g) out.zeros[g] = static_cast<uint8_t>((at + g) % 17);
    for (size_t g = 0; g < out.minimums.size(); ++g) out.minimums[g] = -0.02f * static_cast<float>((at + g) % 5);
  };
}

// Codes of experts of the shape of `w`, as a checkpoint may have them, or the same as values. w's first expert is
// number `first` of a whole.
inline std::vector<WeightRows> coded_parts(const ExpertWeights& w, bool as_values, int64_t first = 0) {
  const int64_t each = w.layout == LinearLayout::kGateUp ? 2 : 1, rows = w.n / each;
  const int64_t k = w.k, group_k = w.format.group_k, groups = (k + group_k - 1) / group_k;
  std::vector<WeightRows> parts;
  for (int64_t i = first * each; i < (first + w.experts) * each; ++i) {
    WeightRows part;
    part.rows = rows;
    part.codes = [=, zeros = w.format.zeros, minimums = w.format.minimums, type = w.format.code,
                  bits = w.format.code_bits()](int64_t row, const CodedRow& out) {
      const int64_t at = (i * rows + row) * 7919;
      for (int64_t c = 0; c < k; ++c) {
        const int64_t code = at + c * c / 3 + c;
        out.codes[c] = static_cast<uint8_t>(type == DType::kF8E4M3 ? code / 127 % 2 * 128 + code % 127
                                                                   : code % (1 << bits));  // no NaN
      }
      for (int64_t g = 0; g < groups; ++g) {
        out.scales[g] =
            std::ldexp(zeros ? 1 + 0x1p-10f * static_cast<float>(at % 512) : 1.0f, -3 - static_cast<int>((at + g) % 9));
        if (zeros) out.zeros[g] = static_cast<uint8_t>((at + g) % 17);
        if (minimums) out.minimums[g] = -0.01f * static_cast<float>((at + g) % 5);
      }
    };
    if (as_values) {
      part.values = [=, codes = part.codes, format = w.format](int64_t row, float* values) {
        std::vector<uint8_t> bits(k), zeros(format.zeros ? groups : 0);
        std::vector<float> scales(groups), minimums(format.minimums ? groups : 0);
        codes(row, {bits, scales, zeros, minimums});
        for (int64_t c = 0; c < k; ++c) {
          const float scale = scales[c / group_k];
          if (format.code == DType::kF8E4M3) {
            values[c] = to_float(Float8E4M3{bits[c]}) * scale;
          } else if (format.code == DType::kF4E2M1) {
            values[c] = kFloat4E2M1[bits[c] & 7] * (bits[c] < 8 ? scale : -scale);
          } else {
            const int zero = format.zeros                ? zeros[c / group_k]
                             : format.code == DType::kI6 ? 32
                             : format.minimums           ? 0
                                                         : 8;
            const int code = format.code == DType::kI8 ? static_cast<int8_t>(bits[c]) : bits[c] - zero;
            values[c] = static_cast<float>(code) * scale;
            if (format.minimums) values[c] += minimums[c / group_k];
          }
        }
      };
      part.codes = {};
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// One matrix [n, k] for each expert, and what its values are.
struct Experts {
  int64_t count = 0, n = 0, k = 0;
  DType dtype = DType::kBF16;  // default type of the multiplied rows
  int64_t first = 0;           // the number of the first among those of a whole
  std::vector<float> values;   // [count][n][k], as they are multiplied
  ExpertWeights packed;

  // Random values, exact in dtype, stored as `format` if there is one.
  Experts(Device& device, int64_t count, int64_t n, int64_t k, DType dtype, LinearLayout layout, bool portable = false,
          std::optional<WeightFormat> format = {})
      : count(count), n(n), k(k), dtype(dtype), values(rounded(normal_values(count * n * k, 11), dtype)) {
    pack(device, layout, format);
    packed.portable = portable;
  }
  // Codes with a scale for each group of columns, and the values that they stand for.
  static Experts coded(Device& device, int64_t count, int64_t n, int64_t k, const WeightFormat& format,
                       LinearLayout layout, int64_t first = 0) {
    Experts w;
    w.count = count, w.n = n, w.k = k, w.first = first;
    ExpertWeights shape;
    shape.experts = count, shape.n = n, shape.k = k, shape.format = format, shape.layout = layout;
    for (const WeightRows& part : coded_parts(shape, true, first)) {
      for (int64_t row = 0; row < part.rows; ++row) {
        w.values.resize(w.values.size() + static_cast<size_t>(k));
        part.values(row, w.values.data() + std::ssize(w.values) - k);
      }
    }
    // A GPU multiplies rows in bf16 with code times scale rounded to bf16 (linear.h).
    if (device.kind() == DeviceKind::kCuda) w.values = rounded(std::move(w.values), DType::kBF16);
    w.packed = std::move(pack_experts(device, coded_parts(shape, false, first), count, k, format, layout)).value();
    return w;
  }
  // Experts [first, first + count), as a rank has them.
  Experts part(Device& device, int64_t first, int64_t count) const {
    const WeightFormat& format = packed.format;
    if (format.is_codes()) {
      Experts own = coded(device, count, n, k, format, packed.layout, first);
      own.packed.portable = packed.portable;
      return own;
    }
    Experts own;
    own.count = count, own.n = n, own.k = k, own.dtype = dtype, own.first = first;
    own.values = {values.begin() + first * n * k, values.begin() + (first + count) * n * k};
    own.pack(device, packed.layout);
    own.packed.portable = packed.portable;
    return own;
  }

 private:
  Experts() = default;
  void pack(Device& device, LinearLayout layout, const std::optional<WeightFormat>& format = {}) {
    const std::vector<char> bytes = encoded(values, dtype);
    const int64_t each = layout == LinearLayout::kGateUp ? 2 : 1, rows = n / each;
    std::vector<WeightRows> parts;
    for (int64_t i = 0; i < count * each; ++i) {
      parts.push_back({bytes.data() + i * rows * k * static_cast<int64_t>(dtype_size(dtype)), dtype, rows});
      if (format) bring_codes(parts.back(), *format, i * rows);
    }
    packed = std::move(pack_experts(device, parts, count, k, format.value_or(dtype), layout)).value();
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
      : TestRouting(device, make_rule(experts, top_k), rows,
                    inputs(make_rule(experts, top_k), rows, favoured, skipped_every)) {}
  TestRouting(Device& device, const RouterRule& rule, int64_t rows, const RouterInputs& in)
      : rule(rule), rows(rows), all(in), world(device, rule, rows, all) {
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

// Ends with a bias for each expert, and with the clamped activation where there are gates, or with GELU.
struct BiasedEnd {
  std::vector<float> values;  // [count][n]: those of the whole's experts that are here
  DeviceTensor bias;
  End end;

  BiasedEnd(Device& device, const Experts& w, EndKind gates = EndKind::kClampedSwiGlu)
      : values(values_of(w)), bias(device, values), end(end_of(w.packed)) {
    end.bias = bias.view(DType::kF32, {w.packed.experts, w.n});
    if (end.kind == EndKind::kSwiGlu) end.kind = gates;
    end.clamp = {1.702f, 7.0f};
  }
  static std::vector<float> values_of(const Experts& w) {
    std::vector<float> whole = normal_values((w.first + w.packed.experts) * w.n, 31);
    return {whole.begin() + w.first * w.n, whole.end()};
  }
};

// A sum of products in fp64, with that of their magnitudes.
struct Sum {
  double value = 0, magnitude = 0;
};

inline Sum oracle(const Experts& w, int64_t expert, int64_t output, const float* x) {
  Sum sum;
  const float* weights = &w.values[(expert * w.n + output) * w.k];
  for (int64_t i = 0; i < w.k; ++i) {
    const double product = static_cast<double>(x[i]) * weights[i];
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

// The matrix unit of a GPU truncates when it aligns addends, so an addition may lose one unit rather than half of one.
inline double sum_bound(const Sum& s, int64_t k) {
  return 2 * static_cast<double>(k + 1) * kRound * s.magnitude;
}

inline double silu(double x) {
  return x / (1 + std::exp(-x));
}

// GELU by tanh.
inline double gelu(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// The clamped activation of gate and up, and its error from their errors. Its slopes: at most 1.1 along the gate, for
// any alpha, and 0 where it is clamped.
inline std::pair<double, double> clamped(double gate, double gate_error, double up, double up_error, double quick) {
  const double alpha = 1.702f, limit = 7;
  gate = std::min(gate, limit);
  up = std::clamp(up, -limit, limit);
  const double gated = gate / (1 + std::exp(-alpha * gate));
  const double error = (1.1 * gate_error + quick * std::fabs(gated)) * (std::fabs(up + 1) + up_error + kRound);
  return {gated * (up + 1), error + std::fabs(gated) * (up_error + kRound * std::fabs(up + 1))};
}

// Value and bound of one output, of experts w in the numbering of w; biased: null, or the ends that were used.
inline std::pair<double, double> expected(const Experts& w, const BiasedEnd* biased, DType y, int64_t expert,
                                          int64_t output, const float* x) {
  const bool gates = w.packed.layout == LinearLayout::kGateUp;
  const auto sum_of = [&](int64_t row) {
    Sum sum = oracle(w, expert, row, x);
    if (biased == nullptr) return sum;
    const float bias = biased->values[expert * w.n + row];
    return Sum{sum.value + bias, sum.magnitude + std::fabs(bias)};
  };
  const Sum sum = sum_of(output);
  double want = sum.value, error = sum_bound(sum, w.k);
  if (gates && biased != nullptr && biased->end.kind == EndKind::kGeGlu) {
    const Sum up = sum_of(w.n / 2 + output);
    // The slope is at most 1.13. Far below zero the sigmoid's exponent carries the error of its argument.
    const double value = gelu(sum.value), quick = y == DType::kBF16 ? 0x1p-14 : 32 * kRound;
    const double gate_error = 1.2 * error + quick * std::fabs(value), up_error = sum_bound(up, w.k);
    want = value * up.value;
    error = gate_error * (std::fabs(up.value) + up_error) + std::fabs(value) * up_error;
  } else if (gates && biased != nullptr) {
    const Sum up = sum_of(w.n / 2 + output);
    const double quick = y == DType::kBF16 ? 0x1p-16 : 8 * kRound;
    std::tie(want, error) = clamped(sum.value, error, up.value, sum_bound(up, w.k), quick);
  } else if (gates) {
    const Sum up = oracle(w, expert, w.n / 2 + output, x);
    want = silu(sum.value) * up.value;
    // A value that will be rounded to bf16 may use a quick exponential, good to 17 bits.
    const double quick = y == DType::kBF16 ? 0x1p-17 : 6 * kRound;
    const double gate_error = 1.1 * error + quick * std::fabs(silu(sum.value));
    const double up_error = sum_bound(up, w.k);
    error = gate_error * (std::fabs(up.value) + up_error) + std::fabs(silu(sum.value)) * up_error;
  }
  return {want, error * (1 + kRoundBF16) + std::fabs(want) * ((y == DType::kBF16 ? kRoundBF16 : 0) + kRound)};
}

// One grouped product of x, and its result; elements that it does not write are NaN.
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

// Choices within a layer that must not change its bits.
enum class Chain { kApart, kWhole };

// A mixture's layer: gate and up, down, combination with the residual stream.
struct Layer {
  const Experts &gate_up, &down;
  DType d = DType::kF32;
  Chain chain = Chain::kApart;
  bool biased = false;   // BiasedEnd
  bool residual = true;  // the residual stream begins as x; or as 0
};
struct LayerOutput {
  Routed routed;
  std::vector<float> inner;  // [rows * top_k, inner], grouped
  std::vector<float> d;      // [rows * top_k, hidden]
  std::vector<float> y;      // [rows, hidden]
};

// Some rows of it. What is not written is NaN.
inline LayerOutput run_layer(Device& device, const Layer& layer, const TestRouting& all, const std::vector<float>& x,
                             int64_t begin, int64_t rows) {
  const Experts &gate_up = layer.gate_up, &down = layer.down;
  const DType dtype = gate_up.dtype;
  RouterInputs in = all.inputs(begin, rows);
  in.zeroed = layer.chain == Chain::kWhole ? experts_counters(all.rule, rows) : 0;
  RouterWorld world(device, all.rule, rows, in);
  world.run();
  const int64_t entries = rows * all.rule.top_k, hidden = gate_up.k, inner = down.k;
  const auto bytes = [&](int64_t width, DType of) { return static_cast<size_t>(entries * width) * dtype_size(of); };
  const std::vector<float> some(x.begin() + begin * hidden, x.begin() + (begin + rows) * hidden);
  const DeviceTensor from(device, encoded(some, dtype)), m(device, bytes(inner, dtype)),
      d(device, bytes(hidden, layer.d)), y(device, layer.residual ? some : std::vector<float>(some.size()));
  const TensorView rows_in = from.view(dtype, {rows, hidden}), inner_rows = m.view(dtype, {entries, inner}),
                   out = d.view(layer.d, {entries, hidden}), sums = y.view(DType::kF32, {rows, hidden});
  const BiasedEnd gate_up_biased(device, gate_up), down_biased(device, down);
  const End gate_up_end = layer.biased ? gate_up_biased.end : end_of(gate_up.packed);
  const End down_end = layer.biased ? down_biased.end : end_of(down.packed);
  if (layer.chain == Chain::kWhole) {
    const ExpertsCall call = {gate_up.packed,      down.packed, rows_in,     inner_rows, out,
                              world.call().zeroed, sums,        gate_up_end, down_end};
    experts_ffn(device.stream(), call, world.routing());
  } else {
    grouped_linear(device.stream(), gate_up.packed, rows_in, world.routing(), inner_rows, {.rows = GroupedRows::kIn},
                   gate_up_end);
    grouped_linear(device.stream(), down.packed, inner_rows, world.routing(), out,
                   {.rows = GroupedRows::kOut, .routing_ready = true}, down_end);
    combine_experts(device.stream(), world.routing(), out, sums);
  }
  return {world.read(), decoded(m.read<char>(), dtype), decoded(d.read<char>(), layer.d), y.read<float>()};
}

// Both products of experts in bf16 for some rows: memory of a call, and its results.
struct ExpertsWorld {
  Device& device;
  const Experts &gate_up, &down;
  int64_t rows, hidden = down.n, inner = down.k;
  RouterRule rule = TestRouting::make_rule(static_cast<int32_t>(down.count), 4);
  RouterWorld router{
      device, rule, rows, {.logits = normal_values(rows * down.count, 1), .zeroed = experts_counters(rule, rows)}};
  DeviceTensor x{device, encoded(normal_values(rows* hidden, 2), DType::kBF16)};
  DeviceTensor m{device, static_cast<size_t>(rows * 4 * inner * 2)};
  DeviceTensor d{device, static_cast<size_t>(rows * 4 * hidden * 4)};
  DeviceTensor y{device, std::vector<float>(rows* hidden)};

  void enqueue(bool in_one, const End& gate_up_end = {EndKind::kSwiGlu}, const End& down_end = {}) {
    router.run();
    const ExpertsCall call = {gate_up.packed,
                              down.packed,
                              x.view(DType::kBF16, {rows, hidden}),
                              m.view(DType::kBF16, {rows * 4, inner}),
                              d.view(DType::kF32, {rows * 4, hidden}),
                              in_one ? router.call().zeroed : TensorView(),
                              y.view(DType::kF32, {rows, hidden}),
                              gate_up_end,
                              down_end};
    experts_ffn(device.stream(), call, router.routing());
  }
};

inline std::vector<float> run_experts(Device& device, const Experts& gate_up, const Experts& down, int64_t rows,
                                      bool in_one, const End& gate_up_end = {EndKind::kSwiGlu},
                                      const End& down_end = {}) {
  ExpertsWorld world{device, gate_up, down, rows};
  world.enqueue(in_one, gate_up_end, down_end);
  return world.y.read<float>();
}

}  // namespace volley::ops
