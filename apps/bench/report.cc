#include "apps/bench/report.h"

#include <algorithm>
#include <cstdio>

#include "apps/bench/comparison.h"
#include "apps/bench/report_json.h"
#include "apps/cli/help_text.h"
#include "apps/console.h"

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* speculation_name(Speculation speculation) {
  return speculation == Speculation::kOn ? "dflash" : "off";
}

OrderedJson percentiles_json(const Percentiles& values) {
  return {{"p50", values.p50}, {"p99", values.p99}};
}

OrderedJson row_json(const BenchRow& row) {
  const RunSummary& s = row.summary;
  OrderedJson json;
  json["spec"] = speculation_name(row.speculation);
  json["block_size"] = row.block_size;
  json["verify"] = row.verify;
  json["concurrency"] = row.concurrency;
  json["repeat"] = row.repeat;
  json["requests"] = s.requests;
  json["errors"] = s.errors;
  json["prompt_tokens"] = s.prompt_tokens;
  json["completion_tokens"] = s.completion_tokens;
  json["wall_s"] = s.wall_s;
  json["decode_tok_s"] = s.decode_tok_s;
  json["acceptance_length"] = s.acceptance_length;
  json["steps"] = s.steps;
  json["target_passes"] = row.whole.steps;
  json["step_ms"] = percentiles_json(s.step_ms);
  json["full"] = {{"step_ms", row.full.step_ms()},
                  {"tok_s", row.full.tok_s()},
                  {"idle_share", row.full.seconds > 0 ? row.full.idle_s / row.full.seconds : 0.0}};
  json["policy"] = window_json(row.whole);
  json["ttft_ms"] = percentiles_json(s.ttft_ms);
  json["tpot_ms"] = percentiles_json(s.tpot_ms);
  json["phase_ms"] = {{"draft", row.phases.draft},
                      {"target", row.phases.target},
                      {"choose", row.phases.choose},
                      {"commit", row.phases.commit},
                      {"host", row.phases.host}};
  json["machine"] = {{"read_gb_s", row.speed.read_bytes_per_s / 1e9},
                     {"f32_gflops", row.speed.f32_flops / 1e9},
                     {"bf16_gflops", row.speed.bf16_flops / 1e9}};
  if (row.experts() > 0) json["experts_a_step"] = row.experts();
  json["floor"] = {{"bytes", row.floor.bytes()},
                   {"kv_bytes", row.floor.kv_bytes},
                   {"state_bytes", row.floor.state_bytes},
                   {"flops", row.floor.flops},
                   {"read_ms", row.floor.read_ms(row.speed)},
                   {"compute_ms", row.floor.flop_ms(row.peak_flops)}};
  if (row.same_tokens) json["same_tokens"] = *row.same_tokens;
  return json;
}

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char line[320];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

constexpr size_t kColumns = 100;

std::string row_name(const BenchRow& row) {
  return format("%-6s %4d %6s %3d", speculation_name(row.speculation), row.block_size, row.verify.c_str(),
                row.concurrency);
}

// Lists the phases of the same rows' time.
std::string phase_table(const BenchReport& report) {
  std::string text =
      "\n                       |  all at once:     | phases of a pass, ms                    | machine\n"
      "spec  block verify  at | step ms     tok/s |   draft  target  choose  commit    host | GB/s TFLOP/s\n";
  for (const BenchRow& row : report.rows) {
    text += row_name(row) + format(" | %7.3f %9.0f | %7.3f %7.3f %7.3f %7.3f %7.3f | %4.0f %7.3f\n", row.full.step_ms(),
                                   row.full.tok_s(), row.phases.draft, row.phases.target, row.phases.choose,
                                   row.phases.commit, row.phases.host, row.speed.read_bytes_per_s / 1e9,
                                   row.peak_flops / 1e12);
  }
  return text + "\n";
}

