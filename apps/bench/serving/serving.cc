#include "apps/bench/serving/serving.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/bench/serving/dataset.h"
#include "apps/bench/serving/load.h"
#include "apps/bench/serving/plot.h"
#include "apps/bench/serving/report.h"
#include "apps/bench/serving/serving_call.h"
#include "apps/exit_codes.h"
#include "apps/generate/ordered_output.h"
#include "apps/standard_streams.h"

namespace volley::apps {
namespace {

constexpr int kDefaultMaxTokens = 512;
constexpr int kMostWarmup = 8;
constexpr int kRateConnections = 1024;  // kept open where the rate, not we, decides how many requests are open

DatasetKind kind_of(const std::string& name) {
  for (const DatasetKind kind : {DatasetKind::kGsm8k, DatasetKind::kHumanEval, DatasetKind::kJsonl}) {
    if (name == dataset_kind_name(kind)) return kind;
  }
  return DatasetKind::kAuto;
}

Result<std::vector<std::string>> key_headers(const std::optional<std::string>& path) {
  if (!path) return std::vector<std::string>();
  std::ifstream file(*path);
  std::string key;
  if (!std::getline(file, key) || key.empty()) return not_found("The key file " + *path + " has no first line.");
  if (key.ends_with('\r')) key.pop_back();
  return std::vector<std::string>{"Authorization: Bearer " + key};
}

std::string random_salt() {
  std::random_device device;
  char text[32];
  std::snprintf(text, sizeof text, "bench-%08x%08x-", device(), device());
  return text;
}

std::vector<LoadShape> shapes_of(const BenchServingCommand& command) {
  std::vector<LoadShape> shapes;
  for (const double rate : command.request_rates) shapes.push_back({0, rate});
  for (const int concurrency : command.concurrency) shapes.push_back({concurrency, 0});
  if (shapes.empty()) shapes = {{1, 0}, {8, 0}};
  return shapes;
}

class ServingBench {
 public:
  ServingBench(const BenchServingCommand& command, InterruptWatch* interrupt, Console* console)
      : command_(command),
        interrupt_(*interrupt),
        console_(*console),
        shapes_(shapes_of(command)),
        client_(std::chrono::seconds(command.timeout_s), connections(shapes_)),
        scope_(interrupt, [this] { client_.wake(); }),
        salt_(random_salt()) {}

  int run() {
    if (Status ready = prepare(); !ready.ok()) {
      console_.error(ready.error().message);
      return interrupt_.interrupted() ? interrupt_.exit_status() : kExitUsage;
    }
    std::printf("%s\n", serving_table_header().c_str());
    for (const LoadShape& shape : shapes_) {
      if (command_.sweep) {
        const LoadResult off = measure(baseline_, shape, false, nullptr);
        measure(endpoint_, shape, true, &off);
      } else {
        measure(endpoint_, shape, std::nullopt, nullptr);
      }
      if (interrupt_.interrupted()) break;
    }
    return finish();
  }

 private:
  static int connections(const std::vector<LoadShape>& shapes) {
    int most = 1;
    for (const LoadShape& shape : shapes) {
      most = std::max(most, shape.request_rate > 0 ? kRateConnections : shape.concurrency);
    }
    return most;
  }

  // Everything that can be wrong before the first measurement.
  Status prepare() {
    const std::string instruction = command_.instruction == "none" ? "" : command_.instruction;
    VOLLEY_ASSIGN(dataset_,
                  read_dataset(command_.dataset, kind_of(command_.format), instruction, command_.num_prompts));
    for (const auto* path : {&command_.output, &command_.plot}) {
      if (!*path) continue;
      VOLLEY_ASSIGN(OrderedOutput file, OrderedOutput::open(**path, command_.dataset));
      files_.push_back(std::move(file));
    }
    VOLLEY_ASSIGN(const std::vector<std::string> headers, key_headers(command_.api_key_file));
    const auto stopped = [this] { return interrupt_.interrupted(); };
    VOLLEY_ASSIGN(endpoint_, probe_endpoint(&client_, command_.url, command_.model, headers, stopped));
    baseline_ = endpoint_;
    if (command_.baseline_url) {
      VOLLEY_ASSIGN(baseline_, probe_endpoint(&client_, *command_.baseline_url, command_.model, headers, stopped));
    } else if (command_.sweep && !endpoint_.is_volley()) {
      return failed_precondition(endpoint_.base +
                                 " is not Volley, so it has no switch for speculation: give the same "
                                 "model without it with --baseline-url URL.");
    }
    VOLLEY_RETURN_IF_ERROR(choose_api());
    fill_report();
    return {};
  }

  Status choose_api() {
    request_.chat =
        command_.endpoint == "chat" || (command_.endpoint == "auto" && dataset_.kind != DatasetKind::kHumanEval);
    const bool messages = std::any_of(dataset_.samples.begin(), dataset_.samples.end(),
                                      [](const Sample& sample) { return !sample.messages_json.empty(); });
    if (!request_.chat && messages) {
      return invalid_argument(command_.dataset + " holds messages, which --endpoint completions cannot take.");
    }
    request_.settings = command_.settings;
    if (!request_.settings.temperature) request_.settings.temperature = 0.0f;
    request_.extra_json = command_.extra_json;
    for (Sample& sample : dataset_.samples) sample.max_tokens = sample.max_tokens.value_or(kDefaultMaxTokens);
    return {};
  }

