// Protects the order of waiting work: no client waits for all of another one's.
#include "serve/http/turns.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

TEST(Turns, ClientsTakeTurnsAndEachKeepsItsOrder) {
  Turns turns(2);
  const auto run_next = [&turns] {
    const Turns::Turn turn = turns.next();
    if (!turn.work) return false;
    turn.work();
    turns.done(turn);
    return true;
  };
  std::string ran;
  for (const char* work : {"a1", "a2", "a3", "b1", "c1", "b2"}) {
    turns.add(std::string(work, 1), [&ran, work] { ran += work; });
  }
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(run_next());
  EXPECT_EQ(ran, "a1b1");
  turns.add("d", [&ran] { ran += "d1"; });
  while (run_next()) {
  }
  EXPECT_EQ(ran, "a1b1c1a2b2d1a3");
  turns.add("a", [&ran] { ran += "a4"; });
  EXPECT_TRUE(run_next());
  EXPECT_TRUE(ran.ends_with("a4"));
}

TEST(Turns, OneMoreThreadIsForThoseWhoHaveNoneRunning) {
  Turns turns(3);
  for (const char* whose : {"a", "a", "a", "b", "b", "c"}) turns.add(whose, [] {});
  const Turns::Turn a = turns.next(), b = turns.next(), c = turns.next();
  EXPECT_EQ(a.whose + b.whose + c.whose, "abc");
  EXPECT_FALSE(turns.next().work) << "all threads have work";
  turns.done(c);
  EXPECT_FALSE(turns.next().work) << "whose is left has some running";
  turns.add("d", [] {});
  const Turns::Turn d = turns.next();
  EXPECT_EQ(d.whose, "d");
  turns.done(a);
  turns.done(b);
  EXPECT_EQ(turns.next().whose, "a");
  EXPECT_TRUE(turns.has_next()) << "an end made room for two";
  EXPECT_EQ(turns.next().whose, "b") << "none of whose runs any more";
  EXPECT_FALSE(turns.has_next());
  EXPECT_FALSE(turns.next().work);
}

}  // namespace
}  // namespace volley::serve
