#include "sched/reservation.h"

#include <gtest/gtest.h>

#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

// The drafter writes its block at context … context + block_size - 1; one position more is the next round's first
// token.
TEST(Reservation, CoversTheBlockPastTheContext) {
  SchedulerConfig config = roomy();
  EXPECT_EQ(reserved_pages(config, 0), 2);  // 0 … 4
  EXPECT_EQ(reserved_pages(config, 3), 2);  // 0 … 7
  EXPECT_EQ(reserved_pages(config, 4), 3);  // 0 … 8
  config.reserve_rounds = 2;
  EXPECT_EQ(reserved_pages(config, 3), 3);  // 0 … 11
  config.block_size = 1;
  config.reserve_rounds = 1;
  EXPECT_EQ(reserved_pages(config, 6), 2);  // plain decoding: 0 … 7
  EXPECT_EQ(reserved_pages(config, 7), 3);
}

TEST(Reservation, IsLargestAtTheLastVerifyStep) {
  EXPECT_EQ(last_context(7, 1), 7);
  EXPECT_EQ(last_context(7, 2), 7);
  EXPECT_EQ(last_context(7, 10), 15);
}

TEST(Reservation, EveryRequestFitsIntoItsRowOfThePageTable) {
  const SchedulerConfig config = roomy();
  for (int prompt = 1; prompt < config.max_model_len; ++prompt) {
    const int64_t context = last_context(prompt, config.max_model_len - prompt);
    EXPECT_LE(reserved_pages(config, context), page_table_width(config)) << prompt;
  }
  EXPECT_EQ(reserved_pages(config, last_context(config.max_model_len - 1, 1)), page_table_width(config));
}

}  // namespace
}  // namespace volley::sched
