// The picture holds what the table holds, and nothing that a browser would have to load.
#include "apps/bench/serving/plot.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace volley::apps {
namespace {

TEST(Plot, TicksAreRoundAndEnough) {
  EXPECT_EQ(axis_ticks(0), (std::vector<double>{0, 1}));
  EXPECT_EQ(axis_ticks(437), (std::vector<double>{0, 100, 200, 300, 400, 500}));
  EXPECT_EQ(axis_ticks(5), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  for (const double most : {0.013, 0.9, 7.0, 23.0, 999.0, 1234567.0}) {
    const auto ticks = axis_ticks(most);
    EXPECT_GE(ticks.back(), most);
    EXPECT_LE(ticks.size(), 6u) << most;
    EXPECT_GE(ticks.size(), 3u) << most;
  }
}

TEST(Plot, ShowsEveryRow) {
  ServingReport report;
  report.model = "a<b>&\"c\"";
  for (const bool speculation : {false, true}) {
    for (const int concurrency : {1, 8}) {
      ServingRow row;
      row.speculation = speculation;
      row.load.concurrency = concurrency;
      row.summary.output_tok_s = 100 * concurrency * (speculation ? 3 : 1);
      row.summary.tpot_ms.p50 = speculation ? 2 : 6;
      if (speculation) row.speedup = 3;
      report.rows.push_back(row);
    }
  }
  const std::string svg = serving_plot(report);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find("3.00\u00d7"), std::string::npos);
  EXPECT_NE(svg.find("speculation off"), std::string::npos);
  EXPECT_EQ(svg.find("as served"), std::string::npos);
  EXPECT_EQ(svg.find("href"), std::string::npos);
  size_t circles = 0;
  for (size_t at = 0; (at = svg.find("r=\"4\"", at)) != std::string::npos; ++at) ++circles;
  EXPECT_EQ(circles, 8u) << "four rows in two panels";
  EXPECT_EQ(std::count(svg.begin(), svg.end(), '<'), std::count(svg.begin(), svg.end(), '>'));
}

}  // namespace
}  // namespace volley::apps
