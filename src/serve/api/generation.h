// One API request during its generation: its choices run, and their news become bytes for the client.
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
    std::optional<std::string> grammar_field;  // the request's field with the grammar
    size_t max_unsent_bytes = 0;               // bound for a stream
    size_t max_response_bytes = 0;             // bound for an answer that is held until its end
    MakeWriter make_writer;                    // null: Chat Completions' and Completions' writers
    bool holds_answer = false;                 // even its stream ends with the whole answer
    HttpHeaders headers;                       // the answer's, beside common headers
  };

  // Submits every choice. If the engine refuses one, the others are cancelled and the error is returned. `wake` runs on
  // the engine's thread when take() may have news. The engine must outlive the generation.
  static ApiResult<std::shared_ptr<Generation>> start(Engine& engine, std::shared_ptr<Metrics> metrics, Plan plan,
                                                      std::function<void()> wake);
  ~Generation();  // abandons

  struct Output {
    std::optional<HttpResponse> response;  // the whole answer, without streaming or after an early failure
    std::string events;                    // server-sent events to append to the stream
    bool done = false;                     // no output follows
    HttpHeaders headers = {};              // the stream's, with its first events
  };
  // Returns what can be sent now; may be empty. One thread at a time.
  Output take();

  // Usage of choices that have ended. Thread: take()'s.
  const UsageTotals& usage() const { return writer_->usage(); }
  // The error's "code" if an error replaced the rest of the answer; else empty. Thread: take()'s.
  const std::string& failure() const { return failure_; }

  // False once the engine has finished every choice, or a slow client was cut off: only sending is left. Thread:
  // take()'s.
  bool running() const;

  // Asks the engine to end all choices; the client still gets an answer. Any thread.
  void cancel();
  // Ends a request that has taken too long: take() then gives the text so far and an error. Thread: take()'s.
  void expire();
  // Ends a request whose client is gone: cancels, and never calls wake after returning. Any thread.
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
  // Only take()'s thread uses these:
  size_t running_;
  size_t held_bytes_ = 0;    // estimate for a held answer
  bool has_tokens_ = false;  // a choice has produced tokens
  bool expired_ = false;
  bool begun_ = false;  // a part of the stream was handed out
  bool done_ = false;
  std::string failure_;
};

}  // namespace volley::serve
