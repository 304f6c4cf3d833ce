// Protects: a tenant that fills the queue leaves places for others, who are refused only when all are taken.
#include "engine/run/queue_places.h"

#include <gtest/gtest.h>

namespace volley::engine {
namespace {

// Counts the requests that find a place.
size_t fill(FairSpace& queued, const std::string& tenant) {
  size_t taken = 0;
  for (; check_place(queued, tenant).ok(); ++taken) queued.take(tenant);
  return taken;
}

TEST(QueuePlaces, ThoseWithoutANameHaveAll) {
  FairSpace queued(queue_limits(64));
  EXPECT_EQ(fill(queued, ""), 64u);
  EXPECT_EQ(check_place(queued, "").error().code, ErrorCode::kResourceExhausted);
}

TEST(QueuePlaces, OneThatTakesAllItCanLeavesSomeForOthers) {
  FairSpace queued(queue_limits(64));
  EXPECT_EQ(fill(queued, "large"), 56u);
  EXPECT_NE(check_place(queued, "large").error().message.find("56 of the 56"), std::string::npos);
  EXPECT_EQ(fill(queued, "small"), 7u);
  EXPECT_TRUE(check_place(queued, "third").ok());
}

TEST(QueuePlaces, OneAloneKnowsHowManyItMayAskFor) {
  for (int32_t most = 1; most < 200; ++most) {
    FairSpace queued(queue_limits(most));
    EXPECT_EQ(fill(queued, "large"), most_places_alone(static_cast<size_t>(most))) << most;
  }
}

}  // namespace
}  // namespace volley::engine
