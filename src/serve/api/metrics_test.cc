// Protects names and values that dashboards read.
#include "serve/api/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace volley::serve {
namespace {

EngineStats sample_stats() {
  EngineStats stats;
  stats.requests_running = 3;
  stats.requests_waiting = 5;
  stats.preemptions = 2;
  stats.steps = 40;
  stats.verify_steps = 100;
  stats.prompt_tokens = 1000;
  stats.cached_tokens = 250;
  stats.generated_tokens = 480;
  stats.drafted_tokens = 700;
  stats.accepted_tokens = 380;
  stats.drafted_at = {100, 99};
  stats.accepted_at = {90, 80};
  stats.pages_total = 200;
  stats.pages_used = 150;
  stats.pages_cached = 50;
  stats.page_groups = {{0, 200, 150, 50, 4000}, {512, 40, 30, 6, 900}};
  stats.draft_s = 1.5;
  stats.device_s = 2.5;
  stats.idle_s = 0.25;
  stats.verify.steps = 38;
  stats.verify.plain = 4;
  stats.verify.probes = 1;
  stats.verify.draft_lengths = {4, 0, 34};
  stats.verify.drafters = {{20, 60, 30}, {14, 28, 25}};
  stats.verify.rows = 790;
  stats.verify.predicted_tokens = 470.5;
  stats.verify.predicted_s = 2.25;
  stats.verify.measured_s = 2.375;
  stats.verify.verified_at = {100, 99};
  stats.verify.survived_at = {90, 80};
  stats.verify.predicted_at = {89.5, 81};
  return stats;
}

// Checks that the text has each of these lines.
void expect_lines(const std::string& text, const std::string& lines) {
  std::istringstream all(lines);
  for (std::string line; std::getline(all, line);) {
    EXPECT_NE(("\n" + text).find("\n" + line + "\n"), std::string::npos) << "no line: " << line << "\nin:\n" << text;
  }
}

TEST(Metrics, ShowsTheEnginesCounters) {
  Metrics metrics("pocket");
  const std::string text = metrics.text({}, sample_stats());
  expect_lines(text, R"(volley:num_requests_running{model_name="pocket"} 3
volley:num_requests_waiting{model_name="pocket"} 5
volley:num_preemptions_total{model_name="pocket"} 2
volley:kv_cache_usage_perc{model_name="pocket"} 0.6
volley:kv_pages{window="512",model_name="pocket"} 40
volley:kv_pages_used{window="0",model_name="pocket"} 150
volley:kv_bytes{window="512",model_name="pocket"} 900
volley:prompt_tokens_total{model_name="pocket"} 1000
volley:generation_tokens_total{model_name="pocket"} 480
volley:prefix_cache_queries_total{model_name="pocket"} 1000
volley:prefix_cache_hits_total{model_name="pocket"} 250
volley:spec_decode_num_drafts_total{model_name="pocket"} 100
volley:spec_decode_num_draft_tokens_total{model_name="pocket"} 700
volley:spec_decode_num_accepted_tokens_total{model_name="pocket"} 380
volley:spec_decode_num_accepted_tokens_per_pos_total{position="1",model_name="pocket"} 80
volley:spec_decode_acceptance_length{model_name="pocket"} 4.8
volley:round_phase_seconds_total{phase="draft",model_name="pocket"} 1.5
volley:pictures_total{model_name="pocket"} 0
volley:device_step_seconds_total{model_name="pocket"} 2.5
volley:device_gap_seconds_total{model_name="pocket"} 0.25
# TYPE volley:num_requests_running gauge
# TYPE volley:prompt_tokens_total counter)");
}

// The usual names have the sums, once.
TEST(Metrics, ShowsEachReplica) {
  EngineStats stats = sample_stats();
  EngineStats one;
  one.requests_running = 1;
  one.pages_total = 100;
  one.pages_used = 30;
  one.pages_cached = 5;
  EngineStats other;
  other.requests_running = 2;
  other.cached_tokens = 250;
  other.device_restarts = 1;
  stats.replicas = {one, other};
  Metrics metrics("pocket");
  const std::string text = metrics.text({}, stats);
  const auto labels = [](int replica) {
    return "{replica=\"" + std::to_string(replica) + "\",model_name=\"pocket\"} ";
  };
  expect_lines(text, R"(volley:num_requests_running{model_name="pocket"} 3)");
  expect_lines(text, "volley:replica_requests_running" + labels(0) + "1");
  expect_lines(text, "volley:replica_requests_running" + labels(1) + "2");
  expect_lines(text, "volley:replica_kv_cache_usage_perc" + labels(0) + "0.25");
  expect_lines(text, "volley:replica_prefix_cache_hits_total" + labels(1) + "250");
  expect_lines(text, "volley:replica_device_restarts_total" + labels(1) + "1");
  EXPECT_EQ(metrics.text({}, sample_stats()).find("volley:replica_"), std::string::npos) << "one replica is no part";
}

TEST(Metrics, ShowsWhatTheVerifyBudgetChose) {
  const std::string text = Metrics("pocket").text({}, sample_stats());
  expect_lines(text, R"(volley:verify_steps_total{model_name="pocket"} 38
volley:verify_plain_steps_total{model_name="pocket"} 4
volley:verify_probes_total{model_name="pocket"} 1
volley:verify_draft_length_steps_total{tokens="2",model_name="pocket"} 34
volley:drafter_steps_total{drafter="1",model_name="pocket"} 20
volley:drafter_draft_tokens_total{drafter="2",model_name="pocket"} 28
volley:drafter_accepted_tokens_total{drafter="2",model_name="pocket"} 25
volley:verify_rows_total{model_name="pocket"} 790
volley:verify_predicted_tokens_total{model_name="pocket"} 470.5
volley:verify_predicted_seconds_total{model_name="pocket"} 2.25
volley:verify_measured_seconds_total{model_name="pocket"} 2.375
volley:verify_predicted_survivals_total{position="0",model_name="pocket"} 89.5
volley:verify_survivals_total{position="1",model_name="pocket"} 80
volley:verify_survival_blocks_total{position="1",model_name="pocket"} 99)");
}

// Dashboards for vLLM read these names.
TEST(Metrics, HasVllmsNamesToo) {
  Metrics metrics("pocket");
  Event event;
  event.drafted = 7;
  metrics.observe(event, 0.02);
  Finish& finish = event.finish.emplace();
  finish.tokens_per_step = {4, 5};
  finish.usage.prompt_tokens = 30;
  finish.usage.completion_tokens = 10;
  finish.usage.queue_s = 0.5;
  finish.usage.ttft_s = 1;
  finish.usage.total_s = 3;
  metrics.observe(event, std::nullopt);
  const std::string text = metrics.text({}, sample_stats());
  expect_lines(text, R"(vllm:num_requests_running{model_name="pocket"} 3
vllm:kv_cache_usage_perc{model_name="pocket"} 0.6
vllm:prompt_tokens_total{model_name="pocket"} 1000
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0",model_name="pocket"} 90
vllm:time_to_first_token_seconds_sum{model_name="pocket"} 1
vllm:request_prefill_time_seconds_sum{model_name="pocket"} 0.5
vllm:request_decode_time_seconds_sum{model_name="pocket"} 2
vllm:request_prompt_tokens_sum{model_name="pocket"} 30
vllm:request_generation_tokens_sum{model_name="pocket"} 10
vllm:request_success_total{finished_reason="stop",model_name="pocket"} 1
volley:request_acceptance_length_sum{model_name="pocket"} 4.5
volley:verify_tokens_sum{model_name="pocket"} 8
volley:verify_tokens_total{model_name="pocket"} 800)");
  EXPECT_EQ(text.find("vllm:http"), std::string::npos) << "only what vLLM has";
}

TEST(Metrics, TheDashboardAsksForNothingElse) {
  Metrics metrics("m");
  metrics.count_response("/health", 200);
  const std::string text = metrics.text({}, sample_stats());
  std::ifstream file("deploy/grafana/volley.json");
  ASSERT_TRUE(file);
  const std::string dashboard{std::istreambuf_iterator<char>(file), {}};
  const std::regex name("volley:[a-z0-9_]+");
  std::set<std::string> names;
  for (std::sregex_iterator it(dashboard.begin(), dashboard.end(), name), end; it != end; ++it) names.insert(it->str());
  EXPECT_GT(names.size(), 20u);
  for (const std::string& asked : names) EXPECT_NE(text.find("\n" + asked + "{"), std::string::npos) << asked;
}

TEST(Metrics, AnIdleEngineDividesByNothing) {
  const std::string text = Metrics("m").text({}, {});
  expect_lines(text, R"(volley:kv_cache_usage_perc{model_name="m"} 0
volley:spec_decode_acceptance_length{model_name="m"} 0)");
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("Nan"), std::string::npos);
}

TEST(Metrics, CountsEndsByReasonFromZero) {
  Metrics metrics("m");
  const auto line = [](const char* reason, int count) {
    return std::string("volley:request_success_total{finished_reason=\"") + reason + "\",model_name=\"m\"} " +
           std::to_string(count);
  };
  for (const char* reason : {"abort", "length", "stop", "timeout", "error"}) {
    expect_lines(metrics.text({}, {}), line(reason, 0));
  }
  Event event;
  event.finish.emplace().reason = FinishReason::kCancelled;
  metrics.observe(event, std::nullopt);
  event.finish->reason = FinishReason::kLength;
  metrics.observe(event, std::nullopt);
  metrics.observe(event, std::nullopt);
  const std::string text = metrics.text({}, {});
  expect_lines(text, line("abort", 1));
  expect_lines(text, line("length", 2));
  expect_lines(text, line("stop", 0));
  expect_lines(text, line("error", 0));
}

TEST(Metrics, ObservesLatencies) {
  Metrics metrics("m");
  Event event;
  metrics.observe(event, 0.02);
  Finish& finish = event.finish.emplace();
  finish.usage.completion_tokens = 11;
  finish.usage.queue_s = 0.5;
  finish.usage.ttft_s = 1.0;
  finish.usage.total_s = 3.0;
  metrics.observe(event, 0.04);
  const std::string text = metrics.text({}, {});
  expect_lines(text, R"(volley:inter_token_latency_seconds_count{model_name="m"} 2
volley:time_to_first_token_seconds_sum{model_name="m"} 1
volley:time_per_output_token_seconds_sum{model_name="m"} 0.2
volley:request_queue_time_seconds_sum{model_name="m"} 0.5
volley:e2e_request_latency_seconds_sum{model_name="m"} 3)");
}

// llm-d and vLLM's production stack read these names.
TEST(Metrics, HasWhatRoutersRead) {
  Metrics metrics("pocket");
  EngineInfo info;
  info.page_size = 16;
  info.kv_pages = 200;
  const std::string text = metrics.text(info, sample_stats());
  expect_lines(text, R"(vllm:num_requests_running{model_name="pocket"} 3
vllm:num_requests_waiting{model_name="pocket"} 5
vllm:kv_cache_usage_perc{model_name="pocket"} 0.6
vllm:gpu_cache_usage_perc{model_name="pocket"} 0.6
vllm:gpu_prefix_cache_queries_total{model_name="pocket"} 1000
vllm:gpu_prefix_cache_hits_total{model_name="pocket"} 250
vllm:cache_config_info{block_size="16",num_gpu_blocks="200",model_name="pocket"} 1)");
}

TEST(Metrics, ShowsWhatBecameOfCacheEvents) {
  Metrics metrics("m");
  EXPECT_EQ(metrics.text({}, {}).find("kv_event"), std::string::npos) << "there is no publisher";
  const std::string text = metrics.text({}, {}, {0, CacheEventPublisher::Counts{7, 2, 5}});
  expect_lines(text, R"(volley:kv_event_batches_total{model_name="m"} 7
volley:kv_event_batches_dropped_total{model_name="m"} 2
volley:kv_event_batches_repeated_total{model_name="m"} 5)");
}

TEST(Metrics, OpenRequestsAreTheLoad) {
  const auto metrics = std::make_shared<Metrics>("m");
  auto request = std::make_shared<const Metrics::OpenRequest>(metrics);
  auto first = std::make_unique<Metrics::OpenChoice>(request, 100);
  auto second = std::make_unique<Metrics::OpenChoice>(std::exchange(request, nullptr), 7);
  first->add_tokens(16);
  EXPECT_EQ(metrics->load().requests, 1);
  EXPECT_EQ(metrics->load().choices, 2);
  EXPECT_EQ(metrics->load().tokens, 123);
  first.reset();
  EXPECT_EQ(metrics->load().requests, 1);
  EXPECT_EQ(metrics->load().choices, 1);
  EXPECT_EQ(metrics->load().tokens, 7);
  second.reset();
  EXPECT_EQ(metrics->load().requests, 0);
}

TEST(Metrics, CountsHttp) {
  Metrics metrics("m");
  metrics.count_response("/health", 200);
  metrics.count_response("/health", 200);
  metrics.count_response("other", 404);
  metrics.count_connections(2);
  metrics.count_connections(-1);
  const std::string text = metrics.text({}, {});
  expect_lines(text, R"(volley:http_requests_total{path="/health",status="200"} 2
volley:http_requests_total{path="other",status="404"} 1
volley:http_connections 1)");
}

TEST(Metrics, HeapBytesAreWhatIsAllocated) {
  const Metrics metrics("m");
  const auto heap_bytes = [&] {
    const std::string text = metrics.text({}, {}), name = "volley:heap_bytes{model_name=\"m\"} ";
    return std::stod(text.substr(text.find(name) + name.size()));
  };
  if (heap_bytes() == 0) GTEST_SKIP() << "a sanitizer's malloc has no statistics";
  constexpr double kSmall = 1 << 14, kLarge = 1 << 20;  // in a heap; at first a mapping of its own
  for (const double size : {kSmall, kLarge}) {
    const double before = heap_bytes();
    std::vector<std::string> pieces(16, std::string(static_cast<size_t>(size), 'x'));
    EXPECT_NEAR(heap_bytes() - before, 16 * size, size);
    pieces = {};
    EXPECT_NEAR(heap_bytes(), before, size);
  }
}

}  // namespace
}  // namespace volley::serve
