#include "serve/api/metrics.h"

#include <malloc.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace volley::serve {
namespace {

using prometheus::ClientMetric;
using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

const Histogram::BucketBoundaries& latency_buckets() {
  static const Histogram::BucketBoundaries kBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                       1,     2.5,    5,     10,   20,    40,   80,  160,  640};
  return kBuckets;
}

const Histogram::BucketBoundaries& token_gap_buckets() {
  static const Histogram::BucketBoundaries kBuckets = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075,
                                                       0.1,    0.15,  0.2,    0.3,   0.5,  1,     2.5,  10};
  return kBuckets;
}

const Histogram::BucketBoundaries& token_count_buckets() {
  static const Histogram::BucketBoundaries kBuckets = {1,   2,    5,    10,   20,    50,    100,   200,
                                                       500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
  return kBuckets;
}

const Histogram::BucketBoundaries& block_buckets() {
  static const Histogram::BucketBoundaries kBuckets = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32};
  return kBuckets;
}

// Our names, then vLLM's, both without prefixes.
constexpr std::pair<std::string_view, std::string_view> kVllmNames[] = {
    {"num_requests_running", "num_requests_running"},
    {"num_requests_waiting", "num_requests_waiting"},
    {"num_preemptions_total", "num_preemptions_total"},
    {"prompt_tokens_total", "prompt_tokens_total"},
    {"generation_tokens_total", "generation_tokens_total"},
    {"request_success_total", "request_success_total"},
    // Routers still read vLLM's older names of these three.
    {"kv_cache_usage_perc", "kv_cache_usage_perc"},
    {"kv_cache_usage_perc", "gpu_cache_usage_perc"},
    {"prefix_cache_queries_total", "prefix_cache_queries_total"},
    {"prefix_cache_queries_total", "gpu_prefix_cache_queries_total"},
    {"prefix_cache_hits_total", "prefix_cache_hits_total"},
    {"prefix_cache_hits_total", "gpu_prefix_cache_hits_total"},
    {"cache_config_info", "cache_config_info"},
    {"spec_decode_num_drafts_total", "spec_decode_num_drafts_total"},
    {"spec_decode_num_draft_tokens_total", "spec_decode_num_draft_tokens_total"},
    {"spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens_total"},
    {"spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_accepted_tokens_per_pos_total"},
    {"time_to_first_token_seconds", "time_to_first_token_seconds"},
    // vLLM's two names for a request's mean, the older one first.
    {"time_per_output_token_seconds", "time_per_output_token_seconds"},
    {"time_per_output_token_seconds", "request_time_per_output_token_seconds"},
    {"inter_token_latency_seconds", "inter_token_latency_seconds"},
    {"e2e_request_latency_seconds", "e2e_request_latency_seconds"},
    {"request_queue_time_seconds", "request_queue_time_seconds"},
    {"request_prefill_time_seconds", "request_prefill_time_seconds"},
    {"request_decode_time_seconds", "request_decode_time_seconds"},
    {"request_inference_time_seconds", "request_inference_time_seconds"},
    {"request_prompt_tokens", "request_prompt_tokens"},
    {"request_generation_tokens", "request_generation_tokens"},
};

// vLLM calls a request that its client left an abort.
const char* finish_label(FinishReason reason) {
  return reason == FinishReason::kCancelled ? "abort" : finish_reason_name(reason);
}

// Metric families of values that exist elsewhere, built for each scrape.
class Snapshot {
 public:
  explicit Snapshot(std::string model_name) : model_name_(std::move(model_name)) {}

  using Labels = std::vector<ClientMetric::Label>;

  void gauge(const char* name, const char* help, auto value, Labels labels = {}) {
    add(name, help, MetricType::Gauge, std::move(labels)).gauge.value = static_cast<double>(value);
  }
  void counter(const char* name, const char* help, auto value, Labels labels = {}) {
    add(name, help, MetricType::Counter, std::move(labels)).counter.value = static_cast<double>(value);
  }
  // One counter a value, whose label is its place.
  void counters(const char* name, const char* help, const char* label, const auto& values) {
    for (size_t i = 0; i < values.size(); ++i) counter(name, help, values[i], {{label, std::to_string(i)}});
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type, Labels labels) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.label.push_back({"model_name", model_name_});
    families_.back().metric.push_back(std::move(metric));
    return families_.back().metric.back();
  }

  std::string model_name_;
  std::vector<MetricFamily> families_;
};

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

