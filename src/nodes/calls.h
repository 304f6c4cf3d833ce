// The calls of spec::StepExecutor as messages, from node 0 to the others, which replay them. A message that does not
// say what a caller may ask for is refused: the other side may be another program, or broken.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "net/frame.h"
#include "spec/step_executor.h"

namespace volley::nodes {

inline constexpr size_t kMostCallBytes = size_t{1} << 30;

// What the numbers in a call may be.
struct CallLimits {
  int32_t slots = 0;
  int32_t max_rows = 0;       // of a step
  int32_t max_positions = 0;  // of a sequence
  int32_t page_size = 0;
  int32_t block_size = 1;
  int32_t vocab = 0;
  int32_t logit_rows = 0;         // spec::StepExecutor::most_shared_rows() is not more
  std::vector<kv::Group> groups;  // of pages; with the pages that there are
  int64_t snapshots = 0;          // of recurrent states
};

// `start` without its spans, which refer to the vectors.
struct StartSlot {
  int32_t slot = 0;
  spec::SlotStart start;
  std::vector<TokenId> prompt, output;

  spec::SlotStart whole() const;  // with spans into this
};
struct ClearSlot {
  int32_t slot = 0;
};
struct SetPage {
  int32_t slot = 0;
  size_t group = 0;
  int32_t index = 0;
  PageId page;
};
struct SaveState {
  int32_t slot = 0;
  PageId snapshot;
};
struct RestoreState {
  PageId snapshot;
  int32_t slot = 0;
};
struct CopyPage {
  size_t group = 0;
  PageId from, to;
};
// Segments with what they refer to. Whether one has masks is said by a source that must not be asked.
struct Segments {
  Segments() = default;
  Segments(Segments&&) = default;
  Segments& operator=(Segments&&) = default;

  std::vector<spec::RoundSegment> segments;
  std::vector<TokenId> tokens;  // that their spans refer to
};
struct Reserve {
  Segments of;
};
struct Enqueue {
  Segments of;
  int32_t budget_rows = spec::VerifyBudget::kAll;
  std::unique_ptr<ops::SurvivalTable> table;  // null: none
  bool waits = false;                         // wait() follows at once
};
struct Wait {};
struct Masks {
  std::vector<uint32_t> words;
};
struct End {};

using Call =
    std::variant<StartSlot, ClearSlot, SetPage, SaveState, RestoreState, CopyPage, Reserve, Enqueue, Wait, Masks, End>;

// Messages, appended to `out`.
using Bytes = std::vector<std::byte>;
void append_start_slot(Bytes& out, int32_t slot, const spec::SlotStart& start);
void append_clear_slot(Bytes& out, int32_t slot);
void append_set_page(Bytes& out, int32_t slot, size_t group, int32_t index, PageId page);
void append_save_state(Bytes& out, int32_t slot, PageId snapshot);
void append_restore_state(Bytes& out, PageId snapshot, int32_t slot);
void append_copy_page(Bytes& out, size_t group, PageId from, PageId to);
void append_reserve(Bytes& out, std::span<const spec::RoundSegment> segments);
void append_enqueue(Bytes& out, std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget,
                    bool waits);
void append_wait(Bytes& out);
void append_masks(Bytes& out, std::span<const uint32_t> words);
void append_end(Bytes& out);

// kInvalidArgument: it is none of the above, or says what the limits do not allow.
Result<Call> read_call(const net::Frame& frame, const CallLimits& limits);

}  // namespace volley::nodes
