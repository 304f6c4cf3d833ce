// The figures that say whether the verify budget keeps its promise.
#include "apps/bench/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

namespace volley::apps {
namespace {

TEST(Comparison, MediansOfEachModeDecide) {
  const std::vector<MeasuredRun> runs = {
      {"a", 8, "auto", 100}, {"a", 8, "0", 90}, {"a", 8, "7", 130},   //
      {"a", 8, "auto", 110}, {"a", 8, "0", 95}, {"a", 8, "7", 100},   //
      {"a", 8, "auto", 500}, {"a", 8, "0", 99}, {"a", 8, "7", 104.5}  // an outlier in every mode
  };
  const auto comparisons = compare_with_auto(runs);
  ASSERT_EQ(comparisons.size(), 1u);
  EXPECT_EQ(comparisons[0].auto_tok_s, 110);
  EXPECT_EQ(comparisons[0].best, "7");
  EXPECT_EQ(comparisons[0].best_tok_s, 104.5);
  EXPECT_DOUBLE_EQ(comparisons[0].ratio(), 110 / 104.5);
  ASSERT_EQ(comparisons[0].modes.size(), 3u);
  EXPECT_EQ(comparisons[0].modes[1].mode, "0");
  EXPECT_EQ(comparisons[0].modes[1].lowest, 90);
  EXPECT_EQ(comparisons[0].modes[1].highest, 99);
}

TEST(Comparison, LoadsAndConcurrenciesAreCellsOfTheirOwn) {
  const std::vector<MeasuredRun> runs = {{"a", 1, "auto", 10}, {"a", 1, "7", 20},   {"a", 8, "auto", 30},
                                         {"a", 8, "7", 30},    {"b", 1, "auto", 8}, {"b", 1, "7", 2}};
  const auto comparisons = compare_with_auto(runs);
  ASSERT_EQ(comparisons.size(), 3u);
  EXPECT_DOUBLE_EQ(comparisons[0].ratio(), 0.5);
  EXPECT_DOUBLE_EQ(comparisons[1].ratio(), 1);
  EXPECT_DOUBLE_EQ(comparisons[2].ratio(), 4);
  EXPECT_DOUBLE_EQ(geometric_mean(comparisons), std::cbrt(2.0));
  const std::string table = comparison_table(comparisons);
  EXPECT_NE(table.find("lowest 0.500, geometric mean 1.260"), std::string::npos) << table;
}

TEST(Comparison, PlainDecodingIsPartOfEveryLoad) {
  const std::vector<MeasuredRun> runs = {
      {"a", 1, "auto", 10}, {"a", 1, "7", 8}, {"b", 1, "auto", 10}, {"b", 1, "7", 11}, {"", 1, "off", 12}};
  const auto comparisons = compare_with_auto(runs);
  ASSERT_EQ(comparisons.size(), 2u);
  EXPECT_EQ(comparisons[0].best, "off");
  EXPECT_EQ(comparisons[1].best, "off");
}

TEST(Comparison, NothingToCompareIsNoTable) {
  const std::vector<MeasuredRun> alone = {{"a", 1, "auto", 10}}, without = {{"a", 1, "7", 10}, {"a", 1, "0", 5}};
  EXPECT_TRUE(compare_with_auto(alone).empty());
  EXPECT_TRUE(compare_with_auto(without).empty());
  EXPECT_EQ(comparison_table({}), "");
  EXPECT_EQ(geometric_mean({}), 0);
}

}  // namespace
}  // namespace volley::apps
