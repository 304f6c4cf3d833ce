// Protects the bound of memory that bodies take, and that no client takes all of it.
#include "serve/body_pot.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

TEST(BodyPot, AClientHasHalfAndAllHaveTheWhole) {
  BodyPot pot(100, 10);
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

TEST(BodyPot, TheLargestBodyFitsAlone) {
  BodyPot small(1, 10);
  EXPECT_TRUE(small.take("a", 10));
  EXPECT_FALSE(small.take("b", 1));
  BodyPot tight(15, 10);
  EXPECT_TRUE(tight.take("a", 10)) << "more than half";
  EXPECT_FALSE(tight.take("a", 1));
  EXPECT_TRUE(tight.take("b", 5));
}

}  // namespace
}  // namespace volley::serve
