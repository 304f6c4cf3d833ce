#include "apps/bench/rounds_report.h"

#include <algorithm>
#include <cstdio>

#include "apps/bench/comparison.h"
#include "apps/bench/report_json.h"

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::vector<Comparison> comparisons(const RoundsReport& report) {
  std::vector<MeasuredRun> runs;
  for (const RoundsRun& run : report.runs) runs.push_back({run.load, run.concurrency, run.mode, run.window.tok_s()});
  return compare_with_auto(runs);
}

std::string line_of(const RoundsRun& run, double lowest, double highest) {
  const StatsWindow& w = run.window;
  char line[256];
  std::snprintf(line, sizeof line, "%-24s %4d %-5s | %9.1f %9.1f %9.1f | %8.3f %6.2f %7.1f | %5lld %5lld %6lld",
                run.load.empty() ? "any" : run.load.c_str(), run.concurrency, run.mode.c_str(), w.tok_s(), lowest,
                highest, w.step_ms(), w.draft, w.rows, static_cast<long long>(w.steps), static_cast<long long>(w.plain),
                static_cast<long long>(w.probes));
  return line;
}

}  // namespace

std::string rounds_header() {
  return "                                   |     tok/s                      |  step ms  draft    rows |\n"
         "load                       at mode |    median    lowest   highest  |             of a step  | steps plain "
         "probes";
}

std::string rounds_lines(std::span<const RoundsRun> runs) {
  std::vector<std::string> modes;
  for (const RoundsRun& run : runs) {
    if (std::find(modes.begin(), modes.end(), run.mode) == modes.end()) modes.push_back(run.mode);
  }
  std::string text;
  for (const std::string& mode : modes) {
    std::vector<const RoundsRun*> same;
    for (const RoundsRun& run : runs) {
      if (run.mode == mode) same.push_back(&run);
    }
    std::sort(same.begin(), same.end(),
              [](const RoundsRun* a, const RoundsRun* b) { return a->window.tok_s() < b->window.tok_s(); });
    text += line_of(*same[same.size() / 2], same.front()->window.tok_s(), same.back()->window.tok_s()) + "\n";
  }
  return text;
}

std::string rounds_footer(const RoundsReport& report) {
  return "tok/s: tokens over the time of the steps and between them, while every request decoded; of simulated "
         "acceptance the expected tokens. draft: tokens drafted for a request; rows: of the target's pass for the "
         "requests that decode; plain: steps that drafted nothing; probes: that drafted to learn.\n" +
         comparison_table(comparisons(report));
}

std::string rounds_json(const RoundsReport& report) {
  OrderedJson json;
  json["model"] = report.model;
  json["draft"] = report.draft;
  json["device"] = report.engine.device;
  append_engine(report.engine, json);
  json["block_size"] = report.engine.block_size;
  json["prompt_tokens"] = report.prompt_tokens;
  json["rounds"] = report.rounds;
  json["warm_rounds"] = report.warm_rounds;
  json["confidence_odds"] = report.confidence_odds;
  json["runs"] = OrderedJson::array();
  for (const RoundsRun& run : report.runs) {
    OrderedJson entry = {
        {"load", run.load}, {"concurrency", run.concurrency}, {"mode", run.mode}, {"repeat", run.repeat}};
    entry.update(window_json(run.window));
    entry["wall_s"] = run.wall_s;
    json["runs"].push_back(std::move(entry));
  }
  const std::vector<Comparison> cells = comparisons(report);
  json["cells"] = OrderedJson::array();
  for (const Comparison& cell : cells) {
    OrderedJson modes = OrderedJson::object();
    for (const ModeMedian& mode : cell.modes) modes[mode.mode] = mode.tok_s;
    json["cells"].push_back({{"load", cell.load},
                             {"concurrency", cell.concurrency},
                             {"median_tok_s", std::move(modes)},
                             {"best", cell.best},
                             {"ratio", cell.ratio()}});
  }
  json["geometric_mean"] = geometric_mean(cells);
  return json.dump();
}

}  // namespace volley::apps
