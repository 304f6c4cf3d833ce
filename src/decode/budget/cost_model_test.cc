#include "decode/budget/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>

#include "decode/budget/measure.h"

namespace volley::decode {
namespace {

using testing::HasSubstr;

TEST(CurveTest, IsLinearBetweenItsPoints) {
  const Curve curve({{4, 8}, {1, 2}, {2, 6}});
  EXPECT_DOUBLE_EQ(curve.at(1), 2);
  EXPECT_DOUBLE_EQ(curve.at(1.5), 4);
  EXPECT_DOUBLE_EQ(curve.at(3), 7);
  EXPECT_DOUBLE_EQ(curve.at(0), 2) << "constant before the first point";
  EXPECT_DOUBLE_EQ(curve.at(8), 12) << "half of 8 / 4 is as steep as the last slope";
}

TEST(CurveTest, GoesOnWithTheLastSlopeButNeverFlat) {
  EXPECT_DOUBLE_EQ(Curve({{1, 1}, {2, 4}}).at(3), 7);
  EXPECT_DOUBLE_EQ(Curve({{1, 4}, {2, 4}}).at(4), 6);
  EXPECT_DOUBLE_EQ(Curve(std::vector<CurvePoint>{{2, 4}}).at(4), 6);
}

TEST(CurveTest, NeverFalls) {
  const Curve curve({{1, 1}, {2, 5}, {3, 3}, {4, 6}});
  EXPECT_DOUBLE_EQ(curve.at(2), 3);
  EXPECT_DOUBLE_EQ(curve.at(3), 3);
  EXPECT_DOUBLE_EQ(curve.at(4), 6);
}

TEST(CurveTest, TakesTheFastestOfWhatWasMeasuredMoreThanOnce) {
  const Curve curve({{1, 9}, {2, 8}, {1, 2}, {1, 3}});
  EXPECT_DOUBLE_EQ(curve.at(1), 2);
  EXPECT_DOUBLE_EQ(curve.at(2), 8);
  EXPECT_EQ(curve.points().size(), 2u);
}

// The target's pass costs 10 ms and 1 ms a row; drafting costs 2 ms and 0.1 ms a token.
RoundSeconds truth(const RoundShape& shape) {
  RoundSeconds seconds;
  seconds.rest = 0.01 + 0.001 * (shape.verify_rows + shape.other_rows);
  if (shape.draft > 0) seconds.draft = 0.002 + 0.0001 * shape.requests * shape.draft;
  return seconds;
}

CostModel model_of(KvCosts kv = {}) {
  std::vector<CostSample> samples;
  for (const int32_t n : {1, 4, 16}) {
    for (const int32_t draft : {0, 1, 3, 15}) {
      const RoundShape shape = {n, draft, n * (draft + 1), 0, 0};
      samples.push_back({shape, truth(shape)});
    }
  }
  return CostModel(std::move(samples), kv);
}

TEST(CostModelTest, PredictsWhatWasMeasuredAndWhatLiesBetween) {
  const CostModel model = model_of();
  for (const RoundShape& shape : std::vector<RoundShape>{
           {1, 0, 1, 0, 0}, {16, 15, 256, 0, 0}, {9, 3, 20, 0, 0}, {2, 7, 13, 0, 0}, {4, 3, 16, 40, 0}}) {
    EXPECT_NEAR(model.predict(shape).rest, truth(shape).rest, 1e-9) << shape.verify_rows;
    EXPECT_NEAR(model.predict(shape).draft, truth(shape).draft, 1e-9) << shape.requests << " " << shape.draft;
  }
  EXPECT_DOUBLE_EQ(model.predict({4, 0, 4, 0, 0}).draft, 0);
  const RoundShape prompt = {4, 0, 4, 100, 0};  // a prompt beside them
  EXPECT_NEAR(model.predict(prompt).rest, truth(prompt).rest, 1e-9);
}

TEST(CostModelTest, CountsContextByPositionAndByRow) {
  const CostModel model = model_of({{1e-6}, 2e-6, 3e-7});
  const RoundShape none = {4, 3, 16, 0, 0}, context = {4, 3, 16, 0, 1000};
  EXPECT_NEAR(model.predict(context).draft - model.predict(none).draft, 1e-3, 1e-9);
  EXPECT_NEAR(model.predict(context).rest - model.predict(none).rest, 2e-3 + 4 * 3e-4, 1e-9);
}

TEST(CostModelTest, ALengthThatWasNotMeasuredAsFarGoesOnBesideItsNeighbours) {
  std::vector<CostSample> samples = {{{1, 0, 1, 0, 0}, {0, 1}}};
  for (const int32_t n : {1, 32}) {
    samples.push_back({{n, 3, n, 0, 0}, {0.1 * n, 1}});
    samples.push_back({{n, 15, n, 0, 0}, {0.3 * n, 1}});
  }
  samples.push_back({{1, 9, 1, 0, 0}, {0.25, 1}});  // a quarter more than its neighbours
  const CostModel model(samples, {});
  EXPECT_NEAR(model.predict({1, 9, 1, 0, 0}).draft, 0.25, 1e-9);
  EXPECT_NEAR(model.predict({32, 9, 32, 0, 0}).draft, 0.25 * 32, 1e-9);
}

TEST(CostModelTest, OneOutlierMovesLittle) {
  CostModel model = model_of();
  const RoundShape shape = {4, 3, 16, 0, 0};
  for (int32_t i = 0; i < 50; ++i) model.observe(shape, truth(shape));
  const double before = model.predict(shape).total();
  model.observe(shape, {1, 1});
  EXPECT_LT(model.predict(shape).total(), 1.05 * before);
  EXPECT_GT(model.predict(shape).total(), before);
}

TEST(CostModelTest, FollowsALastingChangeOfTheMachine) {
  CostModel model = model_of();
  const RoundShape ran = {4, 3, 16, 0, 0}, other = {8, 7, 64, 0, 0};
  const auto slow = [](RoundSeconds seconds) { return RoundSeconds{2 * seconds.draft, 2 * seconds.rest}; };
  for (int32_t i = 0; i < 50; ++i) model.observe(ran, truth(ran));
  for (int32_t i = 0; i < 100; ++i) model.observe(ran, slow(truth(ran)));
  EXPECT_NEAR(model.predict(ran).total() / slow(truth(ran)).total(), 1, 0.03);
  EXPECT_NEAR(model.predict(other).total() / slow(truth(other)).total(), 1, 0.1) << "shapes that did not run";
}

// More requests take a GPU to its power limit. All rounds slow down alike, so no shape becomes relatively expensive.
TEST(CostModelTest, AtAnotherLoadItIsTheMachineThatChanged) {
  CostModel model = model_of();
  const RoundShape before = {1, 15, 16, 0, 0}, ran = {16, 3, 64, 0, 0}, other = {16, 1, 32, 0, 0};
  for (int32_t i = 0; i < 60; ++i) model.observe(before, truth(before));
  model.observe(ran, {1.09 * truth(ran).draft, 1.09 * truth(ran).rest});
  EXPECT_NEAR(model.predict(ran).total() / truth(ran).total(), 1.09, 0.03);
  EXPECT_NEAR(model.predict(ran).total() / model.predict(other).total(), truth(ran).total() / truth(other).total(),
              0.025 * truth(ran).total() / truth(other).total());
}

TEST(CostModelTest, LearnsThatOneShapeIsDearerThanItWasMeasured) {
  CostModel model = model_of();
  const RoundShape dear = {4, 3, 16, 0, 0}, other = {4, 15, 64, 0, 0};
  for (int32_t i = 0; i < 300; ++i) {
    const RoundSeconds seconds = truth(dear);
    model.observe(dear, {1.3 * seconds.draft, 1.3 * seconds.rest});
    if (i % 10 == 0) model.observe(other, truth(other));
  }
  EXPECT_NEAR(model.predict(dear).total() / model.predict(other).total(),
              1.3 * truth(dear).total() / truth(other).total(), 0.05 * truth(dear).total() / truth(other).total());
}

TEST(CostModelTest, LearnsWhatContextCosts) {
  CostModel model = model_of({{1e-8}, 1e-7, 0});
  for (int32_t i = 0; i < 300; ++i) {
    const RoundShape shape = {4, 3, 16, 0, i % 2 == 0 ? 4000 : 400000};
    RoundSeconds seconds = truth(shape);
    seconds.rest += 2e-7 * static_cast<double>(shape.kv_tokens);
    seconds.draft += 2e-8 * static_cast<double>(shape.kv_tokens);
    model.observe(shape, seconds);
  }
  const RoundShape far = {4, 3, 16, 0, 200000}, none = {4, 3, 16, 0, 0};
  EXPECT_NEAR(model.predict(far).rest - model.predict(none).rest, 0.04, 0.004);
  EXPECT_NEAR(model.predict(far).draft - model.predict(none).draft, 0.004, 0.0008);
}

TEST(CostModelTest, IgnoresRoundsWithPrompts) {
  CostModel model = model_of();
  const RoundShape shape = {4, 3, 16, 512, 0};
  const double before = model.predict(shape).total();
  for (int32_t i = 0; i < 10; ++i) model.observe(shape, {1, 1});
  EXPECT_EQ(model.predict(shape).total(), before);
}

TEST(CostFileTest, SurvivesARoundTrip) {
  CostModel model = model_of({{1e-9}, 2e-8, 3e-10});
  const RoundShape shape = {4, 3, 16, 0, 5000};
  for (int32_t i = 0; i < 20; ++i) model.observe(shape, {0.004, 0.03});
  const Result<CostModel> read = CostModel::from_text(model.to_text("H200, 8B"), "H200, 8B");
  ASSERT_TRUE(read.ok()) << read.error().message;
  // Compares two shapes, because the machine's current speed cancels out.
  const auto ratio = [&](const RoundShape& a, const RoundShape& b, const CostModel& m) {
    return m.predict(a).rest / m.predict(b).rest;
  };
  EXPECT_NEAR(ratio({2, 7, 13, 0, 0}, {4, 3, 16, 0, 0}, *read), ratio({2, 7, 13, 0, 0}, {4, 3, 16, 0, 0}, model), 1e-9);
  EXPECT_NEAR(read->predict({4, 0, 4, 0, 1000}).rest - read->predict({4, 0, 4, 0, 0}).rest,
              model.predict({4, 0, 4, 0, 1000}).rest - model.predict({4, 0, 4, 0, 0}).rest, 1e-12);
  EXPECT_EQ(read->to_text("x"), CostModel::from_text(read->to_text("x"), "x")->to_text("x"));
}

TEST(CostFileTest, RefusesAnotherKey) {
  const Result<CostModel> read = CostModel::from_text(model_of().to_text("H200"), "H100");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kFailedPrecondition);
}

TEST(CostFileTest, RefusesDamage) {
  const std::string good = model_of().to_text("key");
  const auto replaced = [&](const std::string& what, const std::string& by) {
    std::string text = good;
    const size_t at = text.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    return text.replace(at, what.size(), by);
  };
  const std::string some_point = "0.0021";  // the drafter's time for one request and one token
  ASSERT_THAT(good, HasSubstr(some_point));
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[1, 2"), good.substr(0, good.size() / 2),
        replaced("\"kv\"", "\"no\""), replaced("\"length\": 3", "\"length\": 1"),
        replaced("\"length\": 3", "\"length\": \"three\""), replaced(some_point, "-1.0"),
        replaced("\"factor\": 1.0", "\"factor\": 0"), replaced("\"row_factors\": [\n  1.0,", "\"row_factors\": [")}) {
    const Result<CostModel> read = CostModel::from_text(text, "key");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().code, ErrorCode::kDataLoss);
  }
}

