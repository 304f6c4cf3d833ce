// Protects tenants from one another wherever they share space: none takes all of it, and the tenant that holds most
// makes room.
#include "base/fair_space.h"

#include <gtest/gtest.h>

namespace volley {
namespace {

using Room = FairSpace::Room;

// How many times n more fit.
size_t fill(FairSpace& space, const std::string& tenant, size_t n = 1) {
  size_t taken = 0;
  for (; space.room(tenant, n) == Room::kThere; ++taken) space.take(tenant, n);
  return taken;
}

TEST(FairSpace, ATenantLeavesItsShareToOthers) {
  FairSpace space({.total = 64, .share = 7});
  EXPECT_EQ(fill(space, "large"), 56u);
  EXPECT_EQ(space.room("large"), Room::kLeftToOthers);
  EXPECT_EQ(fill(space, "small"), 7u);
  EXPECT_EQ(space.room("third"), Room::kLeftToOthers);
  space.give_back("large", 8);
  EXPECT_EQ(space.room("third"), Room::kThere);
  EXPECT_EQ(space.room("third", 10), Room::kNoneForAll);
}

TEST(FairSpace, SoMuchIsAlwaysATenantsWhereItIsFree) {
  FairSpace few({.total = 3, .share = 1, .always = 1});
  for (const char* tenant : {"a", "b", "c"}) EXPECT_EQ(fill(few, tenant), 1u);
  EXPECT_EQ(few.room("d"), Room::kNoneForAll);

  FairSpace bytes({.total = 15, .always = 10});
  EXPECT_EQ(bytes.room("a", 11), Room::kLeftToOthers);
  bytes.take("a", 10);
  EXPECT_EQ(bytes.room("a", 1), Room::kLeftToOthers);
  EXPECT_EQ(bytes.room("b", 5), Room::kThere);
}

TEST(FairSpace, WithoutASharePlacesAreForAnybody) {
  FairSpace space({.total = 64, .share = FairSpace::kNoLimit});
  EXPECT_EQ(fill(space, "a"), 64u);
  EXPECT_EQ(space.room("b"), Room::kNoneForAll);
}

TEST(FairSpace, ATenantMayHaveABoundOfItsOwn) {
  FairSpace space({.share = FairSpace::kNoLimit, .each = 10});
  EXPECT_EQ(fill(space, "a", 4), 2u);
  EXPECT_EQ(space.room("a", 4), Room::kNoneForOwner);
  EXPECT_EQ(space.room("a", 2), Room::kThere);
  EXPECT_EQ(fill(space, "b", 10), 1u);
}

// A limit may be lower than when the space was taken.
TEST(FairSpace, CountsWhatIsTakenWhateverTheLimit) {
  FairSpace space({.total = 10, .share = FairSpace::kNoLimit});
  space.take("a", 15);
  EXPECT_EQ(space.room("b"), Room::kNoneForAll);
  EXPECT_EQ(space.room("b", 0), Room::kThere);
  space.give_back("b", 6);  // counted for another tenant
  EXPECT_EQ(space.all(), 9u);
  EXPECT_EQ(space.of("b"), 0u);
  EXPECT_EQ(space.room("b"), Room::kThere);
}

TEST(FairSpace, AddsUp) {
  FairSpace sum({.total = 64}), other({.total = 64});
  sum.take("a", 3);
  other.take("a");
  other.take("", 2);
  sum.take(other);
  EXPECT_EQ(sum.all(), 6u);
  EXPECT_EQ(sum.of("a"), 4u);
  EXPECT_EQ(sum.of(""), 2u);
}

TEST(FairSpace, WhoHoldsMostMakesRoom) {
  FairSpace space({.total = 10, .share = FairSpace::kNoLimit});
  space.take("a", 5);
  space.take("b", 3);
  space.take("c", 2);
  std::map<std::string, uint64_t> oldest = {{"a", 7}, {"b", 4}, {"c", 2}};
  const auto who = [&](const std::string& asking, size_t n) {
    return space
        .who_makes_room(asking, n,
                        [&](const std::string& tenant) {
                          const auto found = oldest.find(tenant);
                          return found != oldest.end() ? std::optional(found->second) : std::nullopt;
                        })
        .value_or("none");
  };
  EXPECT_EQ(who("d", 1), "a");
  EXPECT_EQ(who("b", 1), "a");
  EXPECT_EQ(who("b", 2), "b") << "of equals the one with the oldest";
  EXPECT_EQ(who("c", 4), "c") << "it would hold most";
  EXPECT_EQ(who("d", 6), "none") << "it would hold most, and has nothing to give";
  EXPECT_EQ(who("d", 5), "a") << "as much as the other";
  EXPECT_EQ(who("c", 11), "none") << "no room for that can be made";
  oldest.erase("a");
  EXPECT_EQ(who("d", 1), "b") << "the other one can give nothing";
  space.set_share(1);
  space.give_back("b", 1);
  EXPECT_EQ(space.room("a"), Room::kLeftToOthers);
  EXPECT_EQ(who("c", 1), "c") << "others need not make room for what is beyond its share";
}

TEST(SharedSpace, GivesBackWhatWasHeld) {
  SharedSpace space({.total = 100, .always = 10});
  {
    SharedSpace::Hold hold(space);
    EXPECT_TRUE(hold.grow_to("a", 20));
    EXPECT_TRUE(hold.grow_to("a", 50));
    EXPECT_FALSE(hold.grow_to("a", 51));
    EXPECT_EQ(space.all(), 50u);
    const SharedSpace::Hold moved = std::move(hold);
    EXPECT_FALSE(SharedSpace::Hold(space).grow_to("a", 1)) << "held once more";
  }
  EXPECT_EQ(space.all(), 0u);
}

}  // namespace
}  // namespace volley
