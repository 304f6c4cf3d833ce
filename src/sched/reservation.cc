#include "sched/reservation.h"

#include <algorithm>

namespace volley::sched {

int64_t positions_ahead(const SchedulerConfig& config) {
  return int64_t{config.block_size} * config.reserve_rounds + 1;
}

int64_t chunks_ahead(const SchedulerConfig& config) {
  return int64_t{config.prefill_chunk} * config.reserve_rounds + positions_ahead(config);
}

int64_t reserved_pages(const SchedulerConfig& config, int64_t context) {
  return kv::pages_for(context + positions_ahead(config), config.page_size);
}

int64_t last_context(int64_t prompt, int64_t max_tokens) {
  // With max_tokens - 1 outputs known, the last of them has no K and V yet. A request for one token never reaches a
  // verify step.
  return prompt + std::max<int64_t>(max_tokens - 2, 0);
}

int32_t page_table_width(const SchedulerConfig& config) {
  return static_cast<int32_t>(reserved_pages(config, config.max_model_len - 1));
}

}  // namespace volley::sched
