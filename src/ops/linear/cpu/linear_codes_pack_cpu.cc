// From values to codes and scales, a group at a time, and from codes to the packed layout: once per matrix, at load.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/math.h"
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

// Four words of four outputs, and two halves of 16 codes.
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint64_t Halves __attribute__((vector_size(16)));

// The lower four bits of 16 codes of each output, two lines. stride: from an output's codes to the next one's.
void store_nibbles(const uint8_t* codes, int64_t stride, char* lines) {
  for (int64_t lane = 0; lane < kPanelWidth; lane += 4) {
    // The first bytes of an even word are pairs of codes: 0 and 2, 1 and 3; of an odd one 4 and 6, 5 and 7.
    Words from[4];
    for (int64_t i = 0; i < 4; ++i) {
      Halves halves;
      std::memcpy(&halves, codes + (lane + i) * stride, sizeof(halves));
      halves &= 0x0f0f0f0f0f0f0f0f;
      halves |= halves >> 12;
      std::memcpy(&from[i], &halves, sizeof(halves));
    }
    const Words a = __builtin_shufflevector(from[0], from[1], 0, 4, 1, 5),
                b = __builtin_shufflevector(from[2], from[3], 0, 4, 1, 5),
                c = __builtin_shufflevector(from[0], from[1], 2, 6, 3, 7),
                d = __builtin_shufflevector(from[2], from[3], 2, 6, 3, 7);
    const auto store = [&](Words even, Words odd, char* line) {
      const Words words = (even & 0xff) | (odd & 0xff) << 8 | (even & 0xff00) << 8 | (odd & 0xff00) << 16;
      std::memcpy(line + lane * sizeof(uint32_t), &words, sizeof(words));
    };
    store(__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7), lines);
    store(__builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7), lines + kLineBytes);
  }
}

// The upper two bits of 16 codes of 6: of pair i, bits 2 i of the halves of a word.
uint32_t upper_bits(const uint8_t* codes) {
  uint32_t word = 0;
  for (int i = 0; i < 16; ++i) word |= static_cast<uint32_t>(codes[i] >> 4) << (i % 2 * 16 + i / 2 * 2);
  return word;
}

// A value of fp16 as such.
uint16_t half_of(float value) {
  constexpr uint32_t kLeast = 0x38800000, kInfinity = 0x7f800000;  // 2^-14, below which they are subnormal
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
  const uint32_t half = magnitude < kLeast      ? static_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p24f)
                        : magnitude < kInfinity ? (magnitude - (112u << 23)) >> 13
                                                : (magnitude - (224u << 23)) >> 13;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | half);
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

PanelCodes::PanelCodes(int64_t k, const WeightFormat& format)
    : format_(format),
      k_(k),
      groups_(divide_up(k, format.group_k)),
      // Columns behind the last one are zeros.
      codes_(static_cast<size_t>(kPanelWidth * groups_ * format.group_k),
             format.code == DType::kI6                       ? 32
             : format.code == DType::kI4 && !format.minimums ? 8
                                                             : 0),
      zeros_(format.zeros ? static_cast<size_t>(kPanelWidth * groups_) : 0),
      scales_(static_cast<size_t>(kPanelWidth * groups_)),
      minimums_(format.minimums ? scales_.size() : 0) {}

CodedRow PanelCodes::row(int64_t lane) {
  const auto groups = static_cast<size_t>(groups_), at = static_cast<size_t>(lane) * groups;
  return {std::span(codes_).subspan(at * format_.group_k, k_), std::span(scales_).subspan(at, groups),
          format_.zeros ? std::span(zeros_).subspan(at, groups) : std::span<uint8_t>(),
          format_.minimums ? std::span(minimums_).subspan(at, groups) : std::span<float>()};
}

void PanelCodes::quantise(int64_t lane, int64_t group, const float* values, int64_t count) {
  const bool int4 = format_.code == DType::kI4;
  VOLLEY_CHECK(!format_.zeros && !format_.minimums && (int4 || format_.code == DType::kF8E4M3));
  uint8_t* codes = &codes_[(lane * groups_ + group) * format_.group_k];
  std::fill_n(codes, count, int4 ? uint8_t{8} : uint8_t{0});
  scales_[lane * groups_ + group] = (int4 ? quantise_int4 : quantise_fp8)(values, count, codes);
}

void PanelCodes::store(char* panel) const {
  // Bytes may be written anywhere, members not excepted, which would be read again each time.
  const WeightFormat format = format_;
  const int64_t groups = groups_, group_k = format.group_k, stride = groups * group_k;
  const uint8_t *all_codes = codes_.data(), *zeros = zeros_.data();
  const float *scales = scales_.data(), *minimums = minimums_.data();
  const int64_t head = linear_group_head_bytes(format);
  const bool six = format.code == DType::kI6;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t lane = 0; lane < kPanelWidth; ++lane) {
      const int64_t i = lane * groups + g;
      const uint8_t* codes = all_codes + i * group_k;
      float scale = scales[i];
      // The kernels' tables have no code for NaN.
      const auto is_nan = [](uint8_t code) { return (code & 0x7f) == 0x7f; };
      if (format.code == DType::kF8E4M3 && std::any_of(codes, codes + group_k, is_nan)) scale = kNaN;
      const float offset = format.zeros ? static_cast<float>(zeros[i]) : format.minimums ? minimums[i] : 0.0f;
      if (format.halves) {
        const uint16_t half = half_of(scale), half_offset = half_of(offset);
        std::memcpy(panel + lane * 2, &half, 2);
        std::memcpy(panel + kLineBytes / 2 + lane * 2, &half_offset, 2);
      } else {
        std::memcpy(panel + lane * sizeof(float), &scale, sizeof(float));
        if (head > kLineBytes) std::memcpy(panel + kLineBytes + lane * sizeof(float), &offset, sizeof(float));
      }
    }
    panel += head;
    const auto store_words = [&](const uint8_t* codes, auto word_of) {
      for (int64_t lane = 0; lane < kPanelWidth; ++lane) {
        const uint32_t word = word_of(codes + lane * stride);
        std::memcpy(panel + lane * sizeof(word), &word, sizeof(word));
      }
      panel += kLineBytes;
    };
    for (int64_t k = 0; k < group_k; k += kLeastGroup) {
      const uint8_t* codes = all_codes + g * group_k + k;
      if (format.is_nibbles() || six) {
        store_nibbles(codes, stride, panel);
        panel += 2 * kLineBytes;
        if (six) store_words(codes, upper_bits);
        continue;
      }
      for (int64_t i = 0; i < kLeastGroup; i += 4) {
        store_words(codes + i, [](const uint8_t* c) {
          return c[0] | static_cast<uint32_t>(c[2]) << 8 | static_cast<uint32_t>(c[1]) << 16 |
                 static_cast<uint32_t>(c[3]) << 24;
        });
      }
    }
  }
}

}  // namespace volley::ops
