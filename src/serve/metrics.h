// What GET /metrics shows, in the text format of Prometheus: the engine's own counters, read at each scrape, and what
// this server sees of each request. Everything is named "volley:…"; what vLLM has too is there a second time under its
// name, "vllm:…", so that dashboards made for it work unchanged. Any thread.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  // On the engine's thread, for each event. `gap_s`: seconds since the request's previous event with tokens, if any.
  void observe(const Event& event, std::optional<double> gap_s);
  // `path` must come from a bounded set.
  void count_response(std::string_view path, int status);
  void count_connections(int change);
  void count_body_bytes(int64_t change);  // received of bodies that no endpoint has read yet

  // `dropped_log_lines`: since the start.
  std::string text(const EngineStats& stats, int64_t dropped_log_lines = 0) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::serve
