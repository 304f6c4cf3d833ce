// Requests of one Python call on their way through the engine. The engine's thread only touches what is here, never
// Python: no lock of the interpreter is taken, held or awaited by it.
#pragma once

#include <unistd.h>
#include <volley/engine.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace volley::python {

// What a request gave: everything, or in a streaming session what one of its events brought.
struct Completion {
  int64_t index = 0;   // the caller's number
  bool ended = false;  // of a stream: this was its last event, and `finish` is set
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<Event::Mark> marks;  // in `text`, of a request with GenerateRequest::parts
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
  Finish finish;
};

// Threads: one at a time. In a process that was forked nothing is open, and nothing can be cancelled.
class Session {
 public:
  // streaming: every event becomes a Completion of its own. The numbers of requests that are open must differ.
  Session(std::shared_ptr<Engine> engine, bool streaming);
  ~Session();  // cancels what is open and does not wait for it

  // The engine's error, if it refuses the request.
  Status submit(int64_t index, GenerateRequest request);
  int64_t open() const;  // submitted, and not handed out by wait() as ended
  // What has come since the last call; waits up to `seconds` for the first.
  std::vector<Completion> wait(double seconds);
  // Readable while wait() has something, for event loops; the session's own. -1 without streaming.
  int descriptor() const;
  void cancel();
  void cancel(int64_t index);  // that one alone, if it is open

 private:
  struct State;

  bool forked() const { return getpid() != process_; }

  const pid_t process_ = getpid();
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<State> state_;       // shared with the sinks, which may outlive the session
  std::map<int64_t, RequestId> open_;  // by the caller's numbers
};

}  // namespace volley::python
