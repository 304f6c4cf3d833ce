#include "sched/slot_pool.h"

#include <gtest/gtest.h>

#include <optional>

namespace volley::sched {
namespace {

TEST(SlotPool, GivesTheLowestFreeSlot) {
  SlotPool pool(3);
  std::optional<SlotLease> a(pool), b(pool), c(pool);
  EXPECT_EQ(a->id(), SlotId(0));
  EXPECT_EQ(c->id(), SlotId(2));
  EXPECT_TRUE(pool.empty());
  EXPECT_DEATH(pool.take(), "empty");
  c.reset();
  a.reset();
  EXPECT_EQ(SlotLease(pool).id(), SlotId(0));
  EXPECT_EQ(b->id(), SlotId(1));
}

// A slot returned twice would run two requests on one row of the device state.
TEST(SlotPool, ALeaseReturnsItsSlotOnce) {
  SlotPool pool(2);
  {
    SlotLease a(pool);
    SlotLease b(std::move(a));
    SlotLease c(pool);
    c = std::move(b);
    EXPECT_EQ(c.id(), SlotId(0));
    EXPECT_TRUE(pool.empty());
  }
  EXPECT_EQ(pool.take(), SlotId(0));
  EXPECT_DEATH(pool.release(SlotId(1)), "taken");
}

}  // namespace
}  // namespace volley::sched
