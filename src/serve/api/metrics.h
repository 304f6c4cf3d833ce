// What GET /metrics shows, in the text format of Prometheus: the engine's own counters, read at each scrape, and what
// this server sees of each request. Everything is named "volley:…"; what vLLM has too is there a second time under its
// name, "vllm:…", so that dashboards made for it work unchanged. Any thread.
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

// What a router weighs a server by. A choice is open from its submission to its last event, a client's request for as
// long as one of its choices is. The tokens are those of the open choices' prompts and what they have produced.
struct Load {
  int64_t requests = 0, choices = 0, tokens = 0;
};

// What others have counted since the start.
struct OtherCounts {
  int64_t dropped_log_lines = 0;
  std::optional<CacheEventPublisher::Counts> cache_events;  // nothing: there is no publisher
};

class Metrics {
 public:
  class OpenChoice;
  // One request of a client, open for as long as this lives. Any thread.
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

  // On the engine's thread, for each event. `gap_s`: seconds since the request's previous event with tokens, if any.
  void observe(const Event& event, std::optional<double> gap_s);
  // `path` must come from a bounded set.
  void count_response(std::string_view path, int status);
  void count_connections(int change);
  void count_body_bytes(int64_t change);  // received of bodies that no endpoint has read yet

  Load load() const { return {open_requests_.load(), open_choices_.load(), open_tokens_.load()}; }

  std::string text(const EngineInfo& info, const EngineStats& stats, const OtherCounts& others = {}) const;

 private:
  std::atomic<int64_t> open_requests_{0}, open_choices_{0}, open_tokens_{0};
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::serve
