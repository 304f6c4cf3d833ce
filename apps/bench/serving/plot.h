// The report as a picture: throughput and time per token over the load, a line with speculation and one without. Pure.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/serving/report.h"

namespace volley::apps {

// A whole SVG document: no script, no outside resource, readable on white and on dark pages.
std::string serving_plot(const ServingReport& report);

// At most six round numbers from 0 to the first that is not below `most`: 0, 50, 100, …
std::vector<double> axis_ticks(double most);

}  // namespace volley::apps
