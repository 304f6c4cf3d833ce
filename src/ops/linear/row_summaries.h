// The summary that linear() can leave of a row instead of its outputs, for callers that only want the highest output: a
// row of logits is 600 KB, which would be written and read again for one number.
#pragma once

#include <cstdint>

namespace volley::ops {

// A row is summarised by aligned groups: outputs [64 i, 64 i + 64), those that exist.
inline constexpr int32_t kSummaryGroup = 64;

struct GroupSummary {
  float highest;   // NaN if one of them is
  int32_t output;  // the lowest output that equals it; undefined if `highest` is NaN
  float weight;    // if asked for: sum of exp(output - highest), in fp32; undefined unless `highest` is finite
  float unused;
};
static_assert(sizeof(GroupSummary) == 16);

constexpr int64_t summary_groups(int64_t outputs) {
  return (outputs + kSummaryGroup - 1) / kSummaryGroup;
}

// Which rows of y are summarised. A summary takes the beginning of its row: GroupSummary[summary_groups(outputs)], of
// outputs with exactly the bits that would have been stored; the rest of the row stays unchanged. A summary's bits
// depend only on the row and the weights, like those of outputs.
struct RowSummaries {
  // [rows], read from the device's memory when the kernel runs, so that a recorded graph can change its choice. 0: a
  // summary; else the outputs. Null: outputs for all rows.
  const uint8_t* whole = nullptr;
  bool weights = false;
};

}  // namespace volley::ops
