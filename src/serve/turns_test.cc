// Protects who is served next where work waits: nobody waits for all that another client has.
#include "serve/turns.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

TEST(Turns, ClientsTakeTurnsAndEachKeepsItsOrder) {
  Turns turns;
  std::string ran;
  for (const char* work : {"a1", "a2", "a3", "b1", "c1", "b2"}) {
    turns.add(std::string(work, 1), [&ran, work] { ran += work; });
  }
  for (int i = 0; i < 2; ++i) turns.next()();
  EXPECT_EQ(ran, "a1b1");
  turns.add("d", [&ran] { ran += "d1"; });
  while (const auto work = turns.next()) work();
  EXPECT_EQ(ran, "a1b1c1a2b2d1a3");
  EXPECT_FALSE(turns.next());
  turns.add("a", [&ran] { ran += "a4"; });
  turns.next()();
  EXPECT_TRUE(ran.ends_with("a4"));
}

}  // namespace
}  // namespace volley::serve
