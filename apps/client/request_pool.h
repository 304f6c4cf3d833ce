// A client inside the process: keeps requests open on an engine, puts their events together, and times them.
// Threads: wake() from any; everything else from the one thread that owns the pool.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/client/statistics.h"

namespace volley::apps {

// Everything that one request gave.
struct Completion {
  int64_t index = 0;  // the submitter's number
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<Event::Mark> marks;  // in the whole text, of a request with GenerateRequest::parts
  std::string reasoning;           // apps/generate/answer_parts.h
  std::vector<PositionLogprobs> logprobs;
  Finish finish;
};

class RequestPool {
 public:
  explicit RequestPool(Engine& engine);  // the engine must outlive the pool
  ~RequestPool();                        // cancels what is open, and waits for its last events

  // Starts a request. After an error there is nothing to wait for; it is counted as a failed request.
  // `stream`: its events are also handed out one by one.
  Status submit(int64_t index, GenerateRequest request, bool stream = false);
  void count_refused();       // a request that could not even be submitted
  int64_t open() const;       // submitted and not ended
  int64_t answering() const;  // of those, how many have their first token

  struct News {
    std::vector<Completion> done;  // in order of their ends
    std::vector<Event> streamed;   // of requests with `stream`, in order
  };
  // What happened since the last call; waits up to `limit` for something to happen or for wake().
  News wait(std::chrono::milliseconds limit);
  void wake();
  void cancel_all();
  RunSummary summary() const;

 private:
  struct State;

  Engine& engine_;
  std::shared_ptr<State> state_;  // shared with the sinks, which run on the engine's thread
};

}  // namespace volley::apps
