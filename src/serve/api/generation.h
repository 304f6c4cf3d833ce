// One API request while the engine works on it: its choices run, their news is turned into bytes for the client.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/metrics.h"
#include "serve/api/openai_response.h"
#include "serve/http/http.h"
#include "serve/http/mailbox.h"
#include "serve/json/errors.h"

namespace volley::serve {

class Generation {
 public:
  struct Plan {
    std::vector<GenerateRequest> choices;  // in the order of their indices
    ResponseInfo info;
    bool stream = false;
    std::optional<std::string> grammar_field;  // of the request: where its grammar came from
    size_t max_unsent_bytes = 0;               // of a stream
    size_t max_response_bytes = 0;             // of an answer that is held until its end
    MakeWriter make_writer;                    // null: as Chat Completions and Completions answer
    bool holds_answer = false;                 // its stream too ends with all of it
    HttpHeaders headers;                       // of the answer, beside those that all have
  };

  // Submits every choice. If the engine refuses one, the others are cancelled and the error comes back. `wake` runs on
  // the engine's thread when there may be something to take(). The engine must outlive the generation.
  static ApiResult<std::shared_ptr<Generation>> start(Engine& engine, std::shared_ptr<Metrics> metrics, Plan plan,
                                                      std::function<void()> wake);
  ~Generation();  // abandons

  struct Output {
    std::optional<HttpResponse> response;  // the whole answer: of a request without streaming, or that failed at once
    std::string events;                    // server-sent events to append to the stream
    bool done = false;                     // nothing will follow
    HttpHeaders headers = {};              // of the stream, with its first events
  };
  // What can be sent now; empty if there is nothing new. One thread at a time.
  Output take();

  // Counts the choices that have ended. The thread that takes.
  const UsageTotals& usage() const { return writer_->usage(); }
  // Why the client got an error instead of the rest of the answer, as in the error's "code"; empty: it did not. The
  // thread that takes.
  const std::string& failure() const { return failure_; }

  // False once the engine is done with every choice, or the client was cut off as too slow: what is left is to send.
  // The thread that takes.
  bool running() const;

  // Asks the engine to end all choices; the client still gets an answer. Any thread.
  void cancel();
  // The request has taken too long: what was generated so far and then an error is all that take() still gives. The
  // thread that takes.
  void expire();
  // The client is gone: cancels, and wake is never called again once this returns. Any thread.
  void abandon();

 private:
  Generation(Engine& engine, Plan& plan, std::function<void()> wake);

  void fail(const Finish& finish, Output& out);
  void fail_with(const ApiError& error, Output& out);

  Engine& engine_;
  std::shared_ptr<Mailbox> mailbox_;  // shared with the sinks, which outlive an abandoned generation
  std::vector<RequestId> ids_;        // constant once start() has returned
  std::unique_ptr<ResponseWriter> writer_;
  const bool stream_, holds_answer_;
  const HttpHeaders headers_;
  const size_t max_unsent_bytes_, max_response_bytes_;
  // Only the thread that takes uses these:
  size_t running_;
  size_t held_bytes_ = 0;    // of an answer that is held, about
  bool has_tokens_ = false;  // some choice has had one
  bool expired_ = false;
  bool begun_ = false;  // something of the stream was handed out
  bool done_ = false;
  std::string failure_;
};

}  // namespace volley::serve
