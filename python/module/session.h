// Requests of one Python call on their way through the engine. The engine's thread only touches what is here, never
// Python: no lock of the interpreter is taken, held or awaited by it.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace volley::python {

// Everything that one request gave.
struct Completion {
  int64_t index = 0;  // the caller's number
  std::vector<TokenId> tokens;
  std::string text;
  std::vector<PositionLogprobs> logprobs, prompt_logprobs;
  Finish finish;
};

// Threads: one at a time.
class Session {
 public:
  explicit Session(std::shared_ptr<Engine> engine);
  ~Session();  // cancels what is open and does not wait for it

  // The engine's error, if it refuses the request.
  Status submit(int64_t index, GenerateRequest request);
  int64_t open() const;  // submitted, and not handed out by wait() as ended
  // Those that have ended since the last call; waits up to `seconds` for the first.
  std::vector<Completion> wait(double seconds);
  void cancel();

 private:
  struct State;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<State> state_;  // shared with the sinks, which may outlive the session
  std::vector<RequestId> ids_;
  int64_t open_ = 0;
};

}  // namespace volley::python
