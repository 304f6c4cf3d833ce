// Accepted and refused values of --verify and --simulate-acceptance.
#include "apps/cli/verify_spec.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

TEST(VerifySpec, PoliciesHaveNames) {
  for (const char* text : {"auto", "full", "0", "7", "1023"}) {
    const auto policy = parse_verify(text);
    ASSERT_TRUE(policy.ok()) << text;
    EXPECT_EQ(verify_name(*policy), text);
  }
  EXPECT_EQ(parse_verify("7")->kind, VerifyPolicy::Kind::kFixed);
  EXPECT_EQ(parse_verify("7")->tokens, 7);
}

TEST(VerifySpec, WhatIsNoPolicyIsRefused) {
  for (const char* text : {"", "Auto", "-1", "1.5", "1024", "7x", "99999999999"}) {
    const auto policy = parse_verify(text);
    ASSERT_FALSE(policy.ok()) << text;
    EXPECT_NE(policy.error().message.find("auto, full or a number"), std::string::npos);
  }
}

TEST(VerifySpec, OneEntryIsOfAllRequests) {
  const auto simulation = parse_simulation("geometric:0.8553");
  ASSERT_TRUE(simulation.ok()) << simulation.error().message;
  EXPECT_EQ(simulation->text, "geometric:0.8553");
  for (const int64_t index : {0, 1, 77}) {
    const SimulatedAcceptance& acceptance = simulation->of(index);
    ASSERT_EQ(acceptance.phases.size(), 1u);
    EXPECT_EQ(acceptance.phases[0].from_step, 0);
    EXPECT_EQ(acceptance.phases[0].p, 0.8553);
    EXPECT_EQ(acceptance.confidence_odds, 1);
  }
}

// Requests take entries in turn, a schedule changes at its steps, and two drafters have a chance each.
TEST(VerifySpec, SimulationsOfRequests) {
  using Phase = SimulatedAcceptance::Phase;
  const struct {
    const char* text;
    int64_t request;
    std::vector<Phase> phases;
  } cases[] = {
      {"geometric:0.95,0.3+100:1,0", 0, {{.from_step = 0, .p = 0.95}}},
      {"geometric:0.95,0.3+100:1,0", 4, {{.from_step = 0, .p = 0.3}, {.from_step = 100, .p = 1}}},
      {"geometric:0.95,0.3+100:1,0", 5, {{.from_step = 0, .p = 0}}},
      {"geometric:0.9+300:0.2+600:0.9",
       1,
       {{.from_step = 0, .p = 0.9}, {.from_step = 300, .p = 0.2}, {.from_step = 600, .p = 0.9}}},
      {"geometric:0.9/0.7+10:0.5", 0, {{.from_step = 0, .p = 0.9, .second = 0.7}, {.from_step = 10, .p = 0.5}}}};
  for (const auto& [text, request, phases] : cases) {
    const auto simulation = parse_simulation(text);
    ASSERT_TRUE(simulation.ok()) << simulation.error().message;
    const std::vector<Phase>& found = simulation->of(request).phases;
    ASSERT_EQ(found.size(), phases.size()) << text;
    for (size_t i = 0; i < phases.size(); ++i) {
      EXPECT_EQ(found[i].from_step, phases[i].from_step) << text;
      EXPECT_EQ(found[i].p, phases[i].p) << text;
      EXPECT_EQ(found[i].second, phases[i].second) << text;
    }
  }
}

TEST(VerifySpec, WhatIsNoSimulationIsRefused) {
  for (const char* text :
       {"", "0.5", "linear:0.5", "geometric", "geometric:", "geometric:1.5", "geometric:-0.1", "geometric:nan",
        "geometric:0.5,", "geometric:0.5+", "geometric:0.5+100", "geometric:0.5+100:", "geometric:0.5+0:0.4",
        "geometric:0.5+100:0.4+50:0.3", "geometric:0.9/0.7/0.5", "geometric:0.9/2", "geometric:100:0.4",
        "geometric:0.5 ", "geometric:0.5+1e2:0.4"}) {
    const auto simulation = parse_simulation(text);
    ASSERT_FALSE(simulation.ok()) << text;
    EXPECT_EQ(simulation.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(simulation.error().message.find(text), std::string::npos) << simulation.error().message;
  }
}

}  // namespace
}  // namespace volley::apps
