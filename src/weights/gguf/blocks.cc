// Layouts: github.com/ggml-org/ggml, src/ggml-common.h. d is a block's scale and m its minimum, fp16; q are its codes.
#include "weights/gguf/blocks.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "device/dtype.h"

namespace volley::weights {
namespace {

using gguf::TensorType;

uint8_t byte_at(const std::byte* data, int64_t i) {
  return static_cast<uint8_t>(data[i]);
}

template <typename T>
T read(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

float half(const std::byte* data) {
  return to_float(Float16{read<uint16_t>(data)});
}

// 32 codes in 16 bytes, each less `from`: the lower halves are the first 16.
void read_nibbles(const std::byte* q, int from, int8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<int8_t>((byte_at(q, i) & 0xf) - from);
    codes[i + 16] = static_cast<int8_t>((byte_at(q, i) >> 4) - from);
  }
}
// Codes of 5 bits: the fifth bits of all codes lie in a word before the others.
void read_five_bits(const std::byte* q, int from, int8_t* codes) {
  const auto fifth = read<uint32_t>(q);
  read_nibbles(q + 4, from, codes);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(codes[i] + ((fifth >> i & 1) << 4));
}

// One group of 32 codes, each less `from`, in a block that begins with a scale.
template <void (*kRead)(const std::byte*, int, int8_t*)>
void read_group(const std::byte* block, const std::byte* q, int from, const Integers& to) {
  *to.scales = half(block);
  kRead(q, from, to.codes);
}
// The same with a minimum after the scale.
template <void (*kRead)(const std::byte*, int, int8_t*)>
void read_group_and_minimum(const std::byte* block, const Integers& to) {
  *to.minimums = half(block + 2);
  read_group<kRead>(block, block + 4, 0, to);
}

// A group's scale and minimum of 6 bits, of Q4_K and Q5_K.
struct ScaleAndMinimum {
  int scale, minimum;
};
ScaleAndMinimum group_of(const std::byte* s, int j) {
  if (j < 4) return {byte_at(s, j) & 63, byte_at(s, j + 4) & 63};
  return {(byte_at(s, j + 4) & 15) | (byte_at(s, j - 4) >> 6) << 4, byte_at(s, j + 4) >> 4 | (byte_at(s, j) >> 6) << 4};
}

// high: the fifth bits of Q5_K, one byte for the same place in all groups; otherwise null.
void read_groups(const std::byte* block, const std::byte* high, const std::byte* q, const Integers& to) {
  for (int group = 0; group < 8; ++group) {
    const auto [scale, minimum] = group_of(block + 4, group);
    to.scales[group] = half(block) * static_cast<float>(scale);
    to.minimums[group] = -(half(block + 2) * static_cast<float>(minimum));
    int8_t* codes = to.codes + group * 32;
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<int8_t>((byte_at(q, group / 2 * 32 + i) >> (group % 2 * 4)) & 0xf);
    }
    if (high == nullptr) continue;
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(codes[i] | ((byte_at(high, i) >> group) & 1) << 4);
  }
}

void read_q6_k(const std::byte* block, const Integers& to) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = half(block + 208);
  for (int i = 0; i < 16; ++i) to.scales[i] = d * static_cast<float>(read<int8_t>(scales + i));
  for (int part = 0; part < 8; ++part) {
    const int half_of = part / 4, quarter = part % 4;
    const std::byte *four = low + half_of * 64 + quarter % 2 * 32, *two = high + half_of * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = ((byte_at(four, i) >> (quarter / 2 * 4)) & 0xf) | ((byte_at(two, i) >> (quarter * 2)) & 3) << 4;
      to.codes[part * 32 + i] = static_cast<int8_t>(code - 32);
    }
  }
}

void widen_mxfp4(const std::byte* block, float* y) {
  // Half the power of two, because the values are doubled.
  const uint32_t e = byte_at(block, 0);
  const auto d = std::bit_cast<float>(e < 2 ? uint32_t{0x00200000} << e : (e - 1) << 23);
  int8_t codes[32];
  read_nibbles(block + 1, 0, codes);
  for (int i = 0; i < 32; ++i) {
    const int code = codes[i];
    const float doubled = 2 * kFloat4E2M1[code & 7];
    y[i] = d * ((code & 8) == 0 || doubled == 0 ? doubled : -doubled);
  }
}

}  // namespace

std::optional<IntegerBlocks> integers_of(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
      return IntegerBlocks{DType::kI4, 32, false};
    case TensorType::kQ4_1:
    case TensorType::kQ4_K:
      return IntegerBlocks{DType::kI4, 32, true};
    case TensorType::kQ5_0:
      return IntegerBlocks{DType::kI6, 32, false};
    case TensorType::kQ5_1:
    case TensorType::kQ5_K:
      return IntegerBlocks{DType::kI6, 32, true};
    case TensorType::kQ6_K:
      return IntegerBlocks{DType::kI6, 16, false};
    case TensorType::kQ8_0:
      return IntegerBlocks{DType::kI8, 32, false};
    default:
      return std::nullopt;
  }
}

void read_integers(TensorType type, const std::byte* block, const Integers& to) {
  switch (type) {
    case TensorType::kQ4_0:
      return read_group<read_nibbles>(block, block + 2, 8, to);
    case TensorType::kQ4_1:
      return read_group_and_minimum<read_nibbles>(block, to);
    case TensorType::kQ5_0:
      return read_group<read_five_bits>(block, block + 2, 16, to);
    case TensorType::kQ5_1:
      return read_group_and_minimum<read_five_bits>(block, to);
    case TensorType::kQ8_0:
      *to.scales = half(block);
      std::memcpy(to.codes, block + 2, 32);
      return;
    case TensorType::kQ4_K:
      return read_groups(block, nullptr, block + 16, to);
    case TensorType::kQ5_K:
      return read_groups(block, block + 16, block + 48, to);
    case TensorType::kQ6_K:
      return read_q6_k(block, to);
    default:
      VOLLEY_CHECK_MSG(false, gguf::facts_of(type).name);
  }
}

void widen_blocks(TensorType type, const std::byte* blocks, int64_t count, float* values) {
  const gguf::TypeFacts facts = gguf::facts_of(type);
  const auto each = [&](void (*widen)(const std::byte*, float*)) {
    for (int64_t i = 0; i < count; ++i) widen(blocks + i * facts.bytes, values + i * facts.values);
  };
  if (const auto integers = integers_of(type)) {
    int8_t codes[kMostBlockValues];
    float scales[kMostBlockGroups], minimums[kMostBlockGroups];
    for (int64_t i = 0; i < count; ++i) {
      read_integers(type, blocks + i * facts.bytes, {codes, scales, minimums});
      float* y = values + i * facts.values;
      for (int64_t j = 0; j < facts.values; ++j) {
        y[j] = scales[j / integers->group] * static_cast<float>(codes[j]);
        if (integers->minimums) y[j] += minimums[j / integers->group];
      }
    }
    return;
  }
  switch (type) {
    case TensorType::kMXFP4:
      return each(widen_mxfp4);
    case TensorType::kF32:
      return each([](const std::byte* value, float* y) { *y = read<float>(value); });
    case TensorType::kF16:
      return each([](const std::byte* value, float* y) { *y = half(value); });
    case TensorType::kBF16:
      return each([](const std::byte* value, float* y) { *y = to_float(BFloat16{read<uint16_t>(value)}); });
    default:
      VOLLEY_CHECK_MSG(false, facts.name);
  }
}

}  // namespace volley::weights
