// Protects the bound of memory that bodies and answers take, and that no client takes all of it.
#include "serve/byte_pot.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

TEST(BytePot, AClientHasHalfAndAllHaveTheWhole) {
  BytePot pot(100, 10);
  EXPECT_TRUE(pot.take("a", 30));
  EXPECT_TRUE(pot.take("a", 20));
  EXPECT_FALSE(pot.take("a", 1));
  EXPECT_TRUE(pot.take("b", 40));
  EXPECT_FALSE(pot.take("c", 11)) << "no room for anybody";
  EXPECT_TRUE(pot.take("c", 10));
  pot.give_back("a", 20);
  EXPECT_TRUE(pot.take("a", 20));
  EXPECT_FALSE(pot.take("b", 1));
  for (const auto& [whose, bytes] : {std::pair("a", 50), std::pair("b", 40), std::pair("c", 10)}) {
    pot.give_back(whose, static_cast<size_t>(bytes));
  }
  EXPECT_TRUE(pot.take("d", 50)) << "nothing is lost";
  EXPECT_TRUE(pot.take("e", 50));
}

TEST(BytePot, TheLargestFitsAlone) {
  BytePot small(1, 10);
  EXPECT_TRUE(small.take("a", 10));
  EXPECT_FALSE(small.take("b", 1));
  BytePot tight(15, 10);
  EXPECT_TRUE(tight.take("a", 10)) << "more than half";
  EXPECT_FALSE(tight.take("a", 1));
  EXPECT_TRUE(tight.take("b", 5));
}

TEST(BytePot, AShareGivesBackWhatItHolds) {
  BytePot pot(100, 10);
  {
    BytePot::Share share(pot);
    EXPECT_TRUE(share.grow_to("a", 20));
    EXPECT_TRUE(share.grow_to("a", 50));
    EXPECT_FALSE(share.grow_to("a", 51));
    EXPECT_TRUE(BytePot::Share(pot).grow_to("a", 50)) << "what did not fit holds nothing";
    EXPECT_TRUE(share.grow_to("a", 50));
    const BytePot::Share moved = std::move(share);
    EXPECT_FALSE(pot.take("a", 1)) << "held once more";
  }
  EXPECT_TRUE(pot.take("a", 50));
}

}  // namespace
}  // namespace volley::serve