void add_requests(const EngineStats& stats, Snapshot& out) {
  out.gauge("volley:num_requests_running", "Requests that hold a slot.", stats.requests_running);
  out.gauge("volley:num_requests_waiting", "Requests in the queue.", stats.requests_waiting);
  out.counter("volley:num_preemptions_total", "Requests sent back to the queue: others got their pages or slots.",
              stats.preemptions);
  out.counter("volley:prompt_tokens_total", "Prompt tokens as they are computed, cached ones included.",
              stats.prompt_tokens);
  out.counter("volley:generation_tokens_total", "Tokens generated.", stats.generated_tokens);
  out.counter("volley:engine_steps_total", "Passes of the target model.", stats.steps);
  out.counter("volley:device_restarts_total", "Faults of the device that were mended by loading the models again.",
              stats.device_restarts);
}

double kv_usage(const EngineStats& stats) {
  double usage = ratio(stats.pages_used - stats.pages_cached, stats.pages_total);
  for (const EngineStats::PageGroup& group : stats.page_groups) {
    usage = std::max(usage, ratio(group.used - group.cached, group.total));
  }
  return usage;
}

// Replicas have names of their own, because the usual names have the sums, and adding up a family must not count twice.
void add_replicas(const std::vector<EngineStats>& replicas, Snapshot& out) {
  const auto gauge = [&](const char* name, const char* help, const auto& value) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      out.gauge(name, help, std::invoke(value, replicas[i]), {{"replica", std::to_string(i)}});
    }
  };
  const auto counter = [&](const char* name, const char* help, int64_t EngineStats::*value) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      out.counter(name, help, replicas[i].*value, {{"replica", std::to_string(i)}});
    }
  };
  using S = EngineStats;
  gauge("volley:replica_requests_running", "Requests that hold a slot.", &S::requests_running);
  gauge("volley:replica_requests_waiting", "Requests in the queue.", &S::requests_waiting);
  gauge("volley:replica_kv_cache_usage_perc", "Share of KV pages that requests hold.", kv_usage);
  counter("volley:replica_prompt_tokens_total", "Prompt tokens, cached ones included.", &S::prompt_tokens);
  counter("volley:replica_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", &S::cached_tokens);
  counter("volley:replica_generation_tokens_total", "Tokens generated.", &S::generated_tokens);
  counter("volley:replica_engine_steps_total", "Passes of the target model.", &S::steps);
  counter("volley:replica_num_preemptions_total", "Requests sent back to the queue: others got their pages or slots.",
          &S::preemptions);
  counter("volley:replica_device_restarts_total", "Faults of the device that were mended.", &S::device_restarts);
}

void add_cache(const EngineStats& stats, Snapshot& out) {
  out.gauge("volley:kv_cache_usage_perc",
            "Share of KV pages that requests hold, of the layers that have fewest left; 1 is all of them.",
            kv_usage(stats));
  const auto by_window = [&](const char* name, const char* help, int64_t EngineStats::PageGroup::*value) {
    for (const EngineStats::PageGroup& group : stats.page_groups) {
      out.gauge(name, help, group.*value, {{"window", std::to_string(group.window)}});
    }
  };
  by_window("volley:kv_pages", "KV pages, of layers with this sliding window (0: without).",
            &EngineStats::PageGroup::total);
  by_window("volley:kv_pages_used", "Of those, pages that requests or the prefix cache hold.",
            &EngineStats::PageGroup::used);
  by_window("volley:kv_bytes", "Memory of those pages.", &EngineStats::PageGroup::bytes);
  out.gauge("volley:state_bytes", "Memory of the states of recurrent layers, all slots together.", stats.state_bytes);
  const EngineStats::Snapshots& snapshots = stats.snapshots;
  out.gauge("volley:state_snapshots", "Snapshots of such states that are held.", snapshots.held);
  out.gauge("volley:state_snapshot_bytes", "Memory of those.", snapshots.bytes);
  const char* const hits = "volley:state_snapshot_hits_total";
  const char* const help = "Requests that began with a snapshot, taken from a prompt or at a request's end.";
  out.counter(hits, help, snapshots.prompt_hits, {{"kind", "prompt"}});
  out.counter(hits, help, snapshots.end_hits, {{"kind", "end"}});
  out.gauge("volley:grammar_memory_bytes", "Memory of compiled grammars, kept ones and those of running requests.",
            stats.grammar_bytes);
  out.gauge("volley:grammars_cached", "Compiled grammars that are kept.", stats.grammars_cached);
  out.counter("volley:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", stats.prompt_tokens);
  out.counter("volley:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", stats.cached_tokens);
}

