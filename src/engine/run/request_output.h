// What a request has produced, and how it becomes events: text, stop strings, usage. The host's half of a round.
#pragma once

#include <volley/engine.h>

#include <chrono>

#include "decode/round.h"
#include "engine/run/token_rules.h"
#include "text/text.h"

namespace volley::engine {

// The last ids of the prompt, where the text goes on with that of the prompt: a request says so by parts without marks,
// which are one part that the prompt has begun. Else none.
std::vector<TokenId> text_context(const GenerateRequest& request);

class RequestOutput {
 public:
  using Clock = std::chrono::steady_clock;

  struct Rules {
    std::vector<std::string> stop;
    // A stop string that ends within the text of the first so many tokens is text like any other; no repetition ends
    // the request there.
    int32_t min_tokens = 0;
    bool skip_special_tokens = true;
    std::optional<TextParts> parts = {};
    std::optional<RepetitionDetection> repetition = {};
    std::vector<TokenId> context = {};  // text_context()
  };

  RequestOutput(RequestId id, EventSink sink, std::shared_ptr<const text::Tokenizer> tokenizer, Rules rules,
                int32_t prompt_tokens, Clock::time_point submitted);

  // It got a slot. True the first time; after a preemption nothing changes.
  bool scheduled(int32_t cached_tokens, Clock::time_point now);

  // Takes in what a step committed and sends an event. `decoded`: a verify step (not the prompt's last chunk);
  // `complete`: its grammar ends the request after these tokens (there may be none). Shortens result.tokens where a
  // stop string or a repetition cut them. Returns true when the request ended; the last event has then been sent.
  bool push(decode::RoundResult& result, bool decoded, int32_t drafted, bool complete, Clock::time_point now);

  // Logprobs of the prompt's tokens from start + 1 on, `start` counted in the prompt; they go with the first token.
  void add_prompt_logprobs(int32_t start, std::vector<PositionLogprobs> logprobs);
  // How many of them have come, given out or not.
  int32_t prompt_logprobs() const { return known_prompt_logprobs_; }

  // Ends it without further tokens.
  void finish(FinishReason reason, std::optional<Error> error, Clock::time_point now);

 private:
  FinishReason append_tail(Event& event, FinishReason reason);
  void send_finish(Event event, FinishReason reason, Clock::time_point now);
  void cut_repetition(decode::RoundResult& result);
  // Text of event.tokens, up to a stop string; true when one was found.
  bool append_text(Event& event, bool ended, decode::RoundResult& result);
  // Text of the current part; `counts` as in StopMatcher. True when it ends in a stop string.
  bool append_matched(const std::string& text, bool counts, Event& event);
  void end_part(TokenId mark, Event& event);

  RequestId id_;
  EventSink sink_;
  text::Detokenizer detokenizer_;
  text::StopMatcher stops_;
  const text::StopMatcher no_stops_yet_;  // the state in which each part begins
  bool has_stops_;
  std::optional<TextParts> parts_;
  bool stops_count_;  // in this part
  std::string part_;  // its beginning, where parts_->stops_count asks for it
  int32_t min_tokens_;
  Clock::time_point submitted_;
  std::optional<Clock::time_point> first_scheduled_, first_token_;
  Usage usage_;
  std::vector<int32_t> tokens_per_step_;
  std::optional<std::string> stop_text_;
  std::optional<TokenId> stop_token_;
  std::optional<RepetitionDetector> repetition_;
  bool repeated_ = false;
  std::vector<PositionLogprobs> prompt_logprobs_;  // until they are given out
  int32_t known_prompt_logprobs_ = 0;
};

}  // namespace volley::engine
