#include "engine/run/plan_time.h"

#include <gtest/gtest.h>

namespace volley::engine {
namespace {

using namespace std::chrono_literals;
using Time = PlanTime::Clock::time_point;

// The device runs a step of at least 10 ms from 1 ms on. Planning takes 1 ms, and a thread may wake late.
TEST(PlanTime, IsLateButBeforeTheDeviceIsDone) {
  PlanTime time;
  EXPECT_FALSE(time.next());
  time.planned(Time(0ms), Time(1ms), Time(1ms), 10e-3);
  ASSERT_TRUE(time.next());
  EXPECT_EQ(*time.next(), Time(1ms + 10ms - 2 * 1ms - 500us));
}

// A quarter of the launching must be ahead.
TEST(PlanTime, LeavesTimeToLaunch) {
  PlanTime time;
  time.planned(Time(0ms), Time(1ms), Time(5ms), 20e-3);
  EXPECT_EQ(time.next(), Time(1ms + 20ms - 2 * (1ms + 1ms) - 500us));
}

// No step can be planned with two under way. The second begins when the first lands.
TEST(PlanTime, CountsFromTheEndOfTheStepBefore) {
  PlanTime time;
  time.planned(Time(0ms), Time(1ms), Time(1ms), 10e-3);
  time.planned(Time(8ms), Time(9ms), Time(9ms), 20e-3);
  EXPECT_FALSE(time.next());
  time.landed(Time(9ms), Time(12ms));
  ASSERT_TRUE(time.next());
  EXPECT_EQ(*time.next(), Time(12ms + 20ms - 2 * 1ms - 500us));
}

// The results were there before the host waited, so the next step may have begun as soon as the device had it.
TEST(PlanTime, CountsFromTheWorkWhereTheHostIsBehind) {
  PlanTime time;
  time.planned(Time(0ms), Time(1ms), Time(1ms), 10e-3);
  time.planned(Time(8ms), Time(9ms), Time(9ms), 20e-3);
  time.landed(Time(12ms), Time(12ms + 10us));
  EXPECT_EQ(time.next(), Time(9ms + 20ms - 2 * 1ms - 500us));
}

TEST(PlanTime, DoesNotWaitForShortOrUnknownSteps) {
  for (double least_s : {0.0, 2e-3}) {
    PlanTime time;
    time.planned(Time(0ms), Time(1ms), Time(1ms), least_s);
    EXPECT_FALSE(time.next()) << least_s;
  }
}

// A long planning is remembered for a while.
TEST(PlanTime, KnowsThatPlanningCanTakeLonger) {
  PlanTime time;
  time.planned(Time(0ms), Time(10ms), Time(10ms), 0);
  time.landed(Time(10ms), Time(11ms));
  time.planned(Time(11ms), Time(12ms), Time(12ms), 20e-3);
  EXPECT_EQ(*time.next(), Time(12ms + 20ms - 2 * 9ms - 500us));
  for (int i = 0; i < 100; ++i) {
    time.landed(Time(11ms), Time(12ms));
    time.planned(Time(11ms), Time(12ms), Time(12ms), 20e-3);
  }
  EXPECT_EQ(*time.next(), Time(12ms + 20ms - 2 * 1ms - 500us));
}

}  // namespace
}  // namespace volley::engine
