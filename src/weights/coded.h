// A matrix that a checkpoint holds as codes with scales, whatever the layout of its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/checkpoint.h"

namespace volley::weights {

// Reads one matrix [rows, columns] of codes. Threads: const functions from any thread.
class CodedMatrix {
 public:
  CodedMatrix(CodeFormat format, int64_t rows, int64_t columns)
      : format_(std::move(format)), rows_(rows), columns_(columns) {}
  virtual ~CodedMatrix() = default;

  const CodeFormat& format() const { return format_; }
  int64_t columns() const { return columns_; }
  int64_t groups() const { return format_.group > 0 ? (columns_ + format_.group - 1) / format_.group : 1; }
  // Codes of columns [first, first + n) of a row; reads no other bytes.
  struct Place {
    int64_t row = 0, first = 0, n = 0;
  };
  // n codes (of kI4 from 0 to 15); the row's groups() scales, and where the format has zero points or minimums groups()
  // of them. A code of kI6 counts from 32; of kI4 from its group's zero point, or from 8, or with minimums from 0.
  virtual void read(const Place& place, uint8_t* codes, float* scales, uint8_t* zeros, float* minimums) const = 0;
  // The n values: (code - zero point) * scale, or code * scale + minimum, in fp32.
  virtual void widen(const Place& place, float* values) const;
  // The bytes that are read, for Checkpoint::done_with().
  const std::vector<SourceTensor>& sources() const { return sources_; }

 protected:
  std::vector<SourceTensor> sources_;
  std::vector<int32_t> group_of_column_;  // group of each column, in a format that may scatter them

 private:
  CodeFormat format_;
  int64_t rows_, columns_;
};

}  // namespace volley::weights