// For routers that count pages: labels under vLLM's names.
void add_cache_config(const EngineInfo& info, Snapshot& out) {
  out.gauge("volley:cache_config_info", "Positions of a KV page, and how many pages there are, as labels.", 1,
            {{"block_size", std::to_string(info.page_size)}, {"num_gpu_blocks", std::to_string(info.kv_pages)}});
}

void add_cache_events(const CacheEventPublisher::Counts& counts, Snapshot& out) {
  out.counter("volley:kv_event_batches_total", "Batches of KV-cache events that were sent.", counts.batches);
  out.counter("volley:kv_event_batches_dropped_total", "Batches that found the queue full: subscribers see a gap.",
              counts.dropped);
  out.counter("volley:kv_event_batches_repeated_total", "Batches that were sent again.", counts.repeated);
}

void add_speculation(const EngineStats& stats, Snapshot& out) {
  const int64_t drafts = stats.drafted_at.empty() ? 0 : stats.drafted_at.front();
  out.counter("volley:spec_decode_num_drafts_total", "Blocks with at least one drafted token verified.", drafts);
  out.counter("volley:spec_decode_num_draft_tokens_total", "Drafted tokens verified.", stats.drafted_tokens);
  out.counter("volley:spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.", stats.accepted_tokens);
  out.counters("volley:spec_decode_num_accepted_tokens_per_pos_total",
               "Drafted tokens accepted, by place in the block.", "position", stats.accepted_at);
  out.counters("volley:spec_decode_num_draft_tokens_per_pos_total", "Drafted tokens verified, by place in the block.",
               "position", stats.drafted_at);
  out.counter("volley:verify_tokens_total", "Rows of the target in verify steps: the known token and the drafted ones.",
              stats.verify_steps + stats.drafted_tokens);
  const double bonus = stats.verify_steps > 0 ? 1.0 : 0.0;
  out.gauge("volley:spec_decode_acceptance_length",
            "Mean tokens of a verify step since the start, bonus token included.",
            bonus + ratio(stats.accepted_tokens, stats.verify_steps));
}

// Sums of counts and times; their rates compare predictions with measurements.
void add_verify_budget(const EngineStats::Verify& verify, Snapshot& out) {
  out.counter("volley:verify_steps_total", "Steps in which somebody decodes.", verify.steps);
  out.counter("volley:verify_plain_steps_total", "Of those, steps that drafted nothing.", verify.plain);
  out.counter("volley:verify_probes_total", "Of those, steps that drafted to learn whether it pays.", verify.probes);
  out.counters("volley:verify_draft_length_steps_total", "Of those, steps by tokens drafted for each request.",
               "tokens", verify.draft_lengths);
  using Drafter = EngineStats::Verify::Drafter;
  constexpr std::pair<const char*, int64_t Drafter::*> kOfDrafters[] = {
      {"volley:drafter_steps_total", &Drafter::steps},
      {"volley:drafter_draft_tokens_total", &Drafter::drafted_tokens},
      {"volley:drafter_accepted_tokens_total", &Drafter::accepted_tokens}};
  for (const auto& [name, count] : kOfDrafters) {
    for (size_t i = 0; verify.drafters.size() > 1 && i < verify.drafters.size(); ++i) {
      out.counter(name, "Of two drafters, in the order of --draft: steps, tokens verified, tokens accepted.",
                  verify.drafters[i].*count, {{"drafter", std::to_string(i + 1)}});
    }
  }
  out.counter("volley:verify_rows_total", "Rows of the target's passes for requests that decode.", verify.rows);
  out.counter("volley:verify_predicted_tokens_total", "Tokens that the verify budget expected of its steps.",
              verify.predicted_tokens);
  out.counter("volley:verify_predicted_seconds_total", "Time that it expected its steps to take.", verify.predicted_s);
  out.counter("volley:verify_measured_seconds_total", "Time that those steps took.", verify.measured_s);
  out.counters("volley:verify_predicted_survivals_total",
               "Blocks in which drafted tokens up to this place were predicted to survive (sum of chances).",
               "position", verify.predicted_at);
  out.counters("volley:verify_survivals_total", "Blocks in which drafted tokens up to this place did survive.",
               "position", verify.survived_at);
  out.counters("volley:verify_survival_blocks_total", "Blocks that verified this place, of those two counts.",
               "position", verify.verified_at);
}

