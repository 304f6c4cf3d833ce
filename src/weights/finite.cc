#include "weights/finite.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace volley::weights {
namespace {

// An element is infinite or NaN where all bits of its exponent are set: then adding the lowest of them to the exponent
// alone carries into the sign, which was masked out. Elements fill a word; a carry never leaves its element.
struct Exponent {
  uint64_t bits, lowest, sign;
};

constexpr uint64_t four_times(uint64_t x) {
  return x * 0x0001000100010001;
}
constexpr uint64_t twice(uint64_t x) {
  return x * 0x0000000100000001;
}

Exponent exponent_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {four_times(0x7f80), four_times(0x0080), four_times(0x8000)};
    case DType::kF16:
      return {four_times(0x7c00), four_times(0x0400), four_times(0x8000)};
    default:
      VOLLEY_CHECK(dtype == DType::kF32);
      return {twice(0x7f800000), twice(0x00800000), twice(0x80000000)};
  }
}

size_t bytes_of(const SourceTensor& tensor) {
  size_t bytes = dtype_size(tensor.dtype);
  for (const int64_t dim : tensor.shape) bytes *= static_cast<size_t>(dim);
  return bytes;
}

}  // namespace

bool all_finite(const SourceTensor& tensor) {
  const Exponent exponent = exponent_of(tensor.dtype);
  const size_t bytes = bytes_of(tensor);
  uint64_t carried = 0, word = 0;
  size_t at = 0;
  for (; at + sizeof(word) <= bytes; at += sizeof(word)) {
    std::memcpy(&word, tensor.data + at, sizeof(word));
    carried |= (word & exponent.bits) + exponent.lowest;
  }
  word = 0;
  std::memcpy(&word, tensor.data + at, bytes - at);
  carried |= (word & exponent.bits) + exponent.lowest;
  return (carried & exponent.sign) == 0;
}

bool all_zero(const SourceTensor& tensor) {
  const uint64_t sign = exponent_of(tensor.dtype).sign;
  const size_t bytes = bytes_of(tensor);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, tensor.data + at, std::min(sizeof(word), bytes - at));
    if ((word & ~sign) != 0) return false;
  }
  return true;
}

}  // namespace volley::weights
