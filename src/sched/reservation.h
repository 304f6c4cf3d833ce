// How many pages a request owns ahead of its tokens: the one place that says so. Threads: free functions of the config.
#pragma once

#include <cstdint>

#include "kv/layout.h"
#include "sched/scheduler.h"

namespace volley::sched {

// Positions past its context that a request owns pages for. A round that starts at the context writes at positions
// context … context + block_size - 1: the drafter's block, then the rows to verify. It moves the context on by at most
// block_size, so R rounds without news from the host need R blocks. The one position more is the place of the token
// that the prompt's last chunk chooses.
int64_t positions_ahead(const SchedulerConfig& config);

// The same for windows of a request whose prompt is being computed: as far as the chunks under way may get.
int64_t chunks_ahead(const SchedulerConfig& config);

// Pages, in groups that keep whole sequences, of a request whose first `context` tokens have their K and V, or will
// have once the prompt is computed.
int64_t reserved_pages(const SchedulerConfig& config, int64_t context);

// The largest context that a request is reserved for: that of its last verify step, at which one output is still
// missing.
int64_t last_context(int64_t prompt, int64_t max_tokens);

// Enough entries of a page-table row for every request: PageEdit::index stays below.
int32_t page_table_width(const SchedulerConfig& config);

}  // namespace volley::sched