void add_phases(const EngineStats& stats, Snapshot& out) {
  const std::pair<const char*, double> phases[] = {{"draft", stats.draft_s},
                                                   {"target", stats.target_s},
                                                   {"choose", stats.choose_s},
                                                   {"commit", stats.commit_s},
                                                   {"host", stats.host_s}};
  for (const auto& [phase, seconds] : phases) {
    out.counter("volley:round_phase_seconds_total", "Time by phase of the round.", seconds, {{"phase", phase}});
  }
  out.counter("volley:pictures_total", "Pictures whose vectors the vision tower has made.", stats.pictures);
  out.counter("volley:picture_cache_hits_total", "Pictures in prompts whose vectors were there or being made.",
              stats.picture_hits);
  out.counter("volley:vision_seconds_total", "Time of the device in the vision tower.", stats.vision_s);
  out.counter("volley:device_step_seconds_total", "Time of the device in steps.", stats.device_s);
  out.counter("volley:device_gap_seconds_total",
              "Time of the device between steps of which the next was there already.", stats.idle_s);
}

void add_vllm_names(std::vector<MetricFamily>& families) {
  const std::string prefix = "volley:";
  const size_t count = families.size();
  for (const auto& [ours, theirs] : kVllmNames) {
    for (size_t i = 0; i < count; ++i) {
      if (families[i].name != prefix + std::string(ours)) continue;
      MetricFamily family = families[i];
      family.name = "vllm:" + std::string(theirs);
      families.push_back(std::move(family));
    }
  }
}

}  // namespace

struct Metrics::State {
  explicit State(const std::string& name)
      : model_name(name),
        labels{{"model_name", name}},
        finished(prometheus::BuildCounter()
                     .Name("volley:request_success_total")
                     .Help("Requests ended, by reason.")
                     .Register(registry)),
        responses(prometheus::BuildCounter()
                      .Name("volley:http_requests_total")
                      .Help("HTTP responses, by path and status.")
                      .Register(registry)),
        connections(gauge("volley:http_connections", "Open client connections.")),
        body_bytes(gauge("volley:http_body_bytes", "Received of bodies that no endpoint has read yet.")),
        time_to_first_token(
            histogram("volley:time_to_first_token_seconds", "From submission to the first token.", latency_buckets())),
        time_per_output_token(histogram("volley:time_per_output_token_seconds",
                                        "Mean time of a token after the first, per request.", token_gap_buckets())),
        inter_token_latency(histogram("volley:inter_token_latency_seconds",
                                      "Between two deliveries of a request; with speculation one holds several tokens.",
                                      token_gap_buckets())),
        queue_time(
            histogram("volley:request_queue_time_seconds", "From submission to the first step.", latency_buckets())),
        end_to_end(histogram("volley:e2e_request_latency_seconds", "From submission to the end.", latency_buckets())),
        prefill_time(histogram("volley:request_prefill_time_seconds", "From the first step to the first token.",
                               latency_buckets())),
        decode_time(
            histogram("volley:request_decode_time_seconds", "From the first token to the end.", latency_buckets())),
        inference_time(
            histogram("volley:request_inference_time_seconds", "From the first step to the end.", latency_buckets())),
        prompt_tokens(histogram("volley:request_prompt_tokens", "Tokens of a prompt.", token_count_buckets())),
        generation_tokens(
            histogram("volley:request_generation_tokens", "Tokens generated for a request.", token_count_buckets())),
        acceptance_length(histogram("volley:request_acceptance_length",
                                    "Mean tokens of a request's verify steps, bonus token included.", block_buckets())),
        verify_tokens(histogram("volley:verify_tokens", "Rows of one request in a verify step.", block_buckets())) {
    // Every reason exists from the start, because the rate of a later counter misses its first increment.
    for (const FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kTimeout,
                                      FinishReason::kCancelled, FinishReason::kError}) {
      finished_by(reason);
    }
  }

  prometheus::Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }

  Histogram& histogram(const char* name, const char* help, const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels, buckets);
  }

  prometheus::Counter& finished_by(FinishReason reason) {
    return finished.Add({{"model_name", model_name}, {"finished_reason", finish_label(reason)}});
  }

  std::string model_name;
  prometheus::Labels labels;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& finished;
  prometheus::Family<prometheus::Counter>& responses;
  prometheus::Gauge& connections;
  prometheus::Gauge& body_bytes;
  Histogram& time_to_first_token;
  Histogram& time_per_output_token;
  Histogram& inter_token_latency;
  Histogram& queue_time;
  Histogram& end_to_end;
  Histogram& prefill_time;
  Histogram& decode_time;
  Histogram& inference_time;
  Histogram& prompt_tokens;
  Histogram& generation_tokens;
  Histogram& acceptance_length;
  Histogram& verify_tokens;
};

