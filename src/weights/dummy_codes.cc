#include "weights/dummy_codes.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"
#include "base/mix.h"
#include "weights/coded.h"

namespace volley::weights {
namespace {

class DummyMatrix final : public CodedMatrix {
 public:
  DummyMatrix(const CodeFormat& format, int64_t rows, int64_t columns, uint64_t key)
      : CodedMatrix(format, rows, columns), key_(key) {
    // The root mean square of a random code.
    const double size = format.code == DType::kF4E2M1 ? 2.9 : 0.6;
    scale_ = static_cast<float>(std::exp2(std::round(std::log2(1 / (size * std::sqrt(static_cast<double>(columns)))))));
  }

  void read(const Place& place, uint8_t* codes, float* scales, uint8_t*, float*) const override {
    const bool bytes = format().code == DType::kF8E4M3;
    const int64_t per_hash = bytes ? 8 : 16;
    const uint64_t key = mix_bits(key_ + (static_cast<uint64_t>(place.row) + 1) * kSplitMixStep);
    const int64_t first = place.first, end = first + place.n;
    for (int64_t begin = first / per_hash * per_hash; begin < end; begin += per_hash) {
      uint64_t bits = mix_bits(key + (static_cast<uint64_t>(begin) + 1) * kSplitMixStep);
      for (int64_t i = begin; i < std::min(end, begin + per_hash); ++i, bits >>= bytes ? 8 : 4) {
        if (i >= first) codes[i - first] = bits & (bytes ? 0xbf : 0xf);  // e4m3 codes stay below a magnitude of 2
      }
    }
    std::fill_n(scales, groups(), scale_);
  }

 private:
  uint64_t key_;
  float scale_;
};

class DummyCodes final : public Checkpoint {
 public:
  DummyCodes(std::shared_ptr<const Checkpoint> dummy, Quantisation quantisation, uint64_t seed)
      : dummy_(std::move(dummy)), quantisation_(std::move(quantisation)), seed_(seed) {}

  bool has(std::string_view name) const override { return dummy_->has(name); }
  Result<SourceTensor> get(std::string_view name, std::span<const int64_t> shape) const override {
    return dummy_->get(name, shape);
  }
  Result<SourceTensor> get_part(std::string_view name, std::span<const int64_t> whole, int64_t first,
                                std::span<const int64_t> shape) const override {
    return dummy_->get_part(name, whole, first, shape);
  }
  Status check(std::string_view name, std::span<const int64_t> shape) const override {
    return dummy_->check(name, shape);
  }
  Result<std::vector<int64_t>> integers(std::string_view name, int64_t count) const override {
    return dummy_->integers(name, count);
  }
  Status check_integers(std::string_view name, int64_t count) const override {
    return dummy_->check_integers(name, count);
  }
  DType main_dtype() const override { return dummy_->main_dtype(); }
  std::string quantisation() const override { return quantisation_.name; }

  Result<std::optional<CodeFormat>> code_format(std::string_view name, std::span<const int64_t> shape) const override {
    if (shape.size() != 2 || !has_codes(name)) return std::optional<CodeFormat>();
    CodeFormat format;
    if (quantisation_.block_rows > 0) {
      const int64_t rows = quantisation_.block_rows, columns = quantisation_.block_columns;
      format.code = DType::kF8E4M3;
      format.group = columns;
      format.block_rows = rows;
      format.name = "fp8 in blocks of " + std::to_string(rows) + "x" + std::to_string(columns);
      format.bytes = shape[0] * shape[1] + divide_up(shape[0], rows) * divide_up(shape[1], columns) * 4;
      return std::optional(std::move(format));
    }
    format.code = DType::kF4E2M1;
    format.group = 32;
    format.name = "mxfp4";
    format.bytes = shape[0] * (shape[1] / 2 + (shape[1] + 31) / 32);
    return std::optional(std::move(format));
  }
  Result<std::shared_ptr<const CodedMatrix>> coded(std::string_view name,
                                                   std::span<const int64_t> shape) const override {
    VOLLEY_ASSIGN(const std::optional<CodeFormat> format, code_format(name, shape));
    uint64_t key = mix_bits(seed_ + 1);
    for (const char c : name) key = mix_bits(key ^ static_cast<unsigned char>(c));
    return std::shared_ptr<const CodedMatrix>(std::make_shared<DummyMatrix>(*format, shape[0], shape[1], key));
  }

 private:
  bool has_codes(std::string_view name) const {
    const auto contains = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
    if (quantisation_.block_rows == 0) return contains(".experts.");
    // The gates of linear attention are few rows, which published checkpoints leave plain.
    return contains("_proj") && !contains("in_proj_ba") && !contains("in_proj_a.") && !contains("in_proj_b.");
  }

  std::shared_ptr<const Checkpoint> dummy_;
  Quantisation quantisation_;
  uint64_t seed_;
};

}  // namespace

std::shared_ptr<const Checkpoint> with_dummy_codes(std::shared_ptr<const Checkpoint> dummy,
                                                   const Quantisation* quantisation, uint64_t seed) {
  if (quantisation == nullptr) return dummy;
  const bool fp8 = quantisation->name == "fp8" && quantisation->block_rows > 0;
  if (quantisation->name != "mxfp4" && !fp8) return dummy;
  return std::make_shared<DummyCodes>(std::move(dummy), *quantisation, seed);
}

}  // namespace volley::weights
