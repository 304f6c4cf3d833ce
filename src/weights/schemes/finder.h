// Helpers of all schemes: the tensors of one matrix, and sentences about them. Private to this folder.
#pragma once

#include <algorithm>
#include <cstring>

#include "weights/schemes/schemes.h"
#include "weights/shape_text.h"

namespace volley::weights {

using Shape = std::vector<int64_t>;

inline int64_t groups_of(int64_t columns, int64_t group) {
  return (columns + group - 1) / group;
}

class Finder {
 public:
  Finder(std::shared_ptr<const Checkpoint> files, const Quantisation& quantisation, const CodeSite& site)
      : files_(std::move(files)), quantisation_(quantisation), site_(site) {}

  const Quantisation& quantisation() const { return quantisation_; }
  const CodeSite& site() const { return site_; }
  int64_t rows() const { return site_.rows; }
  int64_t columns() const { return site_.columns; }

  // The tensor M.suffix.
  std::string name(const std::string& suffix) const;
  std::optional<TensorInfo> info(const std::string& suffix) const { return files_->info(name(suffix)); }
  bool has(const std::string& suffix) const { return info(suffix).has_value(); }

  // The rows of the site's matrix, the rows of the stack's matrix that contains it, and the first of its rows there.
  int64_t whole_rows() const { return site_.rows * site_.parts; }
  int64_t first_row() const { return site_.index % site_.parts * site_.rows; }

  // Whether M.suffix exists with one of these dtypes and, for this matrix, that shape.
  Status check(const std::string& suffix, const std::vector<std::string>& dtypes, const Shape& shape) const;
  // The stack's matrix within M.suffix; the whole tensor without a stack.
  Result<SourceTensor> read(const std::string& suffix) const;
  // The same as floats: from F32, F16, BF16 and F8_E4M3, and powers of two from F8_E8M0 and U8.
  Result<std::vector<float>> read_floats(const std::string& suffix) const;
  // How many bytes of the file this matrix takes, in all tensors M.suffix.
  int64_t bytes(const std::vector<std::string>& suffixes) const;
  // The group size that gives `groups` scales for a row of this many columns; 0 for one scale. An error names `suffix`.
  Result<int32_t> group_for(const std::string& suffix, int64_t groups) const;

  Error missing(const std::string& suffix, const std::string& what) const;
  Error wrong(const std::string& suffix, const std::string& what) const;
  Error unbuilt(const std::string& suffix, const std::string& what) const;

 private:
  std::shared_ptr<const Checkpoint> files_;
  const Quantisation& quantisation_;
  CodeSite site_;
};

float float_at(const std::byte* data, const std::string& dtype, int64_t i);
int32_t int_at(const std::byte* data, int64_t i);

// One for each family of layouts. REQUIRES: the tensors by which find_codes() chose it.
Result<std::optional<Codes>> find_fp8(const Finder& finder);
Result<std::optional<Codes>> find_packed_int4(const Finder& finder);
Result<std::optional<Codes>> find_awq(const Finder& finder);
Result<std::optional<Codes>> find_gptq(const Finder& finder);
Result<std::optional<Codes>> find_fp4(const Finder& finder, const std::string& codes);
Result<std::optional<Codes>> find_fp4_blocks(const Finder& finder);

}  // namespace volley::weights
