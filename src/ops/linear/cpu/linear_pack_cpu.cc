// Packing of weights for the CPU: once per matrix, at load.
#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "ops/linear/cpu/linear_cpu.h"

namespace volley::ops {
namespace {

// A panel is filled row by row, this many k at a time: the lines written stay in the first-level cache until all 16
// rows have been there.
constexpr int64_t kChunk = 256;

// Checkpoints promise no alignment.
template <typename T>
T load_at(const void* row, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(row) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename Source>
BFloat16 as_bfloat16(Source s) {
  return to_bfloat16(to_float(s));
}
template <>
BFloat16 as_bfloat16(BFloat16 s) {
  return s;
}

// One row of a part: `stride` elements from a value to the next.
struct SourceRow {
  const char* data;
  DType dtype;
  int64_t stride;

  SourceRow(const WeightRows& part, int64_t row, int64_t k)
      : data(static_cast<const char*>(part.data) +
             row * part.row_step(k) * static_cast<int64_t>(dtype_size(part.dtype))),
        dtype(part.dtype),
        stride(part.column_stride) {}

  template <typename T>
  T at(int64_t i) const {
    return load_at<T>(data, i * stride);
  }
};

// Writes k in [begin, end) of one row into column `lane` of its panel.
template <typename Source>
void pack_row(const SourceRow& row, int64_t begin, int64_t end, int64_t lane, DType storage, void* panel) {
  if (storage == DType::kF32) {
    float* out = static_cast<float*>(panel);
    for (int64_t i = begin; i < end; ++i) out[i * kPanelWidth + lane] = to_float(row.at<Source>(i));
    return;
  }
  BFloat16* out = static_cast<BFloat16*>(panel);
  for (int64_t i = begin; i < end; ++i) {
    out[(i / 2 * kPanelWidth + lane) * 2 + i % 2] = as_bfloat16(row.at<Source>(i));
  }
}

void pack_row(const SourceRow& row, int64_t begin, int64_t end, int64_t lane, DType storage, void* panel) {
  switch (row.dtype) {
    case DType::kF32:
      return pack_row<float>(row, begin, end, lane, storage, panel);
    case DType::kF16:
      return pack_row<Float16>(row, begin, end, lane, storage, panel);
    default:
      return pack_row<BFloat16>(row, begin, end, lane, storage, panel);
  }
}

void read_row(const SourceRow& row, int64_t begin, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = row.dtype == DType::kF32   ? row.at<float>(begin + i)
                : row.dtype == DType::kF16 ? to_float(row.at<Float16>(begin + i))
                                           : to_float(row.at<BFloat16>(begin + i));
  }
}

// One row, quantised.
void pack_codes(const SourceRow& row, int64_t k, int64_t lane, const WeightFormat& format, PanelCodes& codes) {
  float values[kMostGroup];
  for (int64_t i = 0; i < k; i += format.group_k) {
    const int64_t count = std::min<int64_t>(format.group_k, k - i);
    read_row(row, i, count, values);
    codes.quantise(lane, i / format.group_k, values, count);
  }
}

}  // namespace

void pack_panels_cpu(ThreadPool& pool, std::span<const WeightRows> parts, int64_t k, const WeightFormat& format,
                     LinearLayout layout, char* packed) {
  std::vector<int64_t> first_row;  // each part's first row among all
  int64_t n = 0;
  for (const WeightRows& part : parts) {
    first_row.push_back(n);
    n += part.rows;
  }
  const int64_t panel_bytes = linear_panel_bytes(k, format);
  // Whole rows are packed at once: a group's codes are made together, and `values` delivers rows.
  const bool reads = std::ranges::any_of(parts, [](const WeightRows& part) { return part.values != nullptr; });
  const int64_t chunk = format.is_codes() || reads ? k : kChunk;
  const auto pack_panel = [&](int64_t p, int) {
    char* panel = packed + p * panel_bytes;
    const bool pairs = layout == LinearLayout::kGateUp;
    const int64_t begin = pairs ? p % 2 * (n / 2) + p / 2 * kPanelWidth : p * kPanelWidth;
    const int64_t end = std::min(begin + kPanelWidth, pairs ? (p % 2 + 1) * (n / 2) : n);
    std::optional<PanelCodes> codes;
    if (format.is_codes()) codes.emplace(k, format);
    for (int64_t k0 = 0; k0 < k; k0 += chunk) {
      for (int64_t row = begin; row < end; ++row) {
        const size_t part = std::upper_bound(first_row.begin(), first_row.end(), row) - first_row.begin() - 1;
        const WeightRows& from = parts[part];
        const int64_t lane = row - begin, of_part = row - first_row[part];
        if (from.codes) {
          from.codes(of_part, codes->row(lane));
          continue;
        }
        if (from.values) {
          std::vector<float> values(static_cast<size_t>(k));
          from.values(of_part, values.data());
          pack_row<float>({{values.data(), DType::kF32, 1}, 0, k}, 0, k, lane, format.code, panel);
          continue;
        }
        const SourceRow source(from, of_part, k);
        if (format.is_codes()) {
          pack_codes(source, k, lane, format, *codes);
        } else {
          pack_row(source, k0, std::min(k0 + chunk, k), lane, format.code, panel);
        }
      }
    }
    if (codes) codes->store(panel);
  };
  pool.parallel_for(linear_panels(n, layout), pack_panel);
}

Result<LinearWeight> pack_linear_cpu(Device& device, std::span<const WeightRows> parts, int64_t k,
                                     const WeightFormat& format, LinearLayout layout) {
  int64_t n = 0;
  for (const WeightRows& part : parts) n += part.rows;
  const int64_t bytes = linear_panels(n, layout) * linear_panel_bytes(k, format);
  VOLLEY_ASSIGN(Buffer packed, device.allocate(static_cast<size_t>(bytes)));
  if (device.stream().dry()) return LinearWeight{n, k, format, layout, std::move(packed)};
  pack_panels_cpu(device.stream().pool(), parts, k, format, layout, static_cast<char*>(packed.data()));
  return LinearWeight{n, k, format, layout, std::move(packed)};
}

}  // namespace volley::ops
