// Codes to their packed layout, on the host: once per matrix, at load.
#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <memory>
#include <thread>

#include "ops/linear/cuda/linear_cuda_bytes.h"
#include "ops/linear/cuda/linear_cuda_codes.h"
#include "ops/linear/linear_int4.h"

namespace volley::ops {
namespace {

// An error where a scale leaves no room for its zero point.
Status check_scales(const CodedRow& row) {
  for (const float scale : row.scales) {
    if ((std::bit_cast<uint32_t>(scale) & 0xff) == 0) continue;
    return unimplemented(
        "Scales of 4-bit weights with zero points must be bfloat16 or float16 numbers on CUDA: convert the "
        "checkpoint's scales, or use --device cpu.");
  }
  return {};
}

// Room for a row, as CodedRow wants it.
struct RowMemory {
  std::vector<float> values, scales, minimums;
  std::vector<uint8_t> codes, zeros;
  RowMemory(const WeightFormat& format, int64_t k)
      : values(static_cast<size_t>(k)),
        scales(static_cast<size_t>(divide_up(k, int64_t{format.group_k}))),
        minimums(format.minimums ? scales.size() : 0),
        codes(static_cast<size_t>(k)),
        zeros(format.zeros ? scales.size() : 0) {}
  CodedRow row() { return {codes, scales, zeros, minimums}; }
};

// A row of a part, as codes. values: scratch memory for its values.
void read_codes(const WeightRows& part, int64_t row, const WeightFormat& format, int64_t k, std::vector<float>& values,
                const CodedRow& to) {
  if (part.codes) return part.codes(row, to);
  VOLLEY_CHECK(!format.zeros && !format.minimums && format.code != DType::kF4E2M1);
  const int64_t first = row * part.row_step(k);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t at = first + i * part.column_stride;
    switch (part.dtype) {
      case DType::kBF16:
        values[i] = to_float(static_cast<const BFloat16*>(part.data)[at]);
        break;
      case DType::kF16:
        values[i] = to_float(static_cast<const Float16*>(part.data)[at]);
        break;
      default:
        values[i] = static_cast<const float*>(part.data)[at];
        break;
    }
  }
  for (int64_t g = 0; g * format.group_k < k; ++g) {
    const int64_t begin = g * format.group_k, count = std::min<int64_t>(format.group_k, k - begin);
    // A scale in bf16 takes half the instructions to multiply by, and less than one part in 256 of exactness.
    const auto quantise = format.code == DType::kI4 ? quantise_int4 : quantise_fp8;
    to.scales[g] = to_float(to_bfloat16(quantise(&values[begin], count, &to.codes[begin])));
  }
}

// One output's codes to row `row` of a panel, zeroed before.
void store_codes(const CodedRow& from, const WeightFormat& format, int64_t k, int row, char* panel) {
  const int words = code_words(format), scales = code_scales(format), bits = format.code_bits(), in_half = row % 32;
  const int from_least = format.code == DType::kI8 ? 0x80 : 0;  // makes int8 count from its smallest
  for (int64_t block = 0; block * kBlockK < k; ++block) {
    auto* half = reinterpret_cast<uint32_t*>(panel + (block * 2 + row / 32) * code_half_bytes(format));
    const int64_t first = block * kBlockK, last = std::min(k, first + kBlockK);
    for (int64_t i = first; i < last; ++i) {
      const auto code = static_cast<uint32_t>(from.codes[i] ^ from_least);
      const CodePlace low = code_place(in_half, static_cast<int>(i - first));
      half[low.word] |= (code & 0xf) << low.bit;
      if (bits == 4) continue;
      const CodePlace high = upper_place(in_half, static_cast<int>(i - first), bits);
      half[high.word] |= (code >> 4) << high.bit;
    }
    for (int g = 0; g < scales; ++g) {
      const int64_t column = first + g * (kBlockK / scales), group = column / format.group_k;
      if (column >= k) break;
      const auto scale = std::bit_cast<uint32_t>(from.scales[group]);
      half[scale_place(in_half, g, words, bits)] = format.zeros ? scale | from.zeros[group] : scale;
      if (!format.minimums) continue;
      half[scale_place(in_half, scales + g, words, bits)] = std::bit_cast<uint32_t>(from.minimums[group]);
    }
  }
}

// The same of e4m3 codes.
void store_bytes(const CodedRow& from, const WeightFormat& format, int64_t k, int row, char* panel) {
  const bool share = pairs_share_scales(format);
  for (int64_t block = 0; block * kBlockK < k; ++block) {
    auto* words = reinterpret_cast<uint32_t*>(panel + byte_block_at(block, share));
    const int64_t first = block * kBlockK, last = std::min(k, first + kBlockK);
    bool has_nan = false;
    for (int64_t i = first; i < last; ++i) {
      const BytePlace place = byte_place(row, static_cast<int>(i - first));
      words[place.word] |= static_cast<uint32_t>(from.codes[i]) << place.bit;
      has_nan = has_nan || (from.codes[i] & 0x7f) == 0x7f;
    }
    const bool is_second = share && block % 2 == 1;
    auto* scales = is_second ? reinterpret_cast<uint32_t*>(panel + byte_block_at(block - 1, share)) : words;
    uint32_t& scale = scales[byte_scale_place(row)];
    if (!is_second) scale = std::bit_cast<uint32_t>(from.scales[first / format.group_k]);
    if (has_nan) scale = std::bit_cast<uint32_t>(std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace

int64_t linear_codes_bytes(int64_t n, int64_t k, const WeightFormat& format, LinearLayout layout) {
  return linear_cuda_panels(n, layout) * linear_cuda_k_blocks(k) * 2 * code_half_bytes(format);
}

void for_each_in_parallel(int64_t count, const std::function<void(int64_t)>& run) {
  const int64_t threads = std::clamp<int64_t>(count, 1, usable_cores());
  std::atomic<int64_t> next = 0;
  const auto work = [&] {
    for (int64_t i; (i = next.fetch_add(1)) < count;) run(i);
  };
  std::vector<std::jthread> others;
  for (int64_t i = 1; i < threads; ++i) others.emplace_back(work);
  work();
}

Status pack_code_panel(const std::function<CodeSource(int64_t)>& source, int64_t k, const WeightFormat& format,
                       char* panel) {
  const bool bytes = is_byte_codes(format);
  const int64_t blocks = linear_cuda_k_blocks(k);
  std::memset(panel, 0,
              static_cast<size_t>(bytes ? byte_block_at(blocks, pairs_share_scales(format))
                                        : blocks * 2 * code_half_bytes(format)));
  RowMemory memory(format, k);
  for (int r = 0; r < kPanelRows; ++r) {
    const CodeSource from = source(r);
    if (from.part == nullptr) continue;
    read_codes(*from.part, from.row, format, k, memory.values, memory.row());
    if (format.zeros) VOLLEY_RETURN_IF_ERROR(check_scales(memory.row()));
    (bytes ? store_bytes : store_codes)(memory.row(), format, k, r, panel);
  }
  return {};
}

Result<LinearWeight> pack_codes(Device& device, std::span<const WeightRows> parts, int64_t k,
                                const WeightFormat& format, LinearLayout layout) {
  LinearWeight w;
  w.k = k;
  w.format = format;
  w.layout = layout;
  for (const WeightRows& part : parts) w.n += part.rows;
  const int64_t bytes = linear_codes_bytes(w.n, k, format, layout);
  VOLLEY_ASSIGN(w.packed, device.allocate(static_cast<size_t>(bytes)));
  if (device.stream().dry() || bytes == 0) return Result<LinearWeight>(std::move(w));

  const int64_t panels = linear_cuda_panels(w.n, layout), panel_bytes = bytes / panels;
  std::vector<CodeSource> sources(static_cast<size_t>(panels * kPanelRows));
  int64_t row = 0;
  for (const WeightRows& part : parts) {
    for (int64_t i = 0; i < part.rows; ++i) sources[packed_row(row++, w.n, layout)] = {&part, i};
  }
  const std::unique_ptr<char[]> host(new char[static_cast<size_t>(bytes)]);
  std::vector<Status> errors(static_cast<size_t>(panels));
  for_each_in_parallel(panels, [&](int64_t panel) {
    errors[panel] = pack_code_panel([&](int64_t r) { return sources[panel * kPanelRows + r]; }, k, format,
                                    host.get() + panel * panel_bytes);
  });
  for (const Status& error : errors) VOLLEY_RETURN_IF_ERROR(error);
  device.upload(w.packed.data(), host.get(), static_cast<size_t>(bytes));
  return Result<LinearWeight>(std::move(w));
}

}  // namespace volley::ops