  void fill_report() {
    report_.url = endpoint_.base;
    if (command_.baseline_url) report_.baseline_url = baseline_.base;
    report_.model = endpoint_.model;
    report_.dataset = command_.dataset;
    report_.kind = dataset_.kind;
    report_.endpoint = request_.chat ? "chat" : "completions";
    report_.seed = command_.arrival_seed;
    auto body = nlohmann::ordered_json::parse(make_call(endpoint_, dataset_.samples.front(), request_, 0).body);
    for (const char* name : {"model", "prompt", "messages", "cache_salt", "stream", "stream_options"}) body.erase(name);
    report_.settings_json = body.dump();
    if (!dataset_.note.empty()) report_.notes.push_back(dataset_.note);
    const auto available = static_cast<int>(dataset_.samples.size());
    if (available < command_.num_prompts) {
      report_.notes.push_back("The dataset has " + std::to_string(available) + " prompts for " +
                              std::to_string(command_.num_prompts) + " requests: they were repeated.");
    }
    if (!endpoint_.knows_cache_salt() || !baseline_.knows_cache_salt()) {
      report_.notes.push_back(
          "The endpoint may have answered from prefixes that earlier measurements left in its cache.");
    }
  }

  LoadResult load(const Endpoint& endpoint, const LoadShape& shape, size_t count, RequestShape request,
                  const std::string& what) {
    LoadHooks hooks;
    hooks.make_call = [&](size_t index) {
      return make_call(endpoint, dataset_.samples[index % dataset_.samples.size()], request, index);
    };
    hooks.stopped = [this] { return interrupt_.interrupted(); };
    hooks.ended = [&](size_t done) {
      console_.progress(what + ": " + std::to_string(done) + " of " + std::to_string(count),
                        static_cast<double>(done) / static_cast<double>(count));
    };
    return run_load(&client_, shape, count, command_.arrival_seed, hooks);
  }

  // `off`: the same load without speculation, to compare with.
  LoadResult measure(const Endpoint& endpoint, const LoadShape& shape, std::optional<bool> speculation,
                     const LoadResult* off) {
    if (interrupt_.interrupted()) return {};
    RequestShape request = request_;
    request.speculation = speculation;
    const std::string number = std::to_string(report_.rows.size());
    const int warmup =
        command_.warmup.value_or(shape.request_rate > 0 ? kMostWarmup : std::min(shape.concurrency, kMostWarmup));
    request.cache_salt = salt_ + "warmup-" + number;
    const LoadShape warm = {std::max(1, std::min(warmup, kMostWarmup)), 0};
    load(endpoint, warm, static_cast<size_t>(warmup), request, "warming up");
    // A salt of its own: no measurement finds prefixes that another one left in the cache.
    request.cache_salt = salt_ + number;
    LoadResult result = load(endpoint, shape, static_cast<size_t>(command_.num_prompts), request,
                             std::string("speculation ") + speculation_label(speculation));
    console_.clear_progress();
    if (!interrupt_.interrupted()) add_row(shape, speculation, result, off);
    return result;
  }

  void add_row(const LoadShape& shape, std::optional<bool> speculation, const LoadResult& result,
               const LoadResult* off) {
    ServingRow row;
    row.speculation = speculation;
    row.load = shape;
    row.summary = summarize(result, dataset_);
    if (speculation == false && row.summary.drafted_tokens.value_or(0) > 0) {
      row.note = "the endpoint drafted " + std::to_string(*row.summary.drafted_tokens) +
                 " tokens although it was asked for none: this is no measurement of plain decoding.";
    }
    if (off != nullptr) {
      const ServingRow& plain = report_.rows.back();
      if (plain.note.empty() && plain.summary.output_tok_s > 0) {
        row.speedup = row.summary.output_tok_s / plain.summary.output_tok_s;
      }
      const bool reproducible = *request_.settings.temperature == 0 || request_.settings.seed;
      if (reproducible) row.same_text = compare_texts(*off, result);
    }
    std::printf("%s\n", serving_table_row(row).c_str());
    std::fflush(stdout);
    report_.rows.push_back(std::move(row));
  }

  int finish() {
    std::printf("%s", serving_table_footer(report_).c_str());
    const std::string json = serving_json(report_);
    if (command_.json) std::printf("%s\n", json.c_str());
    Status written = flush_standard_output();
    if (written.ok() && !report_.rows.empty()) written = write_files(json);
    if (!written.ok()) console_.error(written.error().message);
    if (interrupt_.interrupted()) return interrupt_.exit_status();
    if (!written.ok()) return kExitUsage;
    const bool failed = std::any_of(report_.rows.begin(), report_.rows.end(),
                                    [](const ServingRow& row) { return row.summary.errors > 0; });
    return failed ? kExitRequestsFailed : kExitOk;
  }

  Status write_files(const std::string& json) {
    auto file = files_.begin();
    if (command_.output) VOLLEY_RETURN_IF_ERROR((file++)->put(0, json));
    if (command_.plot) VOLLEY_RETURN_IF_ERROR((file++)->put(0, serving_plot(report_)));
    return {};
  }

  const BenchServingCommand& command_;
  const InterruptWatch& interrupt_;
  Console& console_;
  const std::vector<LoadShape> shapes_;
  HttpClient client_;
  InterruptScope scope_;
  const std::string salt_;
  Dataset dataset_;
  std::vector<OrderedOutput> files_;  // --output, then --plot, as far as they were asked for
  Endpoint endpoint_, baseline_;      // with speculation and without
  RequestShape request_;
  ServingReport report_;
};

}  // namespace

int run_bench_serving(const BenchServingCommand& command, InterruptWatch* interrupt, Console* console) {
  return ServingBench(command, interrupt, console).run();
}

}  // namespace volley::apps
