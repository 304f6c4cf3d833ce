// 4-bit integers in groups: eight codes to an int32, in the order of each maker.
#include <array>

#include "weights/schemes/finder.h"

namespace volley::weights {
namespace {

constexpr int64_t kPerWord = 8;
const std::vector<std::string> kScaleTypes = {"F16", "BF16", "F32"};

uint8_t nibble(int32_t word, int64_t i) {
  return static_cast<uint8_t>((static_cast<uint32_t>(word) >> (4 * i)) & 0xf);
}

// The tensors of one matrix. Scales are [rows, groups] or [groups, rows].
class Int4Matrix : public CodedMatrix {
 public:
  Int4Matrix(const CodeFormat& format, const Finder& finder) : CodedMatrix(format, finder.rows(), finder.columns()) {}

  Status read_tensors(const Finder& finder, const char* codes, const char* scales, const char* zeros) {
    VOLLEY_ASSIGN(sources_.emplace_back(), finder.read(codes));
    VOLLEY_ASSIGN(sources_.emplace_back(), finder.read(scales));
    scale_type_ = finder.info(scales)->dtype;
    if (zeros == nullptr) return {};
    VOLLEY_ASSIGN(sources_.emplace_back(), finder.read(zeros));
    return {};
  }

  // The group of each column. Where the format says that groups lie side by side, this is checked.
  Status read_order(const Finder& finder, const char* suffix, int64_t groups) {
    VOLLEY_ASSIGN(const SourceTensor order, finder.read(suffix));
    group_of_column_.resize(static_cast<size_t>(columns()));
    for (int64_t i = 0; i < columns(); ++i) {
      const int32_t group = int_at(order.data, i);
      const bool in_order = format().group == 0 ? group == 0 : group == i / format().group;
      if (group < 0 || group >= groups || (!format().scattered && !in_order)) {
        return finder.wrong(suffix, "puts column " + std::to_string(i) + " into group " + std::to_string(group) +
                                        ", which config.json's group_size and desc_act do not allow");
      }
      group_of_column_[i] = group;
    }
    return {};
  }

 protected:
  int32_t code_word(int64_t i) const { return int_at(sources_[0].data, i); }
  float scale(int64_t i) const { return float_at(sources_[1].data, scale_type_, i); }
  int32_t zero_word(int64_t i) const { return int_at(sources_[2].data, i); }

 private:
  std::string scale_type_;
};

// compressed-tensors: rows of words; zero points packed along the rows.
class PackedMatrix final : public Int4Matrix {
 public:
  using Int4Matrix::Int4Matrix;
  void read(const Place& place, uint8_t* codes, float* scales, uint8_t* zeros, float*) const override {
    const int64_t row = place.row;
    const int64_t words = groups_of(columns(), kPerWord);
    for (int64_t i = place.first; i < place.first + place.n; ++i) {
      *codes++ = nibble(code_word(row * words + i / kPerWord), i % kPerWord);
    }
    for (int64_t g = 0; g < groups(); ++g) {
      scales[g] = scale(row * groups() + g);
      if (format().zeros) zeros[g] = nibble(zero_word(row / kPerWord * groups() + g), row % kPerWord);
    }
  }
};

class AwqMatrix final : public Int4Matrix {
 public:
  AwqMatrix(const CodeFormat& format, const Finder& finder) : Int4Matrix(format, finder), n_(finder.rows()) {}
  void read(const Place& place, uint8_t* codes, float* scales, uint8_t* zeros, float*) const override {
    const int64_t row = place.row;
    constexpr std::array<int64_t, kPerWord> kNibble = {0, 4, 1, 5, 2, 6, 3, 7};  // an output's place in its word
    const int64_t words = n_ / kPerWord, word = row / kPerWord, of_row = kNibble[row % kPerWord];
    for (int64_t i = place.first; i < place.first + place.n; ++i) {
      *codes++ = nibble(code_word(i * words + word), of_row);
    }
    for (int64_t g = 0; g < groups(); ++g) {
      scales[g] = scale(g * n_ + row);
      zeros[g] = nibble(zero_word(g * words + word), of_row);
    }
  }

 private:
  int64_t n_;
};

class GptqMatrix final : public Int4Matrix {
 public:
  GptqMatrix(const CodeFormat& format, const Finder& finder)
      : Int4Matrix(format, finder), n_(finder.rows()), less_one_(finder.quantisation().zeros_less_one ? 1 : 0) {}
  void read(const Place& place, uint8_t* codes, float* scales, uint8_t* zeros, float*) const override {
    const int64_t row = place.row;
    for (int64_t i = place.first; i < place.first + place.n; ++i) {
      *codes++ = nibble(code_word(i / kPerWord * n_ + row), i % kPerWord);
    }
    for (int64_t g = 0; g < groups(); ++g) {
      scales[g] = scale(g * n_ + row);
      const uint8_t zero = nibble(zero_word(g * (n_ / kPerWord) + row / kPerWord), row % kPerWord);
      zeros[g] = static_cast<uint8_t>(zero + less_one_);
    }
  }

