// Protects the names and values that dashboards read.
#include "serve/metrics.h"

#include <gtest/gtest.h>

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
  stats.draft_s = 1.5;
  return stats;
}

void expect_line(const std::string& text, const std::string& line) {
  EXPECT_NE(("\n" + text).find("\n" + line + "\n"), std::string::npos) << "no line: " << line << "\nin:\n" << text;
}

TEST(Metrics, ShowsTheEnginesCounters) {
  Metrics metrics("pocket");
  const std::string text = metrics.text(sample_stats());
  const std::string model = "{model_name=\"pocket\"} ";
  expect_line(text, "volley:num_requests_running" + model + "3");
  expect_line(text, "volley:num_requests_waiting" + model + "5");
  expect_line(text, "volley:num_preemptions_total" + model + "2");
  expect_line(text, "volley:kv_cache_usage_perc" + model + "0.5");
  expect_line(text, "volley:prompt_tokens_total" + model + "1000");
  expect_line(text, "volley:generation_tokens_total" + model + "480");
  expect_line(text, "volley:prefix_cache_queries_total" + model + "1000");
  expect_line(text, "volley:prefix_cache_hits_total" + model + "250");
  expect_line(text, "volley:spec_decode_num_drafts_total" + model + "100");
  expect_line(text, "volley:spec_decode_num_draft_tokens_total" + model + "700");
  expect_line(text, "volley:spec_decode_num_accepted_tokens_total" + model + "380");
  expect_line(text, "volley:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\",model_name=\"pocket\"} 80");
  expect_line(text, "volley:spec_decode_acceptance_length" + model + "4.8");
  expect_line(text, "volley:round_phase_seconds_total{phase=\"draft\",model_name=\"pocket\"} 1.5");
  expect_line(text, "# TYPE volley:num_requests_running gauge");
  expect_line(text, "# TYPE volley:prompt_tokens_total counter");
}

TEST(Metrics, AnIdleEngineDividesByNothing) {
  const std::string text = Metrics("m").text(EngineStats{});
  expect_line(text, "volley:kv_cache_usage_perc{model_name=\"m\"} 0");
  expect_line(text, "volley:spec_decode_acceptance_length{model_name=\"m\"} 0");
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(text.find("Nan"), std::string::npos);
}

TEST(Metrics, CountsEndsByReasonFromZero) {
  Metrics metrics("m");
  const auto line = [](const char* reason, int count) {
    return std::string("volley:request_success_total{finished_reason=\"") + reason + "\",model_name=\"m\"} " +
           std::to_string(count);
  };
  expect_line(metrics.text({}), line("abort", 0));
  Event event;
  event.finish.emplace().reason = FinishReason::kCancelled;
  metrics.observe(event, std::nullopt);
  event.finish->reason = FinishReason::kLength;
  metrics.observe(event, std::nullopt);
  metrics.observe(event, std::nullopt);
  const std::string text = metrics.text({});
  expect_line(text, line("abort", 1));
  expect_line(text, line("length", 2));
  expect_line(text, line("stop", 0));
  expect_line(text, line("error", 0));
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
  const std::string text = metrics.text({});
  expect_line(text, "volley:inter_token_latency_seconds_count{model_name=\"m\"} 2");
  expect_line(text, "volley:time_to_first_token_seconds_sum{model_name=\"m\"} 1");
  expect_line(text, "volley:time_per_output_token_seconds_sum{model_name=\"m\"} 0.2");
  expect_line(text, "volley:request_queue_time_seconds_sum{model_name=\"m\"} 0.5");
  expect_line(text, "volley:e2e_request_latency_seconds_sum{model_name=\"m\"} 3");
}

TEST(Metrics, CountsHttp) {
  Metrics metrics("m");
  metrics.count_response("/health", 200);
  metrics.count_response("/health", 200);
  metrics.count_response("other", 404);
  metrics.count_connections(2);
  metrics.count_connections(-1);
  const std::string text = metrics.text({});
  expect_line(text, "volley:http_requests_total{path=\"/health\",status=\"200\"} 2");
  expect_line(text, "volley:http_requests_total{path=\"other\",status=\"404\"} 1");
  expect_line(text, "volley:http_connections 1");
}

}  // namespace
}  // namespace volley::serve
