// Plans an engine's memory before any weight is read.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

#include "kv/layout.h"

namespace volley::engine {

// Without a stated fraction, the pool has this much for cached prefixes if the slots' full contexts need less.
inline constexpr int64_t kPrefixBytes = int64_t{2} << 30;

struct MemoryPlanInput {
  int64_t weight_bytes = 0;       // all models, rotary tables included
  std::vector<kv::Group> groups;  // the first group keeps whole contexts
  int64_t positions = 0;          // most positions of one request
  int64_t decode_ahead = 0;       // positions past its context for which a decoding request owns pages of windows
  int64_t prefill_ahead = 0;      // the same for a request whose prompt is being computed
  int64_t prompt_rows = 0;        // rows of all prompts in the steps under way
  int32_t page_size = 16;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  bool fewer_slots = false;     // max_num_seqs was not given: there may be fewer slots if pages need the memory
  int64_t kv_pages = 0;         // pages of group 0 that the user asked for; 0: choose
  int64_t kv_memory_bytes = 0;  // given by the user; 0: choose
  int64_t available_bytes = 0;  // free memory now
  double fraction = 0;        // fraction for weights, pages and a step's memory; 0: all, and pages get half of the rest
  int64_t state_bytes = 0;    // recurrent layers' states of all slots
  int64_t snapshot_unit = 0;  // bytes of one snapshot of a slot's states; 0: no snapshots
  int64_t snapshot_memory = 0;  // bytes for all snapshots; 0: choose
  int64_t step_bytes = 0;       // working memory of a step
  int64_t graph_bytes = 0;      // recorded steps
};

struct MemoryPlan {
  int64_t weight_bytes = 0;       // packed matrices and rotary tables of target and drafter
  std::vector<kv::Group> groups;  // with their number of pages
  int32_t max_num_seqs = 0;       // the input's number, or less
  int64_t state_bytes = 0;
  int64_t snapshots = 0, snapshot_bytes = 0;  // snapshots of states: their number and bytes
  int64_t step_bytes = 0;
  int64_t graph_bytes = 0;
  int64_t pages_per_request = 0;  // pages of group 0 for one request of max_model_len, its reserve included

  int64_t pages() const { return groups.front().pages; }
  int64_t page_bytes() const;  // Bytes of a page of every group, for page_size new positions.
  // bytes of a position that is kept to the end
  int64_t kept_bytes(int64_t page_size) const { return groups.front().bytes / page_size; }
  int64_t kv_bytes() const;
};

// Chooses the pages of each group. Each page of group 0 stands for page_size positions. A window has pages for all
// slots while they decode and for the prompt rows under way, but no more than group 0. Where group 0 has more than the
// full contexts of all slots, for prefixes, the window has more in the same proportion.
// Snapshots come before pages: as many as given, else two for each slot within a quarter of the room, perhaps none.
// With fewer_slots the slots leave pages for one request.
// kResourceExhausted when the pages cannot hold one request of max_model_len, or weights, states and pages exceed the
// memory: the message says what to lower.
Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

// The default number of slots: `most`, or as many as have their states of slot_bytes in half of `room`, at least one.
int32_t default_slots(int32_t most, int64_t slot_bytes, int64_t room);

// This machine's MemAvailable, bounded by the rest of the cgroup's limit.
int64_t available_memory_bytes();

// The rest of the limit of the cgroup (version 2) in `folder`; nothing without a limit. The page cache counts as free,
// as in MemAvailable: the kernel reclaims it, and after a download or read of weights it is most of the used memory.
std::optional<int64_t> cgroup_memory_left(const std::string& folder);

// "12.3 GiB", "640 KiB"
std::string format_bytes(int64_t bytes);

}  // namespace volley::engine
