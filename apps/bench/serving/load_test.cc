// Arrivals at a rate are a Poisson process that anyone can repeat.
#include "apps/bench/serving/load.h"

#include <gtest/gtest.h>

#include <cmath>

namespace volley::apps {
namespace {

TEST(PoissonStarts, GapsAreExponential) {
  constexpr size_t kCount = 20'000;
  const std::vector<double> starts = poisson_starts(50, kCount, 3);
  ASSERT_EQ(starts.size(), kCount);
  EXPECT_EQ(starts[0], 0);
  double sum = 0, squares = 0;
  int longer = 0;  // than the mean
  for (size_t i = 1; i < kCount; ++i) {
    const double gap = starts[i] - starts[i - 1];
    ASSERT_GT(gap, 0);
    sum += gap;
    squares += gap * gap;
    longer += gap > 0.02;
  }
  const double mean = sum / (kCount - 1);
  EXPECT_NEAR(mean, 0.02, 0.0005);
  EXPECT_NEAR(std::sqrt(squares / (kCount - 1) - mean * mean), 0.02, 0.001) << "as large as the mean";
  EXPECT_NEAR(longer / static_cast<double>(kCount), std::exp(-1), 0.015);
}

TEST(PoissonStarts, TheSeedDecides) {
  EXPECT_EQ(poisson_starts(2, 50, 7), poisson_starts(2, 50, 7));
  EXPECT_NE(poisson_starts(2, 50, 7), poisson_starts(2, 50, 8));
  // The first numbers of the generator that the C++ standard fixes.
  EXPECT_NEAR(poisson_starts(1, 2, 5489)[1], -std::log((14514284786278117030u >> 11) * 0x1p-53), 1e-12);
}

}  // namespace
}  // namespace volley::apps
