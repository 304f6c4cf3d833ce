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
  const auto bits = read<uint16_t>(data);
  const uint32_t exponent = bits & 0x7c00;
  if (exponent == 0 || exponent == 0x7c00) return to_float(Float16{bits});
  return std::bit_cast<float>((bits & 0x8000u) << 16 | (((bits & 0x7fffu) << 13) + (112u << 23)));
}

// Two codes a byte: the lower halves of `bytes` bytes (a multiple of 8) are the first codes.
void read_nibbles(const std::byte* q, int bytes, uint8_t* codes) {
  for (int i = 0; i < bytes; i += 8) {
    constexpr uint64_t kLower = 0x0f0f0f0f0f0f0f0f;
    const auto eight = read<uint64_t>(q + i);
    const uint64_t low = eight & kLower, high = eight >> 4 & kLower;
    std::memcpy(codes + i, &low, sizeof(low));
    std::memcpy(codes + bytes + i, &high, sizeof(high));
  }
}
// Sets the codes' bits from the fifth on: those that `mask` has in each byte, of 32 bytes shifted to the right.
void add_bits(const std::byte* bits, int shift, uint64_t mask, uint8_t* codes) {
  for (int i = 0; i < 32; i += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, codes + i, sizeof(eight));
    eight |= (read<uint64_t>(bits + i) >> shift & mask) << 4;
    std::memcpy(codes + i, &eight, sizeof(eight));
  }
}
constexpr uint64_t kOneBit = 0x0101010101010101, kTwoBits = 3 * kOneBit;

void read_four_bits(const std::byte* q, uint8_t* codes) {
  read_nibbles(q, 16, codes);
}
// Codes of 5 bits: the fifth bits of all codes lie in a word before the others.
void read_five_bits(const std::byte* q, uint8_t* codes) {
  const auto fifth = read<uint32_t>(q);
  read_nibbles(q + 4, 16, codes);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (fifth >> i & 1) << 4);
}

// One group of 32 codes in a block that begins with a scale.
template <void (*kRead)(const std::byte*, uint8_t*)>
void read_group(const std::byte* block, const std::byte* q, const Integers& to) {
  *to.scales = half(block);
  kRead(q, to.codes);
}
// The same with a minimum after the scale.
template <void (*kRead)(const std::byte*, uint8_t*)>
void read_group_and_minimum(const std::byte* block, const Integers& to) {
  *to.minimums = half(block + 2);
  read_group<kRead>(block, block + 4, to);
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
  const float d = half(block), m = half(block + 2);
  for (int group = 0; group < 8; ++group) {
    const auto [scale, minimum] = group_of(block + 4, group);
    to.scales[group] = d * static_cast<float>(scale);
    to.minimums[group] = -(m * static_cast<float>(minimum));
    if (group % 2 == 0) read_nibbles(q + group * 16, 32, to.codes + group * 32);
    if (high != nullptr) add_bits(high, group, kOneBit, to.codes + group * 32);
  }
}

void read_q6_k(const std::byte* block, const Integers& to) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = half(block + 208);
  for (int i = 0; i < 16; ++i) to.scales[i] = d * static_cast<float>(read<int8_t>(scales + i));
  for (int part = 0; part < 8; ++part) {
    if (part % 4 == 0) read_nibbles(low + part * 16, 64, to.codes + part * 32);
    add_bits(high + part / 4 * 32, part % 4 * 2, kTwoBits, to.codes + part * 32);
  }
}

void widen_mxfp4(const std::byte* block, float* y) {
  // Half the power of two, because the values are doubled.
  const uint32_t e = byte_at(block, 0);
  const auto d = std::bit_cast<float>(e < 2 ? uint32_t{0x00200000} << e : (e - 1) << 23);
  uint8_t codes[32];
  read_four_bits(block + 1, codes);
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
      return IntegerBlocks{DType::kI4, 32, false, 8};
    case TensorType::kQ4_1:
      return IntegerBlocks{DType::kI4, 32, true, 0, true};
    case TensorType::kQ4_K:
      return IntegerBlocks{DType::kI4, 32, true};
    case TensorType::kQ5_0:
      return IntegerBlocks{DType::kI6, 32, false, 16};
    case TensorType::kQ5_1:
      return IntegerBlocks{DType::kI6, 32, true, 0, true};
    case TensorType::kQ5_K:
      return IntegerBlocks{DType::kI6, 32, true};
    case TensorType::kQ6_K:
      return IntegerBlocks{DType::kI6, 16, false, 32};
    case TensorType::kQ8_0:
      return IntegerBlocks{DType::kI8, 32, false};
    default:
      return std::nullopt;
  }
}

void read_integers(TensorType type, const std::byte* blocks, int64_t count, const Integers& to) {
  const gguf::TypeFacts facts = gguf::facts_of(type);
  const auto each = [&](const auto& read_block) {
    Integers one = to;
    const int64_t bytes = facts.bytes, step = facts.values, groups = step / integers_of(type)->group;
    for (const std::byte *block = blocks, *end = blocks + count * bytes; block < end; block += bytes) {
      read_block(block, one);
      one.codes += step;
      one.scales += groups;
      if (one.minimums != nullptr) one.minimums += groups;
    }
  };
  using Block = const std::byte*;
  switch (type) {
    case TensorType::kQ4_0:
      return each([](Block b, const Integers& one) { read_group<read_four_bits>(b, b + 2, one); });
    case TensorType::kQ4_1:
      return each(read_group_and_minimum<read_four_bits>);
    case TensorType::kQ5_0:
      return each([](Block b, const Integers& one) { read_group<read_five_bits>(b, b + 2, one); });
    case TensorType::kQ5_1:
      return each(read_group_and_minimum<read_five_bits>);
    case TensorType::kQ8_0:
      return each([](Block b, const Integers& one) {
        *one.scales = half(b);
        std::memcpy(one.codes, b + 2, 32);
      });
    case TensorType::kQ4_K:
      return each([](Block b, const Integers& one) { read_groups(b, nullptr, b + 16, one); });
    case TensorType::kQ5_K:
      return each([](Block b, const Integers& one) { read_groups(b, b + 16, b + 48, one); });
    case TensorType::kQ6_K:
      return each(read_q6_k);
    default:
      VOLLEY_CHECK_MSG(false, facts.name);
  }
}

void widen_blocks(TensorType type, const std::byte* blocks, int64_t count, float* values) {
  const gguf::TypeFacts facts = gguf::facts_of(type);
  const auto each = [&](void (*widen)(const std::byte*, float*)) {
    for (int64_t i = 0; i < count; ++i) widen(blocks + i * facts.bytes, values + i * facts.values);
  };
  if (const auto integers = integers_of(type)) {
    uint8_t codes[kMostBlockValues];
    float scales[kMostBlockGroups], minimums[kMostBlockGroups];
    for (int64_t i = 0; i < count; ++i) {
      read_integers(type, blocks + i * facts.bytes, 1, {codes, scales, minimums});
      float* y = values + i * facts.values;
      for (int64_t j = 0; j < facts.values; ++j) {
        y[j] = scales[j / integers->group] * static_cast<float>(static_cast<int8_t>(codes[j]) - integers->zero);
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
