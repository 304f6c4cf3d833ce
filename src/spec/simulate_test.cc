#include "spec/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "spec/logit_chunks.h"

namespace volley::spec {
namespace {

TEST(SimulatedAcceptance, PositionsSurviveGeometrically) {
  constexpr int kBlocks = 200'000;
  constexpr double kP = 0.8553;
  std::vector<int> survived(16, 0);
  for (int i = 0; i < kBlocks; ++i) {
    const int32_t accepted = simulated_acceptance(kP, 15, 42 + i % 7, i);
    ASSERT_GE(accepted, 0);
    ASSERT_LE(accepted, 15);
    for (int k = 1; k <= accepted; ++k) ++survived[k];
  }
  for (int k = 1; k <= 15; ++k) {
    const double p = std::pow(kP, k), deviation = std::sqrt(p * (1 - p) / kBlocks);
    EXPECT_NEAR(survived[k] / static_cast<double>(kBlocks), p, 5 * deviation) << "position " << k;
  }
}

TEST(SimulatedAcceptance, EndsAreExactAndRunsRepeat) {
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(simulated_acceptance(1.0, 15, 1, i), 15);
    EXPECT_EQ(simulated_acceptance(0.0, 15, 1, i), 0);
    EXPECT_EQ(simulated_acceptance(0.5, 15, 9, i), simulated_acceptance(0.5, 15, 9, i));
  }
}

// Every block's rows land in exactly one chunk, in order, and no chunk is larger than allowed.
TEST(LogitChunks, CoverAllBlocksInOrder) {
  const std::vector<int32_t> counts = {16, 0, 100, 12, 1, 127, 128, 0, 0, 5};
  size_t next = 0;
  for_logit_chunks(counts, 128, [&](size_t first, size_t last, int32_t rows) {
    EXPECT_EQ(first, next);
    EXPECT_GT(last, first);
    int32_t sum = 0;
    for (size_t i = first; i < last; ++i) sum += counts[i];
    EXPECT_EQ(sum, rows);
    EXPECT_LE(rows, 128);
    next = last;
  });
  EXPECT_EQ(next, counts.size());
}

}  // namespace
}  // namespace volley::spec