 private:
  int64_t n_, less_one_;
};

CodeFormat int4_format(int32_t group, bool zeros, bool scattered) {
  CodeFormat format;
  format.code = DType::kI4;
  format.group = group;
  format.zeros = zeros;
  format.scattered = scattered && group > 0;
  format.name = group > 0 ? "int4 in groups of " + std::to_string(group) : "int4 with a scale for each row";
  if (zeros) format.name += " with zero points";
  if (format.scattered) format.name += ", reordered";
  return format;
}

// The number of groups, from dimension `at` of the scales.
Result<int32_t> group_by_scales(const Finder& finder, const char* scales, size_t at) {
  const std::optional<TensorInfo> found = finder.info(scales);
  if (!found) return finder.missing(scales, "which holds the scales of its 4-bit codes");
  if (found->shape.size() != 2)
    return finder.wrong(scales, "has shape " + shape_text(found->shape) + ", not two dimensions");
  return finder.group_for(scales, found->shape[at]);
}

// The common part of AWQ and GPTQ: codes with words along one dimension, scales and zero points ordered by group first.
Result<std::optional<Codes>> find_by_group(const Finder& finder, const Shape& codes, bool scattered) {
  const int64_t n = finder.rows(), k = finder.columns();
  VOLLEY_RETURN_IF_ERROR(finder.check("qweight", {"I32"}, codes));
  if (n % kPerWord != 0 || k % kPerWord != 0) {
    return finder.unbuilt(
        "qweight", "is of a matrix of " + std::to_string(n) + " x " + std::to_string(k) + ": built are multiples of 8");
  }
  VOLLEY_ASSIGN(const int32_t group, group_by_scales(finder, "scales", 0));
  const int64_t groups = group > 0 ? groups_of(k, group) : 1;
  VOLLEY_RETURN_IF_ERROR(finder.check("scales", kScaleTypes, {groups, n}));
  VOLLEY_RETURN_IF_ERROR(finder.check("qzeros", {"I32"}, {groups, n / kPerWord}));
  CodeFormat format = int4_format(group, true, scattered);
  format.bytes = finder.bytes({"qweight", "scales", "qzeros", "g_idx"});
  return std::optional(Codes{std::move(format), {}});
}

}  // namespace

Result<std::optional<Codes>> find_packed_int4(const Finder& finder) {
  const int64_t n = finder.rows(), k = finder.columns();
  VOLLEY_RETURN_IF_ERROR(finder.check("weight_packed", {"I32"}, {n, groups_of(k, kPerWord)}));
  VOLLEY_ASSIGN(const int32_t group, group_by_scales(finder, "weight_scale", 1));
  const int64_t groups = group > 0 ? groups_of(k, group) : 1;
  const bool zeros = finder.has("weight_zero_point"), scattered = finder.has("weight_g_idx");
  VOLLEY_RETURN_IF_ERROR(finder.check("weight_scale", kScaleTypes, {n, groups}));
  if (zeros) {
    VOLLEY_RETURN_IF_ERROR(finder.check("weight_zero_point", {"I32"}, {groups_of(n, kPerWord), groups}));
  }
  if (scattered) {
    VOLLEY_RETURN_IF_ERROR(finder.check("weight_g_idx", {"I32"}, {k}));
  }
  CodeFormat format = int4_format(group, zeros, scattered);
  format.bytes = finder.bytes({"weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx"});
  return std::optional(Codes{format, [=]() -> Result<std::shared_ptr<const CodedMatrix>> {
                               auto matrix = std::make_shared<PackedMatrix>(format, finder);
                               VOLLEY_RETURN_IF_ERROR(matrix->read_tensors(finder, "weight_packed", "weight_scale",
                                                                           zeros ? "weight_zero_point" : nullptr));
                               if (scattered) {
                                 VOLLEY_RETURN_IF_ERROR(matrix->read_order(finder, "weight_g_idx", groups));
                               }
                               return std::shared_ptr<const CodedMatrix>(std::move(matrix));
                             }});
}

Result<std::optional<Codes>> find_awq(const Finder& finder) {
  VOLLEY_ASSIGN(std::optional<Codes> codes, find_by_group(finder, {finder.columns(), finder.rows() / kPerWord}, false));
  codes->open = [finder, format = codes->format]() -> Result<std::shared_ptr<const CodedMatrix>> {
    auto matrix = std::make_shared<AwqMatrix>(format, finder);
    VOLLEY_RETURN_IF_ERROR(matrix->read_tensors(finder, "qweight", "scales", "qzeros"));
    return std::shared_ptr<const CodedMatrix>(std::move(matrix));
  };
  return codes;
}

Result<std::optional<Codes>> find_gptq(const Finder& finder) {
  const bool ordered = finder.has("g_idx");
  VOLLEY_ASSIGN(std::optional<Codes> codes, find_by_group(finder, {finder.columns() / kPerWord, finder.rows()},
                                                          ordered && finder.quantisation().act_order));
  if (ordered) {
    VOLLEY_RETURN_IF_ERROR(finder.check("g_idx", {"I32"}, {finder.columns()}));
  }
  codes->open = [finder, ordered, format = codes->format]() -> Result<std::shared_ptr<const CodedMatrix>> {
    auto matrix = std::make_shared<GptqMatrix>(format, finder);
    VOLLEY_RETURN_IF_ERROR(matrix->read_tensors(finder, "qweight", "scales", "qzeros"));
    if (ordered) {
      VOLLEY_RETURN_IF_ERROR(matrix->read_order(finder, "g_idx", matrix->groups()));
    }
    return std::shared_ptr<const CodedMatrix>(std::move(matrix));
  };
  return codes;
}

}  // namespace volley::weights
