// From values to codes and scales, and from codes to the packed layout, a group at a time: once per matrix, at load.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/linear/cpu/linear_cpu.h"
#include "ops/linear/linear_int4.h"

namespace volley::ops {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The value of the largest magnitude; NaN where one is not finite.
float extreme(const float* values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return kNaN;
    if (std::fabs(values[i]) > std::fabs(most)) most = values[i];
  }
  return most;
}

float int4_code(float value) {
  constexpr float kRound = 0x1.8p23f;  // rounds to whole numbers when added and taken off again
  return std::clamp(value + kRound - kRound, -8.0f, 7.0f);
}

// The lowest `bits` bits of the four half words of `lanes`, which have no others, side by side.
uint32_t gathered(uint64_t lanes, int bits) {
  const uint64_t factor =
      uint64_t{1} << 48 | uint64_t{1} << (32 + bits) | uint64_t{1} << (16 + 2 * bits) | uint64_t{1} << (3 * bits);
  return static_cast<uint32_t>((lanes * factor) >> 48) & ((uint32_t{1} << (4 * bits)) - 1);
}

// `bits` bits (2, 4 or 8), from `from_bit` on, of each of so many codes as fill a word.
uint32_t word_of(const uint8_t* codes, int from_bit, int bits) {
  const auto at = [&](int i, int bit) { return static_cast<uint32_t>(codes[i]) << bit; };
  if (bits == 8) return at(0, 0) | at(1, 16) | at(2, 8) | at(3, 24);
  uint32_t word = 0;
  for (int i = 0; i < 32 / bits; i += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, codes + i, sizeof(eight));
    const uint64_t mask = 0x0001000100010001 * ((uint64_t{1} << bits) - 1);
    const uint32_t even = gathered(eight >> from_bit & mask, bits),
                   odd = gathered(eight >> (8 + from_bit) & mask, bits);
    word |= (even | odd << 16) << (i / 2 * bits);
  }
  return word;
}

}  // namespace

float quantise_fp8(const float* values, int64_t count, uint8_t* codes) {
  const float most = extreme(values, count);
  if (std::isnan(most)) return kNaN;
  const float scale = std::max(std::fabs(most) / kMaxFloat8E4M3, std::numeric_limits<float>::min());
  const float inverse = 1 / scale;
  for (int64_t i = 0; i < count; ++i) codes[i] = to_float8_e4m3(values[i] * inverse).bits;
  return scale;
}

float quantise_int4(const float* values, int64_t count, uint8_t* codes) {
  const float most = extreme(values, count);
  if (std::isnan(most)) return kNaN;
  std::fill_n(codes, count, uint8_t{8});
  if (most == 0) return 0;
  constexpr float kTop[] = {-8.0f, -7.0f, 7.0f, -7.5f, -8.5f, -9.0f};
  float best_gain = -1, best_inverse = 0, best_scale = 0;
  for (const float top : kTop) {
    const float inverse = top / most;
    float dot = 0, squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float code = int4_code(values[i] * inverse);
      dot += values[i] * code;
      squares += code * code;
    }
    // The squared error is that of zeros less dot^2 / squares.
    const float gain = squares > 0 ? dot / squares * dot : 0;
    if (gain <= best_gain) continue;
    best_gain = gain;
    best_inverse = inverse;
    best_scale = squares > 0 ? dot / squares : 0;
  }
  if (!std::isfinite(best_inverse)) return 0;  // too small to divide by
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(int4_code(values[i] * best_inverse) + 8.0f);
  return best_scale;
}

void store_group_cpu(const CodeGroup& from, int64_t lane, const WeightFormat& format, char* group) {
  uint8_t codes[kMostGroup];
  const bool from_eight = format.code == DType::kI4 && !format.minimums;
  const float zero = format.zeros ? from.offset : from_eight ? 8.0f : format.code == DType::kI6 ? 32.0f : 0.0f;
  std::copy_n(from.codes, from.count, codes);
  // The rows are filled up with zeros, too: any code will do.
  std::fill(codes + from.count, codes + format.group_k, static_cast<uint8_t>(std::min(zero, 15.0f)));
  float scale = from.scale;
  // The kernels' tables have no code for NaN.
  const auto is_nan = [](uint8_t code) { return (code & 0x7f) == 0x7f; };
  if (format.code == DType::kF8E4M3 && std::any_of(codes, codes + from.count, is_nan)) scale = kNaN;
  std::memcpy(group + lane * sizeof(float), &scale, sizeof(float));
  if (format.zeros || format.minimums) {
    std::memcpy(group + kLineBytes + lane * sizeof(float), &from.offset, sizeof(float));
  }
  char* words = group + linear_group_head_bytes(format);
  // One word of a line: `bits` bits, from `from_bit` on, of each code from column `first` on.
  const auto store_word = [&](int64_t first, int from_bit, int bits) {
    const uint32_t word = word_of(codes + first, from_bit, bits);
    std::memcpy(words + lane * sizeof(word), &word, sizeof(word));
    words += kLineBytes;
  };
  if (format.code == DType::kI6) {
    for (int64_t i = 0; i < format.group_k; i += 16) {
      store_word(i, 0, 4);
      store_word(i + 8, 0, 4);
      store_word(i, 4, 2);
    }
    return;
  }
  const int bits = format.code_bits();
  for (int64_t i = 0; i < format.group_k; i += 32 / bits) store_word(i, 0, bits);
}

void pack_group_cpu(const float* values, int64_t count, int64_t lane, const WeightFormat& format, char* group) {
  const bool int4 = format.code == DType::kI4;
  VOLLEY_CHECK(!format.zeros && !format.minimums && (int4 || format.code == DType::kF8E4M3));
  uint8_t codes[kMostGroup];
  std::fill_n(codes, count, uint8_t{0});
  if (int4) std::fill_n(codes, count, uint8_t{8});
  const float scale = int4 ? quantise_int4(values, count, codes) : quantise_fp8(values, count, codes);
  store_group_cpu({codes, count, scale, 0}, lane, format, group);
}

}  // namespace volley::ops
