#include "apps/bench/serving/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace volley::apps {
namespace {

using Json = nlohmann::ordered_json;

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char line[320];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

std::string load_label(const LoadShape& load) {
  return load.request_rate > 0 ? format("%.3g/s", load.request_rate) : std::to_string(load.concurrency);
}

std::string or_dash(bool there, const std::string& text) {
  return there ? text : "-";
}

Json distribution_json(const Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p95", d.p95}, {"p99", d.p99}};
}

Json row_json(const ServingRow& row) {
  const ServingSummary& s = row.summary;
  Json json;
  json["speculation"] = row.speculation ? Json(*row.speculation) : Json(nullptr);
  if (row.load.request_rate > 0) {
    json["request_rate"] = row.load.request_rate;
  } else {
    json["concurrency"] = row.load.concurrency;
  }
  json["requests"] = s.requests;
  json["errors"] = s.errors;
  json["prompt_tokens"] = s.prompt_tokens;
  json["cached_tokens"] = s.cached_tokens;
  json["completion_tokens"] = s.completion_tokens;
  json["wall_s"] = s.wall_s;
  json["output_tok_s"] = s.output_tok_s;
  json["requests_s"] = s.requests_s;
  json["speedup"] = row.speedup ? Json(*row.speedup) : Json(nullptr);
  json["acceptance_length"] = s.acceptance_length ? Json(*s.acceptance_length) : Json(nullptr);
  if (s.acceptance_length) json["acceptance_exact"] = s.acceptance_exact;
  json["ttft_ms"] = distribution_json(s.ttft_ms);
  json["tpot_ms"] = distribution_json(s.tpot_ms);
  json["itl_ms"] = distribution_json(s.itl_ms);
  json["e2e_ms"] = distribution_json(s.e2e_ms);
  json["judged"] = s.judged;
  json["right"] = s.right;
  if (row.same_text) json["same_text"] = {{"same", row.same_text->same}, {"compared", row.same_text->compared}};
  json["error_texts"] = s.error_texts;
  if (!row.note.empty()) json["note"] = row.note;
  return json;
}

}  // namespace

const char* speculation_label(const std::optional<bool>& speculation) {
  if (!speculation) return "-";
  return *speculation ? "on" : "off";
}

std::string serving_table_header() {
  return "                |    out              tokens |   TTFT, ms      |   TPOT, ms      |   ITL, ms       |    E2E, "
         "ms  "
         "      |\n"
         "spec   at   reqs |  tok/s  speedup   a step |    p50     p99 |    p50     p99 |    p50     p99 |     p50     "
         " "
         "p99 |  right  errors";
}

std::string serving_table_row(const ServingRow& row) {
  const ServingSummary& s = row.summary;
  const std::string speedup = or_dash(row.speedup.has_value(), format("%.2f x", row.speedup.value_or(0)));
  const std::string steps = or_dash(s.acceptance_length.has_value(), format("%.2f", s.acceptance_length.value_or(0)));
  const std::string right = or_dash(
      s.judged > 0,
      format("%.1f%%", 100.0 * static_cast<double>(s.right) / static_cast<double>(std::max<int64_t>(1, s.judged))));
  return format("%-4s %6s %5lld | %6.0f %8s %8s | %7.1f %7.1f | %7.2f %7.2f | %7.1f %7.1f | %8.1f %8.1f | %6s  %6lld",
                speculation_label(row.speculation), load_label(row.load).c_str(), static_cast<long long>(s.requests),
                s.output_tok_s, speedup.c_str(), steps.c_str(), s.ttft_ms.p50, s.ttft_ms.p99, s.tpot_ms.p50,
                s.tpot_ms.p99, s.itl_ms.p50, s.itl_ms.p99, s.e2e_ms.p50, s.e2e_ms.p99, right.c_str(),
                static_cast<long long>(s.errors));
}

std::string serving_table_footer(const ServingReport& report) {
  std::string text =
      "at: requests open at once, or started a second; tokens a step: what a verify step of the target gave, bonus "
      "token "
      "included; TPOT: by tokens after the first; ITL: between pieces of a stream.\n";
  for (const std::string& note : report.notes) text += note + "\n";
  for (const ServingRow& row : report.rows) {
    const std::string where = std::string("spec ") + speculation_label(row.speculation) + " at " + load_label(row.load);
    if (!row.note.empty()) text += where + ": " + row.note + "\n";
    for (const std::string& error : row.summary.error_texts) text += where + ", an error: " + error + "\n";
    if (row.same_text) {
      text += where + ": " + std::to_string(row.same_text->same) + " of " + std::to_string(row.same_text->compared) +
              " answers have the text that they have without speculation.\n";
    }
  }
  return text;
}

std::string serving_json(const ServingReport& report) {
  Json json;
  json["url"] = report.url;
  if (!report.baseline_url.empty()) json["baseline_url"] = report.baseline_url;
  json["model"] = report.model;
  json["dataset"] = {{"path", report.dataset}, {"kind", dataset_kind_name(report.kind)}};
  json["endpoint"] = report.endpoint;
  json["settings"] = Json::parse(report.settings_json);
  json["seed"] = report.seed;
  json["notes"] = report.notes;
  json["rows"] = Json::array();
  for (const ServingRow& row : report.rows) json["rows"].push_back(row_json(row));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace volley::apps
