// Events in, response bodies out: one JSON object at the end, or server-sent events as the text grows. Pure: no clock,
// no sockets. One thread at a time.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/json/errors.h"
#include "serve/responses/response_info.h"

namespace volley::serve {

// Sums over the choices of a response. A prompt counts once, however many choices it has.
class UsageTotals {
 public:
  explicit UsageTotals(int n) : n_(n) {}
  // reasoning_tokens: of usage.completion_tokens, those that were thought.
  void add(int choice, const Usage& usage, int64_t reasoning_tokens);
  nlohmann::ordered_json json() const;

  int64_t prompt_tokens() const { return prompt_; }
  int64_t cached_tokens() const { return cached_; }
  int64_t completion_tokens() const { return completion_; }
  int64_t reasoning_tokens() const { return reasoning_; }

 private:
  int n_;
  int64_t prompt_ = 0, cached_ = 0, completion_ = 0, reasoning_ = 0, drafted_ = 0, accepted_ = 0;
};

// The events given to a writer must be those of finished or running choices: failures are the caller's.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Returns what can be sent now: server-sent events, or nothing.
  virtual std::string add(int choice, const Event& event) = 0;
  // After the last event of every choice: the rest, or the whole body.
  virtual std::string end() = 0;
  // A stream that has begun cannot go on: what tells its client so, and ends it. Last; usage() may still be asked for.
  virtual std::string fail(const ApiError& error) = 0;
  // Counts the choices that have ended.
  virtual const UsageTotals& usage() const = 0;
};

// Makes the writer of an answer: of a stream, or of a whole one.
using MakeWriter = std::function<std::unique_ptr<ResponseWriter>(ResponseInfo info, int choices, bool stream)>;

std::unique_ptr<ResponseWriter> whole_response_writer(ResponseInfo info, int choices);
std::unique_ptr<ResponseWriter> stream_response_writer(ResponseInfo info, int choices);

}  // namespace volley::serve
