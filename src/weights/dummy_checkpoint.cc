#include <algorithm>
#include <array>
#include <cmath>
#include <new>
#include <numbers>
#include <span>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mix.h"
#include "weights/checkpoint.h"

namespace volley::weights {
namespace {

constexpr int kTableBits = 12;
constexpr int kTableSize = 1 << kTableBits;
constexpr size_t kPerHash = 64 / kTableBits;
// Enough values to occupy a thread: an expert's matrix of 768 x 2048 occupies twelve.
constexpr size_t kThreadCount = size_t{1} << 17;

// x with P(standard normal < x) = p, 0.5 <= p < 1. Newton's method from 0: the distribution function is concave above
// 0, so each step stays below the root and comes nearer.
double normal_quantile(double p) {
  double x = 0;
  for (int i = 0; i < 40; ++i) {
    const double error = p - 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    x += error / density;
  }
  return x;
}

class DummyCheckpoint final : public Checkpoint {
 public:
  explicit DummyCheckpoint(uint64_t seed) : seed_(seed) {
    for (int i = 0; i < kTableSize / 2; ++i) {
      const double x = normal_quantile(0.5 + (i + 0.5) / kTableSize);
      normal_[kTableSize / 2 + i] = static_cast<float>(x);
      normal_[kTableSize / 2 - 1 - i] = static_cast<float>(-x);
    }
  }

  bool has(std::string_view) const override { return true; }

  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    return get_part(name, shape, 0, shape);
  }

  // Values depend on the whole tensor's shape and on their place in it, so a part can be made without the rest.
  Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                std::span<const int64_t> shape) const override {
    size_t count = 1;
    for (const int64_t dim : shape) {
      VOLLEY_CHECK_GE(dim, 0);
      VOLLEY_CHECK(!__builtin_mul_overflow(count, static_cast<size_t>(dim), &count));
    }
    // Allocated as bits, because a new array of BFloat16 would be filled with zeros first.
    const std::shared_ptr<uint16_t[]> values(new uint16_t[count]);
    if (whole.size() <= 1) {
      std::fill_n(values.get(), count, to_bfloat16(1.0f).bits);
    } else if (count > 0) {
      fill(std::span(values.get(), count), static_cast<size_t>(first), key_of(name, whole),
           1.0 / std::sqrt(static_cast<double>(whole.back())));
    }
    return SourceTensor{reinterpret_cast<const std::byte*>(values.get()), DType::kBF16,
                        std::vector<int64_t>(shape.begin(), shape.end()), values};
  }

  Status check(std::string_view, std::span<const int64_t>) const override { return {}; }

  // All zero: as offsets between vocabularies, zeros map each token's id to the same id.
  Result<std::vector<int64_t>> integers(std::string_view, int64_t count) const override {
    return std::vector<int64_t>(static_cast<size_t>(count));
  }
  Status check_integers(std::string_view, int64_t) const override { return {}; }

  DType main_dtype() const override { return DType::kBF16; }

 private:
  uint64_t key_of(std::string_view name, std::span<const int64_t> shape) const {
    uint64_t key = mix_bits(seed_ + 1);
    for (const char c : name) key = mix_bits(key ^ static_cast<unsigned char>(c));
    for (const int64_t dim : shape) key = mix_bits(key ^ static_cast<uint64_t>(dim));
    return key;
  }

  // Values [first, first + values.size()) of a tensor. Models of billions of weights are filled this way: one hash
  // gives five values, each a look-up.
  void fill(std::span<uint16_t> values, size_t first, uint64_t key, double deviation) const {
    std::array<uint16_t, kTableSize> table;
    for (int i = 0; i < kTableSize; ++i) table[i] = to_bfloat16(static_cast<float>(normal_[i] * deviation)).bits;
    // Hash h makes values [h * kPerHash, (h + 1) * kPerHash), so threads can take any part.
    const size_t end = first + values.size();
    const auto fill_hashes = [&](size_t begin_hash, size_t end_hash) {
      for (size_t h = begin_hash; h < end_hash; ++h) {
        uint64_t bits = mix_bits(key + (h + 1) * kSplitMixStep);
        for (size_t i = h * kPerHash; i < std::min(end, (h + 1) * kPerHash); ++i, bits >>= kTableBits) {
          if (i >= first) values[i - first] = table[bits % kTableSize];
        }
      }
    };
    const size_t begin_hash = first / kPerHash, hashes = (end + kPerHash - 1) / kPerHash - begin_hash;
    const size_t threads = std::clamp(values.size() / kThreadCount, size_t{1},
                                      static_cast<size_t>(std::max(1u, std::thread::hardware_concurrency())));
    std::vector<std::jthread> helpers;
    for (size_t t = 1; t < threads; ++t) {
      helpers.emplace_back(fill_hashes, begin_hash + hashes * t / threads, begin_hash + hashes * (t + 1) / threads);
    }
    fill_hashes(begin_hash, begin_hash + hashes / threads);
  }

  const uint64_t seed_;
  std::array<float, kTableSize> normal_;  // quantiles of the standard normal distribution, ascending
};

}  // namespace

std::unique_ptr<Checkpoint> make_dummy_checkpoint(uint64_t seed) {
  return std::make_unique<DummyCheckpoint>(seed);
}

}  // namespace volley::weights
