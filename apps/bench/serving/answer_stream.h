// What one streamed answer was and when its parts came. Pure: the clock is the caller's. Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/client/event_lines.h"

namespace volley::apps {

struct AnswerRecord {
  size_t sample = 0;          // the caller's number
  std::string error;          // empty: the answer is whole
  std::string text;           // reasoning and arguments of tool calls included
  double ttft_s = 0;          // from the request to the first text
  double last_s = 0;          // to the last text
  double e2e_s = 0;           // to the end of the response
  std::vector<float> gaps_s;  // between pieces of text that follow each other
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  std::optional<int64_t> accepted_tokens, rejected_tokens;  // of drafts, where the endpoint tells
  std::optional<int64_t> verify_steps;                      // the same
};

// Server-sent events of OpenAI's two generation endpoints, in pieces as they arrive.
class AnswerStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  AnswerStream(size_t sample, Time sent) : sent_(sent) { record_.sample = sample; }

  void read(std::string_view bytes, Time now);
  // `failure`: of the connection; empty: none. What makes an answer incomplete: a failure, a status that is not 200, an
  // error event, no [DONE], no usage.
  AnswerRecord end(int status, const std::string& failure, Time now);

 private:
  void event(std::string_view data, Time now);
  void text(const std::string& piece, Time now);

  const Time sent_;
  AnswerRecord record_;
  EventLines lines_;
  std::string head_;  // the response's first bytes: what an error says
  Time last_text_{};
  bool done_ = false, usage_ = false;
};

}  // namespace volley::apps