// 48 layers of 128 experts, 8 a row. Each touched expert costs 2 us; the rest costs 1.5 ms and 3 us a row.
constexpr ExpertCosts kExperts = {48, 128, 8, 2e-6};

double truth_with_experts(int32_t rows, double touched) {
  return 1.5e-3 + 3e-6 * rows + kExperts.seconds * touched;
}

TEST(CostModelExpertsTest, CountsDistinctExpertsOfIndependentRows) {
  EXPECT_DOUBLE_EQ(kExperts.distinct(1), 48 * 8);
  EXPECT_NEAR(kExperts.distinct(2), 48 * (16 - 0.5), 1e-9) << "the second row's 8 meet one of the first's in 16";
  EXPECT_NEAR(kExperts.distinct(2048), 48 * 128, 1e-9);
  EXPECT_EQ(ExpertCosts{}.distinct(100), 0);
}

// The measured rows agreed on half of their experts.
TEST(CostModelExpertsTest, PredictsRowsWhoseExpertsDiffer) {
  std::vector<CostSample> samples;
  for (const int32_t rows : {1, 4, 16, 256}) {
    const double touched = kExperts.distinct(1 + (rows - 1) / 2.0);
    samples.push_back({{1, 0, rows, 0, 0}, {0, truth_with_experts(rows, touched)}, touched});
  }
  const CostModel model(samples, {}, {kExperts.layers, kExperts.count, kExperts.top_k});
  for (const int32_t rows : {1, 2, 3, 4, 8, 16, 32, 64, 128, 256}) {
    const double want = truth_with_experts(rows, kExperts.distinct(rows));
    EXPECT_NEAR(model.predict({1, 0, rows, 0, 0}).rest / want, 1, 0.02) << rows;
  }
  const CostModel blind(samples, {});
  EXPECT_LT(blind.predict({1, 0, 8, 0, 0}).rest, 0.85 * truth_with_experts(8, kExperts.distinct(8)))
      << "what was measured alone says too little";
}

