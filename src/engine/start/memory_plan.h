// How much memory an engine will take, computed before any weight is read.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

#include "kv/layout.h"

namespace volley::engine {

// Without a stated fraction the pool has so much for cached prefixes, if full contexts in all slots need less.
inline constexpr int64_t kPrefixBytes = int64_t{2} << 30;

struct MemoryPlanInput {
  int64_t weight_bytes = 0;       // of all models, rotary tables included
  std::vector<kv::Group> groups;  // the first is whole
  int64_t positions = 0;          // that one request may touch
  int64_t decode_ahead = 0;       // positions past its context for which a decoding request owns pages of windows
  int64_t prefill_ahead = 0;      // the same for one whose prompt is being computed
  int64_t prompt_rows = 0;        // rows of all prompts together in the steps under way
  int32_t page_size = 16;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 0;
  bool fewer_slots = false;     // nobody asked for max_num_seqs: states may be of fewer where pages need the memory
  int64_t kv_pages = 0;         // of group 0, asked for; 0: choose
  int64_t kv_memory_bytes = 0;  // asked for; 0: choose
  int64_t available_bytes = 0;  // memory that can be had now
  double fraction =
      0;  // of it that weights, pages and a step's memory may take; 0: all, and pages half of what is left
  int64_t state_bytes = 0;      // of recurrent layers, of all slots
  int64_t snapshot_unit = 0;    // of one snapshot of a slot's states; 0: there are none to be
  int64_t snapshot_memory = 0;  // asked for, of all of them; 0: choose
  int64_t step_bytes = 0;       // memory that a step works in
  int64_t graph_bytes = 0;      // of recorded steps
};

struct MemoryPlan {
  int64_t weight_bytes = 0;       // target and drafter: packed matrices and rotary tables
  std::vector<kv::Group> groups;  // with their pages
  int32_t max_num_seqs = 0;       // the input's, or fewer
  int64_t state_bytes = 0;
  int64_t snapshots = 0, snapshot_bytes = 0;  // of states: how many, and what they take
  int64_t step_bytes = 0;
  int64_t graph_bytes = 0;
  int64_t pages_per_request = 0;  // of group 0, of one request of max_model_len, its reserve included

  int64_t pages() const { return groups.front().pages; }
  int64_t page_bytes() const;  // of a page of every group: what page_size new positions take
  int64_t kept_bytes(int64_t page_size) const { return groups.front().bytes / page_size; }  // of a position, for good
  int64_t kv_bytes() const;
};

// How many pages each group gets. Group 0 has as many as are asked for or chosen: each stands for page_size positions.
// A window has pages for all slots while they decode and for the prompt rows under way, but no more than group 0. Where
// group 0 has more than the full contexts of all slots, for prefixes, the window has more in the same proportion.
// kResourceExhausted when the pages cannot hold one request of max_model_len, or weights, states and pages exceed what
// can be had: the message says what to lower. Snapshots come before pages: as many as asked for, else two for each slot
// in a quarter of the room, which may be none. With fewer_slots there are as many as leave pages for one request.
Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

// How many slots there are where that was not asked for: `most`, or as many as have their states of slot_bytes in half
// of `room`, at least one.
int32_t default_slots(int32_t most, int64_t slot_bytes, int64_t room);

// MemAvailable of this machine, bounded by what the cgroup's limit leaves.
int64_t available_memory_bytes();

// What the limit of the cgroup (version 2) in `folder` leaves; nothing where there is no limit. The page cache counts
// as free, as it does in MemAvailable: the kernel takes it back in time, and where weights have just been downloaded or
// read it is most of what is used.
std::optional<int64_t> cgroup_memory_left(const std::string& folder);

// "12.3 GiB", "640 KiB"
std::string format_bytes(int64_t bytes);

}  // namespace volley::engine
