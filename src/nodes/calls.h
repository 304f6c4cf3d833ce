// The commands of decode::StepExecutor as messages, from node 0 to the others, which replay them. A message outside a
// caller's rights or limits is refused: the other side may be another program, or broken.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "decode/step_executor.h"
#include "net/frame.h"

namespace volley::nodes {

inline constexpr size_t kMostCallBytes = size_t{1} << 30;

// Bounds of the numbers in a call.
struct CallLimits {
  int32_t slots = 0;
  int32_t max_rows = 0;       // per step
  int32_t max_positions = 0;  // per sequence
  int32_t page_size = 1;
  int32_t block_size = 1;
  std::vector<int32_t> proposals;  // by drafter: most tokens that it drafts for a block
  int32_t vocab = 0;
  int32_t hidden = 0;             // width of the vectors that rows bring
  int32_t vectors = 1;            // how many vectors a row brings
  bool rope_axes = false;         // whether rows may bring rotary positions on three axes
  int32_t logit_rows = 0;         // upper bound of decode::StepExecutor::most_shared_rows()
  std::vector<kv::Group> groups;  // cache groups, with their numbers of pages
  int64_t snapshots = 0;          // snapshots of recurrent states
  int32_t picture_side = 0;       // a picture's sides are multiples of it; 0: there are no pictures
  int64_t picture_pixels = 0;     // the most of a picture
};

struct Masks {
  std::vector<uint32_t> words;
};
struct End {};
using Message = std::variant<decode::Command, Masks, End>;

// A message that was read. The masks' source only says whether a segment has masks, and must not be called.
struct Call {
  Message message;
  std::vector<std::shared_ptr<const void>> owned;  // owns the data that the command refers to
};

using Bytes = std::vector<std::byte>;
// Appends to `out`. REQUIRES: no TakePart or Settle.
void append_call(Bytes& out, Message message);
// kInvalidArgument: not a command, or outside the limits.
Result<Call> read_call(const net::Frame& frame, const CallLimits& limits);

}  // namespace volley::nodes