// The cost of one expert is then a guess, but no prediction decreases or is zero.
TEST(CostModelExpertsTest, SamplesThatTouchTheSameExpertsStillPredict) {
  std::vector<CostSample> samples;
  for (const int32_t rows : {1, 16, 64}) {
    samples.push_back({{1, 0, rows, 0, 0}, {0, truth_with_experts(rows, 384)}, 384});
  }
  const CostModel model(samples, {}, {kExperts.layers, kExperts.count, kExperts.top_k});
  double before = 0;
  for (const int32_t rows : {1, 2, 8, 32, 128}) {
    const double seconds = model.predict({1, 0, rows, 0, 0}).rest;
    EXPECT_GT(seconds, before);
    before = seconds;
  }
  EXPECT_NEAR(model.predict({1, 0, 1, 0, 0}).rest, samples[0].seconds.rest, 1e-9);
}

// The rows of the text share most of their experts. Its rounds also correct the estimate for other row counts.
TEST(CostModelExpertsTest, LearnsHowManyExpertsDiffer) {
  std::vector<CostSample> samples;
  for (const int32_t rows : {1, 4, 16, 64}) {
    const double touched = kExperts.distinct(rows);
    samples.push_back({{1, 3, rows, 0, 0}, {1e-3, truth_with_experts(rows, touched)}, touched});
  }
  CostModel model(samples, {}, {kExperts.layers, kExperts.count, kExperts.top_k});
  const auto alike = [](int32_t rows) { return truth_with_experts(rows, 0.6 * kExperts.distinct(rows)); };
  const auto error = [&](int32_t rows) {
    return std::fabs(std::log(model.predict({8, 0, rows, 0, 0}).rest / alike(rows)));
  };
  const double before = error(16);
  for (int32_t i = 0; i < 200; ++i) model.observe({8, 0, 8, 0, 0}, {0, alike(8)});
  EXPECT_LT(error(8), 0.02);
  EXPECT_LT(error(16), 0.35 * before);
  const auto kept = CostModel::from_text(model.to_text("key"), "key");
  ASSERT_TRUE(kept.ok());
  EXPECT_LT(std::fabs(std::log(kept->predict({8, 0, 16, 0, 0}).rest / alike(16))), before);
}

