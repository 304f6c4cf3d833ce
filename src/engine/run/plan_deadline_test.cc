#include "engine/run/plan_deadline.h"

#include <gtest/gtest.h>

namespace volley::engine {
namespace {

using namespace std::chrono_literals;
using Time = PlanDeadline::Clock::time_point;

// The device runs a step of 10 ms or longer that it began at 1 ms; planning takes 1 ms, and a thread may wake late.
TEST(PlanDeadline, IsLateButBeforeTheDeviceIsDone) {
  PlanDeadline time;
  EXPECT_FALSE(time.next());
  time.planned(Time(0ms), Time(1ms), Time(1ms), 10e-3);
  ASSERT_TRUE(time.next());
  EXPECT_EQ(*time.next(), Time(1ms + 10ms - 2 * 1ms - 500us));
}

// A quarter of the launching must be ahead.
TEST(PlanDeadline, LeavesTimeToLaunch) {
  PlanDeadline time;
  time.planned(Time(0ms), Time(1ms), Time(5ms), 20e-3);
  EXPECT_EQ(time.next(), Time(1ms + 20ms - 2 * (1ms + 1ms) - 500us));
}

// With two under way there is nothing to plan. When the first lands, the second begins.
TEST(PlanDeadline, CountsFromTheEndOfTheStepBefore) {
  PlanDeadline time;
  time.planned(Time(0ms), Time(1ms), Time(1ms), 10e-3);
  time.planned(Time(8ms), Time(9ms), Time(9ms), 20e-3);
  EXPECT_FALSE(time.next());
  time.landed(Time(9ms), Time(12ms));
  ASSERT_TRUE(time.next());
  EXPECT_EQ(*time.next(), Time(12ms + 20ms - 2 * 1ms - 500us));
}

// Results that were there before somebody waited: the next step may have begun as soon as the device was given it.
TEST(PlanDeadline, CountsFromTheWorkWhereTheHostIsBehind) {
  PlanDeadline time;
  time.planned(Time(0ms), Time(1ms), Time(1ms), 10e-3);
  time.planned(Time(8ms), Time(9ms), Time(9ms), 20e-3);
  time.landed(Time(12ms), Time(12ms + 10us));
  EXPECT_EQ(time.next(), Time(9ms + 20ms - 2 * 1ms - 500us));
}

TEST(PlanDeadline, DoesNotWaitForShortOrUnknownSteps) {
  for (double least_s : {0.0, 2e-3}) {
    PlanDeadline time;
    time.planned(Time(0ms), Time(1ms), Time(1ms), least_s);
    EXPECT_FALSE(time.next()) << least_s;
  }
}

// One that took long is remembered for a while.
TEST(PlanDeadline, KnowsThatPlanningCanTakeLonger) {
  PlanDeadline time;
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
