#include "decode/budget/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace volley::decode {
namespace {

float odds_of(double p) {
  return static_cast<float>(std::log(p / (1 - p)));
}

double chance(const Calibrator& calibrator, int32_t position, double confidence) {
  return ops::acceptance_chance(calibrator.table(), position, static_cast<float>(confidence), 0);
}

TEST(MakeRisingTest, PoolsByWeight) {
  std::vector<double> values = {1, 6, 3, 2, 7};
  make_rising(values, std::vector<double>{1, 1, 2, 1, 1});
  EXPECT_THAT(values, testing::ElementsAre(1, 3.5, 3.5, 3.5, 7));
  std::vector<double> falling = {3, 2, 1};
  make_rising(falling, std::vector<double>{1, 1, 4});
  EXPECT_THAT(falling, testing::ElementsAre(1.5, 1.5, 1.5));
}

TEST(CalibratorTest, BelievesTheDrafterAtFirst) {
  const Calibrator calibrator;
  for (const double confidence : {0.01, 0.2, 0.5, 0.77, 0.95, 0.999}) {
    for (const int32_t position : {0, 7, 15, 40}) {
      EXPECT_NEAR(chance(calibrator, position, confidence), confidence, 1e-3) << confidence;
    }
  }
}

// Confidence c at position i is worth `truth(i, c)`.
void teach(Calibrator& calibrator, int32_t rounds, const std::function<double(int32_t, double)>& truth) {
  std::mt19937 dice(1);
  std::uniform_real_distribution<double> uniform;
  std::normal_distribution<double> normal;
  for (int32_t i = 0; i < rounds; ++i) {
    for (int32_t block = 0; block < 16; ++block) {
      for (int32_t position = 0; position < 7; ++position) {
        const double odds = 1 + 2 * normal(dice), confidence = 1 / (1 + std::exp(-odds));
        const bool accepted = uniform(dice) < truth(position, confidence);
        calibrator.observe(position, static_cast<float>(odds), accepted);
        if (!accepted) break;
      }
    }
    calibrator.end_round(true);
  }
}

TEST(CalibratorTest, ConvergesToTheTrueRates) {
  const auto truth = [](int32_t position, double confidence) { return 0.3 + 0.5 * confidence - 0.02 * position; };
  Calibrator calibrator;
  teach(calibrator, 600, truth);
  for (const double confidence : {0.2, 0.5, 0.8, 0.95}) {
    for (const int32_t position : {0, 1, 3}) {
      EXPECT_NEAR(chance(calibrator, position, confidence), truth(position, confidence), 0.06)
          << position << " " << confidence;
    }
  }
}

// Rates learned at positions with many outcomes also apply to positions with few.
TEST(CalibratorTest, PositionsWithoutOutcomesTakeTheBandsRate) {
  Calibrator calibrator;
  teach(calibrator, 200, [](int32_t, double confidence) { return 0.5 * confidence; });
  EXPECT_NEAR(chance(calibrator, 12, 0.9), 0.45, 0.06);
}

TEST(CalibratorTest, ADrafterThatIsTooSureIsCorrectedInBandsThatWereNeverSeen) {
  Calibrator calibrator;
  std::mt19937 dice(1);
  std::uniform_real_distribution<double> uniform;
  for (int32_t i = 0; i < 100; ++i) {
    for (int32_t block = 0; block < 16; ++block) calibrator.observe(0, odds_of(0.8), uniform(dice) < 2.0 / 3);
    calibrator.end_round(true);
  }
  EXPECT_NEAR(chance(calibrator, 0, 0.8), 2.0 / 3, 0.04);    // the odds are twice what they should be,
  EXPECT_NEAR(chance(calibrator, 0, 0.3), 0.3 / 1.7, 0.04);  // and twice at other positions: 3 / 7 / 2
}

TEST(CalibratorTest, NeverFallsAlongConfidence) {
  Calibrator calibrator;
  teach(calibrator, 100, [](int32_t, double confidence) { return 0.9 - 0.5 * confidence; });
  for (int32_t position = 0; position < ops::SurvivalTable::kPositions; ++position) {
    for (int32_t band = 1; band < ops::SurvivalTable::kBands; ++band) {
      EXPECT_GE(calibrator.table().log_odds[position][band], calibrator.table().log_odds[position][band - 1]);
    }
  }
}

TEST(CalibratorTest, ForgetsWhatIsNoLongerTrue) {
  Calibrator calibrator;
  teach(calibrator, 300, [](int32_t, double) { return 0.9; });
  teach(calibrator, 1200, [](int32_t, double) { return 0.4; });
  EXPECT_NEAR(chance(calibrator, 0, 0.7), 0.4, 0.06);
}

TEST(CalibratorTest, StaysFiniteAtItsEnds) {
  Calibrator calibrator;
  for (int32_t i = 0; i < 2000; ++i) {
    calibrator.observe(0, 20, true);
    calibrator.observe(1, -20, false);
    calibrator.end_round(true);
  }
  EXPECT_GT(chance(calibrator, 0, 1), 0.99);
  EXPECT_LT(chance(calibrator, 1, 0), 0.01);
  for (const auto& position : calibrator.table().log_odds) {
    for (const float value : position) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace volley::decode
