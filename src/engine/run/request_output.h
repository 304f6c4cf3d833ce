// Turns a request's tokens into events: text, stop strings, usage. This is the host's half of a round.
#pragma once

#include <volley/engine.h>

#include <chrono>

#include "decode/round.h"
#include "engine/run/token_rules.h"
#include "text/text.h"

namespace volley::engine {

// The last ids of the prompt, if the text continues the prompt's. A request asks for that by one part without marks,
// which the prompt has begun. Otherwise empty.
std::vector<TokenId> text_context(const GenerateRequest& request);

class RequestOutput {
 public:
  using Clock = std::chrono::steady_clock;

  struct Rules {
    std::vector<std::string> stop;
    // A stop string that ends within these first tokens is ordinary text, and no repetition ends the request there.
    int32_t min_tokens = 0;
    bool skip_special_tokens = true;
    std::optional<TextParts> parts = {};
    std::optional<RepetitionDetection> repetition = {};
    std::vector<TokenId> context = {};  // text_context()
  };

  RequestOutput(RequestId id, EventSink sink, std::shared_ptr<const text::Tokenizer> tokenizer, Rules rules,
                int32_t prompt_tokens, Clock::time_point submitted);

  // The request got a slot. Returns true the first time; a preemption changes nothing.
  bool scheduled(int32_t cached_tokens, Clock::time_point now);

  // Applies a step's tokens and sends an event. `decoded`: the step verified a block (a prompt's last chunk does not);
  // `complete`: the request's grammar ends it after these tokens, which may be none. Shortens result.tokens at a stop
  // string or a repetition. Returns true when the request ended, with its last event sent.
  bool push(decode::RoundResult& result, bool decoded, int32_t drafted, bool complete, Clock::time_point now);

  // Logprobs of the prompt's tokens from start + 1 on, counted in the prompt. The first token's event carries them.
  void add_prompt_logprobs(int32_t start, std::vector<PositionLogprobs> logprobs);
  // Prompt logprobs that have come, given out or not.
  int32_t prompt_logprobs() const { return known_prompt_logprobs_; }

  // Ends the request without further tokens.
  void finish(FinishReason reason, std::optional<Error> error, Clock::time_point now);

 private:
  FinishReason append_tail(Event& event, FinishReason reason);
  void send_finish(Event event, FinishReason reason, Clock::time_point now);
  void cut_repetition(decode::RoundResult& result);
  // Appends the text of event.tokens, up to a stop string. Returns true if there was one.
  bool append_text(Event& event, bool ended, decode::RoundResult& result);
  // Appends text of the current part; `counts` as in StopMatcher. Returns true at a stop string.
  bool append_matched(const std::string& text, bool counts, Event& event);
  void end_part(TokenId mark, Event& event);

  RequestId id_;
  EventSink sink_;
  text::Detokenizer detokenizer_;
  text::StopMatcher stops_;
  const text::StopMatcher no_stops_yet_;  // the state at the beginning of each part
  bool has_stops_;
  std::optional<TextParts> parts_;
  bool stops_count_;  // in this part
  std::string part_;  // the part's beginning, where parts_->stops_count asks for it
  int32_t min_tokens_;
  Clock::time_point submitted_;
  std::optional<Clock::time_point> first_scheduled_, first_token_;
  Usage usage_;
  std::vector<int32_t> tokens_per_step_;
  std::optional<std::string> stop_text_;
  std::optional<TokenId> stop_token_;
  std::optional<RepetitionDetector> repetition_;
  bool repeated_ = false;
  std::vector<PositionLogprobs> prompt_logprobs_;  // not yet given out
  int32_t known_prompt_logprobs_ = 0;
};

}  // namespace volley::engine