class MeasureCostsTest : public testing::Test {
 protected:
  MeasureCostsTest() {
    plan_.slots = 20;
    plan_.max_rows = 400;
    plan_.page_size = 16;
    plan_.pages = 4000;
    plan_.target_weight_bytes = 1e9;
    plan_.target_kv_bytes = 1e5;
    plan_.draft_kv_bytes = {1e4};
    plan_.max_model_len = 1000;
  }
  Result<CostModel> measure() {
    return measure_costs(
        geometry_, plan_,
        [&](const RoundShape& shape) -> Result<CostSample> {
          shapes_.push_back(shape);
          const double loud = ++seen_[{shape.requests, shape.draft, shape.verify_rows}] % 2 == 0 ? 1 : 1.5;
          return CostSample{shape, {loud * truth(shape).draft, loud * truth(shape).rest}};
        },
        [&](double done) { progress_.push_back(done); });
  }

  RoundGeometry geometry_ = {16, {{1, 3, 7, 15}}, {}, 128};
  MeasurePlan plan_;
  std::vector<RoundShape> shapes_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> seen_;
  std::vector<double> progress_;
};

TEST_F(MeasureCostsTest, MeasuresWhatARoundCanBe) {
  plan_.seconds = 100;
  const Result<CostModel> model = measure();
  ASSERT_TRUE(model.ok());
  for (const RoundShape& shape : shapes_) {
    const int32_t all = shape.requests * (shape.draft + 1);
    EXPECT_TRUE(shape.requests >= 1 && shape.requests <= 20 && shape.verify_rows <= 400);
    EXPECT_TRUE(shape.verify_rows >= shape.requests && (shape.verify_rows <= 128 || shape.verify_rows == all));
    EXPECT_LE(shape.verify_rows, all);
  }
  for (const RoundShape& shape :
       std::vector<RoundShape>{{1, 0, 1}, {20, 0, 20}, {20, 7, 100}, {5, 3, 20}, {20, 15, 320}}) {
    EXPECT_NEAR(model->predict(shape).total() / truth(shape).total(), 1, 0.02) << shape.requests << " " << shape.draft;
  }
  EXPECT_DOUBLE_EQ(progress_.back() <= 1 ? 1 : 0, 1);
}

