// Protects: a tenant that fills the queue leaves places for others, who are refused only when all are taken.
#include "engine/queue_places.h"

#include <gtest/gtest.h>

namespace volley::engine {
namespace {

// How many of endless requests find a place.
size_t fill(QueuePlaces& places, const std::string& tenant, size_t most) {
  size_t taken = 0;
  for (; places.check(tenant, most).ok(); ++taken) places.add(tenant);
  return taken;
}

TEST(QueuePlaces, ThoseWithoutANameHaveAll) {
  QueuePlaces places;
  EXPECT_EQ(fill(places, "", 64), 64u);
  EXPECT_EQ(places.all(), 64u);
  EXPECT_EQ(places.check("", 64).error().code, ErrorCode::kResourceExhausted);
}

TEST(QueuePlaces, OneThatTakesAllItCanLeavesSomeForOthers) {
  QueuePlaces places;
  EXPECT_EQ(fill(places, "large", 64), 56u);
  EXPECT_NE(places.check("large", 64).error().message.find("56 of the 56"), std::string::npos);
  EXPECT_EQ(fill(places, "small", 64), 7u);
  EXPECT_TRUE(places.check("third", 64).ok());
}

TEST(QueuePlaces, OneAloneKnowsHowManyItMayAskFor) {
  for (size_t most = 1; most < 200; ++most) {
    QueuePlaces places;
    EXPECT_EQ(fill(places, "large", most), QueuePlaces::most_alone(most)) << most;
  }
}

// However few places there are, one that has nothing in the queue may enter while any is free.
TEST(QueuePlaces, AFewPlacesAreForAnybody) {
  QueuePlaces places;
  EXPECT_EQ(fill(places, "large", 1), 1u);
  EXPECT_FALSE(places.check("small", 1).ok());
}

TEST(QueuePlaces, AddUpOverReplicas) {
  QueuePlaces places, other;
  places.add("a", 3);
  other.add("a");
  other.add("", 2);
  places.add(other);
  EXPECT_EQ(places.all(), 6u);
  EXPECT_EQ(places.of("a"), 4u);
  EXPECT_EQ(places.of(""), 0u);
}

}  // namespace
}  // namespace volley::engine
