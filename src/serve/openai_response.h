// Events in, response bodies out: one JSON object at the end, or server-sent events as the text grows. Pure: no clock,
// no sockets. One thread at a time.
#pragma once

#include <volley/engine.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "serve/errors.h"
#include "serve/openai_request.h"

namespace volley::serve {

using TokenText = std::function<std::string(TokenId)>;  // a token by itself, special tokens included

struct ResponseInfo {
  ApiKind kind = ApiKind::kChat;
  std::string id;       // "chatcmpl-…", "cmpl-…"
  std::string model;    // as the client named it
  int64_t created = 0;  // Unix seconds
  int n = 1;            // choices of each prompt: choice index = prompt × n + j
  bool logprobs = false;
  bool include_usage = false;     // of streams: a last chunk with the usage
  std::vector<std::string> echo;  // each prompt's text, before each of its choices; empty: no echo
  TokenText token_text;           // with logprobs
};

// Sums over the choices of a response. A prompt counts once, however many choices it has.
class UsageTotals {
 public:
  explicit UsageTotals(int n) : n_(n) {}
  void add(int choice, const Usage& usage);
  nlohmann::ordered_json json() const;

 private:
  int n_;
  int64_t prompt_ = 0, cached_ = 0, completion_ = 0, drafted_ = 0, accepted_ = 0;
};

// Writes the log-probabilities of one choice in the schema of its endpoint.
class LogprobsWriter {
 public:
  // Appends to `out`, which is null or what an earlier call left there.
  void add_chat(const Event& event, const TokenText& token_text, nlohmann::ordered_json& out);
  void add_completion(const Event& event, const TokenText& token_text, nlohmann::ordered_json& out);

 private:
  size_t offset_ = 0;  // code points before the next token: "text_offset"
};

// The events given to a writer must be those of finished or running choices: failures are the caller's.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Returns what can be sent now: server-sent events, or nothing.
  virtual std::string add(int choice, const Event& event) = 0;
  // After the last event of every choice: the rest, or the whole body.
  virtual std::string end() = 0;
};

std::unique_ptr<ResponseWriter> whole_response_writer(ResponseInfo info, int choices);
std::unique_ptr<ResponseWriter> stream_response_writer(ResponseInfo info, int choices);

// A stream that fails after it began: the error object and the end marker.
std::string stream_error(const ApiError& error);

}  // namespace volley::serve