TEST_F(MeasureCostsTest, StopsWhenItsTimeIsSpentAndExtrapolates) {
  plan_.seconds = 0.5;
  const Result<CostModel> model = measure();
  ASSERT_TRUE(model.ok());
  double spent = 0;
  bool all_plain = false;
  for (const RoundShape& shape : shapes_) {
    spent += truth(shape).total();
    all_plain = all_plain || (shape.draft == 0 && shape.requests == 20);
  }
  EXPECT_LT(spent, 1);
  EXPECT_TRUE(all_plain);
  const RoundShape far = {20, 15, 320};
  EXPECT_NEAR(model->predict(far).total() / truth(far).total(), 1, 0.6);
}

TEST_F(MeasureCostsTest, UsesNoMorePagesThanThereAre) {
  plan_.pages = 3 * plan_.pages_per_slot(16);
  ASSERT_TRUE(measure().ok());
  for (const RoundShape& shape : shapes_) EXPECT_LE(shape.requests, 3);
  plan_.max_model_len = 2;
  EXPECT_EQ(plan_.pages_per_slot(16), 2) << "a token, a round, a block";
}

TEST_F(MeasureCostsTest, RunsSizesThatAreRecorded) {
  geometry_.row_buckets = {4, 8, 16, 32, 64, 128};
  ASSERT_TRUE(measure().ok());
  for (const RoundShape& shape : shapes_) {
    const bool all = shape.verify_rows == shape.requests * (shape.draft + 1);
    EXPECT_TRUE(all || std::ranges::count(geometry_.row_buckets, shape.verify_rows) == 1) << shape.verify_rows;
  }
}

TEST_F(MeasureCostsTest, HandsErrorsOn) {
  const Result<CostModel> model = measure_costs(
      geometry_, plan_, [](const RoundShape&) -> Result<CostSample> { return resource_exhausted("No memory."); }, {});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(MeasureCostsTest, GuessesContextFromBytesAndArithmetic) {
  plan_.heads_per_kv_head = 4;
  const std::vector<CostSample> samples = {{{1, 0, 1}, {0, 0.01}}, {{4, 3, 16}, {0, 0.02}}, {{8, 3, 32}, {0, 0.04}}};
  const KvCosts kv = guess_kv_costs(plan_, samples);
  EXPECT_DOUBLE_EQ(kv.rest, 1e5 * 0.01 / 1e9);
  EXPECT_DOUBLE_EQ(kv.draft.at(0), 1e4 * 0.01 / 1e9);
  EXPECT_NEAR(kv.row, 0.02 / 16 * 4 * 1e5 / 1e9, 1e-15);
}

}  // namespace
}  // namespace volley::decode
