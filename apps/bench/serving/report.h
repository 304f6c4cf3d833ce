// What `volley bench serving` found: a table for people, JSON for programs. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/bench/serving/load.h"
#include "apps/bench/serving/summary.h"

namespace volley::apps {

struct ServingRow {
  std::optional<bool> speculation;  // empty: as the endpoint has it
  LoadShape load;
  ServingSummary summary;
  std::optional<double> speedup;      // output tokens a second over the row without speculation
  std::optional<SameText> same_text;  // as the row without speculation; empty: sampled without a seed, or no such row
  std::string note;                   // what makes the row not what it was asked to be
};

struct ServingReport {
  std::string url, baseline_url;  // the second is empty unless one was given
  std::string model, dataset;
  DatasetKind kind = DatasetKind::kJsonl;
  std::string endpoint;       // "chat" or "completions"
  std::string settings_json;  // what every request asked for
  uint64_t seed = 0;          // of arrivals
  std::vector<std::string> notes;
  std::vector<ServingRow> rows;
};

std::string serving_table_header();  // two lines
std::string serving_table_row(const ServingRow& row);
std::string serving_table_footer(const ServingReport& report);
std::string serving_json(const ServingReport& report);  // one line

// "off", "on", "-": the row's speculation.
const char* speculation_label(const std::optional<bool>& speculation);

}  // namespace volley::apps
