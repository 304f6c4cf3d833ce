// Turns events into response bodies: one JSON object at the end, or server-sent events as the text grows. Pure: no
// clock, no sockets. One thread at a time.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "serve/json/errors.h"
#include "serve/responses/response_info.h"

namespace volley::serve {

// Sums over a response's choices. A prompt counts once for all its choices.
class UsageTotals {
 public:
  explicit UsageTotals(int n) : n_(n) {}
  // reasoning_tokens: the thoughts among usage.completion_tokens.
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

// Takes events of running or finished choices; the caller handles failures.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Returns server-sent events to send now; may be empty.
  virtual std::string add(int choice, const Event& event) = 0;
  // Call after the last event of every choice. Returns the rest, or the whole body.
  virtual std::string end() = 0;
  // Ends a stream that cannot go on, and tells its client. The last call, except usage().
  virtual std::string fail(const ApiError& error) = 0;
  // Usage of choices that have ended.
  virtual const UsageTotals& usage() const = 0;
};

using MakeWriter = std::function<std::unique_ptr<ResponseWriter>(ResponseInfo info, int choices, bool stream)>;

std::unique_ptr<ResponseWriter> whole_response_writer(ResponseInfo info, int choices);
std::unique_ptr<ResponseWriter> stream_response_writer(ResponseInfo info, int choices);

}  // namespace volley::serve