Metrics::Metrics(const std::string& model_name) : state_(std::make_unique<State>(model_name)) {}
Metrics::~Metrics() = default;

void Metrics::observe(const Event& event, std::optional<double> gap_s) {
  if (gap_s) {
    state_->inter_token_latency.Observe(*gap_s);
    state_->verify_tokens.Observe(event.drafted + 1);
  }
  if (!event.finish) return;
  const Usage& usage = event.finish->usage;
  state_->prompt_tokens.Observe(usage.prompt_tokens);
  state_->generation_tokens.Observe(usage.completion_tokens);
  state_->finished_by(event.finish->reason).Increment();
  state_->queue_time.Observe(usage.queue_s);
  if (usage.completion_tokens > 0) {
    state_->time_to_first_token.Observe(usage.ttft_s);
    state_->prefill_time.Observe(usage.ttft_s - usage.queue_s);
    state_->decode_time.Observe(usage.total_s - usage.ttft_s);
    state_->inference_time.Observe(usage.total_s - usage.queue_s);
  }
  if (const auto& steps = event.finish->tokens_per_step; !steps.empty()) {
    const auto tokens = std::accumulate(steps.begin(), steps.end(), int64_t{0});
    state_->acceptance_length.Observe(ratio(tokens, static_cast<int64_t>(steps.size())));
  }
  if (usage.completion_tokens > 1) {
    state_->time_per_output_token.Observe((usage.total_s - usage.ttft_s) / (usage.completion_tokens - 1));
  }
  state_->end_to_end.Observe(usage.total_s);
}

void Metrics::count_response(std::string_view path, int status) {
  state_->responses.Add({{"path", std::string(path)}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::count_connections(int change) {
  state_->connections.Increment(change);
}

void Metrics::count_body_bytes(int64_t change) {
  state_->body_bytes.Increment(static_cast<double>(change));
}

Metrics::OpenRequest::OpenRequest(std::shared_ptr<Metrics> metrics) : metrics_(std::move(metrics)) {
  metrics_->open_requests_.fetch_add(1);
}

Metrics::OpenRequest::~OpenRequest() {
  metrics_->open_requests_.fetch_sub(1);
}

Metrics::OpenChoice::OpenChoice(std::shared_ptr<const OpenRequest> request, int64_t prompt_tokens)
    : request_(std::move(request)) {
  request_->metrics_->open_choices_.fetch_add(1);
  add_tokens(prompt_tokens);
}

Metrics::OpenChoice::~OpenChoice() {
  request_->metrics_->open_choices_.fetch_sub(1);
  request_->metrics_->open_tokens_.fetch_sub(tokens_);
}

void Metrics::OpenChoice::add_tokens(int64_t count) {
  tokens_ += count;
  request_->metrics_->open_tokens_.fetch_add(count);
}

std::string Metrics::text(const EngineInfo& info, const EngineStats& stats, const OtherCounts& others) const {
  Snapshot snapshot(state_->model_name);
  add_requests(stats, snapshot);
  add_replicas(stats.replicas, snapshot);
  add_cache(stats, snapshot);
  add_cache_config(info, snapshot);
  if (others.cache_events) add_cache_events(*others.cache_events, snapshot);
  add_speculation(stats, snapshot);
  add_verify_budget(stats.verify, snapshot);
  add_phases(stats, snapshot);
  snapshot.counter("volley:log_lines_dropped_total", "Lines of the log that nobody took in time.",
                   static_cast<double>(others.dropped_log_lines));
  const struct mallinfo2 heap = ::mallinfo2();
  snapshot.gauge("volley:heap_bytes",
                 "Allocated memory of the host. Resident memory counts freed memory and code, too.",
                 heap.uordblks + heap.hblkhd);
  std::vector<MetricFamily> families = snapshot.take();
  std::vector<MetricFamily> own = state_->registry.Collect();
  families.insert(families.end(), std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
  add_vllm_names(families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace volley::serve
