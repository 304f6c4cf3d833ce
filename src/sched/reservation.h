// How many pages a request owns ahead of its tokens: the one place that says so. Threads: free functions of the config.
#pragma once

#include <cstdint>

#include "sched/scheduler.h"

namespace volley::sched {

inline int64_t pages_for(int64_t positions, int32_t page_size) {
  return (positions + page_size - 1) / page_size;
}

// Pages of a request whose first `context` tokens have their K and V (or will have once its prompt is computed). A
// round that starts there writes at positions context … context + block_size - 1: the drafter's block, then the rows to
// verify. It moves the context on by at most block_size, so R rounds without news from the host need R blocks. The one
// position more is the place of the token that the prompt's last chunk chooses.
int64_t reserved_pages(const SchedulerConfig& config, int64_t context);

// The most pages that a request ever owns: those of its last verify step, at which one output is still missing.
int64_t largest_reservation(const SchedulerConfig& config, int64_t prompt, int64_t max_tokens);

// Entries of a page-table row that suffice for every request: PageEdit::index stays below.
int32_t page_table_width(const SchedulerConfig& config);

}  // namespace volley::sched