// Policies of a block smaller than the largest are modes of their own.
std::vector<Comparison> comparisons(const BenchReport& report) {
  int largest = 1;
  for (const BenchRow& row : report.rows) largest = std::max(largest, row.block_size);
  std::vector<MeasuredRun> runs;
  for (const BenchRow& row : report.rows) {
    const bool smaller = row.speculation == Speculation::kOn && row.block_size < largest;
    const std::string mode = row.verify + (smaller ? "@" + std::to_string(row.block_size) : "");
    runs.push_back({"", row.concurrency, mode, row.summary.decode_tok_s});
  }
  return compare_with_auto(runs);
}

}  // namespace

double BenchRow::floor_ms() const {
  return std::max(floor.read_ms(speed), floor.flop_ms(peak_flops));
}

std::string table_header() {
  return "                       |    tok/s  tokens     step    floor   of | of a pass:    |    TTFT    TPOT\n"
         "spec  block verify  at |           a step       ms       ms floor | draft    rows |  ms p50  ms p50";
}

std::string table_row(const BenchRow& row) {
  const RunSummary& s = row.summary;
  const double step = s.step_ms.p50, floor = row.floor_ms();
  return row_name(row) + format(" | %8.1f  %6.2f %8.3f %8.3f %4.0f%% | %5.2f %7.1f | %7.1f %7.3f", s.decode_tok_s,
                                s.acceptance_length, step, floor, step > 0 ? 100 * floor / step : 0.0, row.whole.draft,
                                row.whole.rows, s.ttft_ms.p50, s.tpot_ms.p50);
}

std::string table_footer(const BenchReport& report) {
  std::string text =
      phase_table(report) +
      wrapped(
          "at: requests open at once; floor: the least time to read what a step reads, or to compute it, at the speed "
          "that "
          "this machine had just before or just after, the better of both, reading as many bytes over and over. Above "
          "100 "
          "% of the floor the machine was faster during the run than beside it, or the steps were smaller than whole "
          "blocks. Of a pass: tokens drafted for a request, rows of all that decode. All at once: while every request "
          "decoded; with simulated acceptance its tok/s counts the expected tokens of a step.\n",
          kColumns);
  const bool compared = std::any_of(report.rows.begin(), report.rows.end(),
                                    [](const BenchRow& row) { return row.same_tokens.has_value(); });
  const bool same = std::all_of(report.rows.begin(), report.rows.end(),
                                [](const BenchRow& row) { return row.same_tokens.value_or(true); });
  if (compared) {
    text += same ? "Every row gave the same tokens for the same prompts.\n"
                 : "ROWS DIFFER in the tokens they gave for the same prompts: that is a bug.\n";
  }
  text += report.prompts.empty()
              ? "Prompts: random, of " + std::to_string(report.prompt_tokens) + " tokens.\n"
              : "Prompts: " + escape_controls(report.prompts) + " (--prompt-tokens N draws random ones).\n";
  return text + comparison_table(comparisons(report));
}

std::string report_json(const BenchReport& report) {
  OrderedJson json;
  json["model"] = report.model;
  json["draft"] = report.draft;
  json["architecture"] = report.engine.architecture;
  append_engine(report.engine, json);
  if (!report.engine.attention_backend.empty()) json["attention_backend"] = report.engine.attention_backend;
  if (!report.engine.draft_attention_backend.empty()) {
    json["draft_attention_backend"] = report.engine.draft_attention_backend;
  }
  json["quantization"] = report.engine.quantization;
  if (!report.draft.empty()) json["draft_quantization"] = report.engine.draft_quantization;
  json["prompts"] = report.prompts.empty() ? "random" : report.prompts;
  json["prompt_tokens"] = report.prompt_tokens;
  json["output_tokens"] = report.output_tokens;
  if (!report.simulated_acceptance.empty()) json["simulated_acceptance"] = report.simulated_acceptance;
  json["rows"] = OrderedJson::array();
  for (const BenchRow& row : report.rows) json["rows"].push_back(row_json(row));
  return json.dump();
}

}  // namespace volley::apps
