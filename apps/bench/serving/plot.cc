#include "apps/bench/serving/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

namespace volley::apps {
namespace {

constexpr double kWidth = 860, kHeight = 380;
constexpr double kTop = 84, kBottom = 310;  // of the panels
constexpr double kPanelWidth = 340, kLeftPanel = 70, kRightPanel = 500;

// Names as they stand in the table; colours that are told apart on white and on dark, and by colour-blind readers.
struct Series {
  const char* label;
  const char* colour;
  std::vector<const ServingRow*> rows;
};

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char line[400];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* style = "") {
  return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, style) + escape(text) + "</text>\n";
}

double load_of(const ServingRow& row) {
  return row.load.request_rate > 0 ? row.load.request_rate : row.load.concurrency;
}

std::vector<Series> series_of(const ServingReport& report) {
  std::vector<Series> all = {
      {"speculation off", "#8a8f98", {}}, {"speculation on", "#0f9d8f", {}}, {"as served", "#0f9d8f", {}}};
  for (const ServingRow& row : report.rows) all[!row.speculation ? 2 : *row.speculation ? 1 : 0].rows.push_back(&row);
  std::erase_if(all, [](const Series& series) { return series.rows.empty(); });
  return all;
}

// One plot of `value` over the load. Loads stand at equal distances: they are usually powers of two.
class Panel {
 public:
  using Value = std::function<double(const ServingRow&)>;

  Panel(double left, const ServingReport& report, const std::vector<Series>& series, Value value)
      : left_(left), series_(series), value_(std::move(value)) {
    double most = 0;
    for (const ServingRow& row : report.rows) {
      columns_.emplace(load_of(row), 0);
      most = std::max(most, value_(row));
    }
    size_t column = 0;
    for (auto& [load, x] : columns_) {
      x = left_ + kPanelWidth * (static_cast<double>(column++) + 0.5) / static_cast<double>(columns_.size());
    }
    ticks_ = axis_ticks(most);
  }

  std::string draw(const std::string& title, const std::string& axis, bool speedups) const {
    std::string out = text_at(left_, kTop - 14, "start", title, "class=\"title\"");
    for (const double tick : ticks_) {
      out += format("<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", left_,
                    left_ + kPanelWidth, y_of(tick), y_of(tick));
      out += text_at(left_ - 8, y_of(tick) + 4, "end", format("%g", tick));
    }
    for (const auto& [load, x] : columns_) out += text_at(x, kBottom + 18, "middle", format("%g", load));
    out += text_at(left_ + kPanelWidth / 2, kBottom + 38, "middle", axis);
    for (const Series& series : series_) out += draw_series(series, speedups);
    return out;
  }

 private:
  double y_of(double value) const { return kBottom - (kBottom - kTop) * value / ticks_.back(); }

  std::string draw_series(const Series& series, bool speedups) const {
    std::string points, marks;
    for (const ServingRow* row : series.rows) {
      const double x = columns_.at(load_of(*row)), y = y_of(value_(*row));
      points += format("%.1f,%.1f ", x, y);
      marks += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y, series.colour);
      if (speedups && row->speedup) {
        marks += text_at(x, y - 10, "middle", format("%.2f\u00d7", *row->speedup), "class=\"mark\"");
      }
    }
    return format("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"", series.colour) + points +
           "\"/>\n" + marks;
  }

  double left_;
  const std::vector<Series>& series_;
  Value value_;
  std::map<double, double> columns_;  // load to x
  std::vector<double> ticks_;
};

std::string legend(const std::vector<Series>& series) {
  std::string out;
  double x = kLeftPanel;
  for (const Series& one : series) {
    out += format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", x + 5, kHeight - 14, one.colour);
    out += text_at(x + 16, kHeight - 10, "start", one.label);
    x += 150;
  }
  return out;
}

constexpr const char* kStyle =
    "<style>text{font:12px system-ui,sans-serif;fill:#333}.head{font-size:15px;font-weight:600}"
    ".title{font-weight:600}.mark{fill:#0b7a6f;font-weight:600}.grid{stroke:#9994;stroke-width:1}"
    ".page{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#16181c}.mark{fill:#4fd1c5}}"
    "</style>\n";

}  // namespace

std::vector<double> axis_ticks(double most) {
  if (!(most > 0)) return {0, 1};
  const double power = std::pow(10, std::floor(std::log10(most / 5)));
  double step = power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0, 10.0}) {
    step = factor * power;
    if (step * 5 >= most) break;
  }
  std::vector<double> ticks = {0};
  while (ticks.back() < most) ticks.push_back(static_cast<double>(ticks.size()) * step);
  return ticks;
}

std::string serving_plot(const ServingReport& report) {
  const std::vector<Series> series = series_of(report);
  const bool rate = !report.rows.empty() && report.rows.front().load.request_rate > 0;
  const std::string axis = rate ? "requests started a second" : "requests open at once";
  std::string out = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "aria-label=\"Throughput and time per token over the load\">\n",
      kWidth, kHeight);
  out += kStyle;
  out += format("<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n", kWidth, kHeight);
  out += text_at(kLeftPanel, 30, "start", report.model + ", " + dataset_kind_name(report.kind), "class=\"head\"");
  const Panel throughput(kLeftPanel, report, series, [](const ServingRow& row) { return row.summary.output_tok_s; });
  const Panel latency(kRightPanel, report, series, [](const ServingRow& row) { return row.summary.tpot_ms.p50; });
  out += throughput.draw("output tokens a second", axis, true);
  out += latency.draw("time per output token, ms (p50)", axis, false);
  return out + legend(series) + "</svg>\n";
}

}  // namespace volley::apps
