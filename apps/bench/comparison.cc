#include "apps/bench/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "apps/client/statistics.h"

namespace volley::apps {
namespace {

constexpr const char* kAuto = "auto";

ModeMedian median_of(const std::string& mode, std::vector<double> tok_s) {
  std::sort(tok_s.begin(), tok_s.end());
  return {mode, at_rank(tok_s, 0.5), tok_s.front(), tok_s.back()};
}

std::vector<ModeMedian> medians(std::span<const MeasuredRun> runs, const std::string& load, int concurrency) {
  std::vector<std::pair<std::string, std::vector<double>>> modes;
  for (const MeasuredRun& run : runs) {
    if (run.concurrency != concurrency || (run.load != load && !run.load.empty())) continue;
    auto known = std::find_if(modes.begin(), modes.end(), [&run](const auto& mode) { return mode.first == run.mode; });
    if (known == modes.end()) known = modes.insert(modes.end(), {run.mode, {}});
    known->second.push_back(run.tok_s);
  }
  std::vector<ModeMedian> result;
  for (auto& [mode, tok_s] : modes) result.push_back(median_of(mode, std::move(tok_s)));
  return result;
}

}  // namespace

std::vector<Comparison> compare_with_auto(std::span<const MeasuredRun> runs) {
  std::vector<Comparison> comparisons;
  for (const MeasuredRun& run : runs) {
    const auto same = [&run](const Comparison& c) { return c.load == run.load && c.concurrency == run.concurrency; };
    if (run.mode != kAuto || std::any_of(comparisons.begin(), comparisons.end(), same)) continue;
    Comparison comparison{run.load, run.concurrency, medians(runs, run.load, run.concurrency), 0, "", 0};
    for (const ModeMedian& mode : comparison.modes) {
      if (mode.mode == kAuto) {
        comparison.auto_tok_s = mode.tok_s;
      } else if (mode.tok_s > comparison.best_tok_s) {
        comparison.best = mode.mode;
        comparison.best_tok_s = mode.tok_s;
      }
    }
    if (!comparison.best.empty()) comparisons.push_back(std::move(comparison));
  }
  return comparisons;
}

double geometric_mean(std::span<const Comparison> comparisons) {
  double sum = 0;
  for (const Comparison& comparison : comparisons) sum += std::log(comparison.ratio());
  return comparisons.empty() ? 0 : std::exp(sum / static_cast<double>(comparisons.size()));
}

std::string comparison_table(std::span<const Comparison> comparisons) {
  if (comparisons.empty()) return "";
  size_t width = 4;
  for (const Comparison& comparison : comparisons) width = std::max(width, comparison.load.size());
  std::string text(width, ' ');
  text += "   at |     auto |     best  mode  |  auto / best\n";
  double lowest = comparisons.front().ratio();
  for (const Comparison& c : comparisons) {
    char line[160];
    std::snprintf(line, sizeof line, " %4d | %8.1f | %8.1f  %-5s | %6.3f\n", c.concurrency, c.auto_tok_s, c.best_tok_s,
                  c.best.c_str(), c.ratio());
    text += c.load + std::string(width - c.load.size(), ' ') + line;
    lowest = std::min(lowest, c.ratio());
  }
  char line[160];
  std::snprintf(line, sizeof line, "auto against the best of the others, medians: lowest %.3f, geometric mean %.3f\n",
                lowest, geometric_mean(comparisons));
  return text + line;
}

}  // namespace volley::apps
