// A client inside the process: it keeps requests open on an engine, joins their events, and times them. Threads: wake()
// on any; all else on the pool's.
#pragma once

#include <volley/engine.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/client/statistics.h"

namespace volley::apps {

// The complete result of one request.
struct Completion {
  int64_t index = 0;  // the submitter's number
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<Event::Mark> marks;  // in the whole text, for a request with GenerateRequest::parts
  std::string reasoning;           // see apps/generate/answer_parts.h
  std::vector<PositionLogprobs> logprobs;
  Finish finish;
};

class RequestPool {
 public:
  explicit RequestPool(Engine& engine);  // the engine must outlive the pool
  ~RequestPool();                        // cancels open requests, and waits for their last events

  // Starts a request. A refused one counts as failed, and has no completion. `stream`: its events also come one by one.
  Status submit(int64_t index, GenerateRequest request, bool stream = false);
  void count_refused();       // counts a request that could not be submitted
  int64_t open() const;       // requests that have not ended
  int64_t answering() const;  // open requests with a first token

  struct News {
    std::vector<Completion> done;  // in order of their ends
    std::vector<Event> streamed;   // for requests with `stream`, in order
  };
  // Returns what happened since the last call; waits up to `limit` for news or for wake().
  News wait(std::chrono::milliseconds limit);
  void wake();
  void cancel_all();
  RunSummary summary() const;

 private:
  struct State;

  Engine& engine_;
  std::shared_ptr<State> state_;  // shared with the sinks on the engine's thread
};

}  // namespace volley::apps
