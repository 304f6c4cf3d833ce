// GET /metrics in Prometheus' text format: the engine's counters, read at each scrape, and this server's view of
// requests. All names begin with "volley:"; metrics that vLLM has are repeated as "vllm:…", so that its dashboards work
// unchanged. Any thread.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/events/cache_event_publisher.h"

namespace volley::serve {

// A server's load, for routers. A choice is open from submission to its last event, a request while one of its choices
// is. Tokens are those of open choices' prompts and outputs.
struct Load {
  int64_t requests = 0, choices = 0, tokens = 0;
};

// Counts that others keep since the start.
struct OtherCounts {
  int64_t dropped_log_lines = 0;
  std::optional<CacheEventPublisher::Counts> cache_events;  // nothing: no publisher
};

class Metrics {
 public:
  class OpenChoice;
  // A client's request, open during this object's life. Any thread.
  class OpenRequest {
   public:
    explicit OpenRequest(std::shared_ptr<Metrics> metrics);
    ~OpenRequest();
    OpenRequest(const OpenRequest&) = delete;
    OpenRequest& operator=(const OpenRequest&) = delete;

   private:
    friend class Metrics::OpenChoice;
    const std::shared_ptr<Metrics> metrics_;
  };
  // One of its choices, likewise. One thread at a time.
  class OpenChoice {
   public:
    OpenChoice(std::shared_ptr<const OpenRequest> request, int64_t prompt_tokens);
    ~OpenChoice();
    OpenChoice(const OpenChoice&) = delete;
    OpenChoice& operator=(const OpenChoice&) = delete;
    void add_tokens(int64_t count);

   private:
    const std::shared_ptr<const OpenRequest> request_;
    int64_t tokens_ = 0;
  };

  explicit Metrics(const std::string& model_name);
  ~Metrics();

  // Called on the engine's thread for each event. `gap_s`: since the request's previous event with tokens, if any.
  void observe(const Event& event, std::optional<double> gap_s);
  // `path` must come from a bounded set.
  void count_response(std::string_view path, int status);
  void count_connections(int change);
  void count_body_bytes(int64_t change);  // received in bodies that no endpoint has read yet

  Load load() const { return {open_requests_.load(), open_choices_.load(), open_tokens_.load()}; }

  std::string text(const EngineInfo& info, const EngineStats& stats, const OtherCounts& others = {}) const;

 private:
  std::atomic<int64_t> open_requests_{0}, open_choices_{0}, open_tokens_{0};
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::serve
