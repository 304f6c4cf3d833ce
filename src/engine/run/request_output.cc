#include "engine/run/request_output.h"

#include <algorithm>
#include <utility>

namespace volley::engine {
namespace {

double seconds(RequestOutput::Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

constexpr size_t kPartBeginning = 1024;

// Keeps the first `size` tokens.
void cut(decode::RoundResult& result, size_t size) {
  result.tokens.resize(size);
  result.accepted = std::min(result.accepted, static_cast<int32_t>(size));
  if (!result.logprobs.empty()) result.logprobs.resize(size);
}

}  // namespace

std::vector<TokenId> text_context(const GenerateRequest& request) {
  constexpr size_t kIds = 16;  // more than one character takes, with ids that show no text
  if (!request.parts || !request.parts->marks.empty()) return {};
  return {request.prompt.end() - static_cast<std::ptrdiff_t>(std::min(kIds, request.prompt.size())),
          request.prompt.end()};
}

RequestOutput::RequestOutput(RequestId id, EventSink sink, std::shared_ptr<const text::Tokenizer> tokenizer,
                             Rules rules, int32_t prompt_tokens, Clock::time_point submitted)
    : id_(id),
      sink_(std::move(sink)),
      detokenizer_(std::move(tokenizer), rules.skip_special_tokens, rules.context),
      stops_(rules.stop),
      no_stops_yet_(stops_),
      has_stops_(!rules.stop.empty()),
      parts_(rules.parts && rules.parts->marks.empty() ? std::nullopt : std::move(rules.parts)),
      stops_count_(!parts_ || parts_->stops_count_at_start),
      min_tokens_(rules.min_tokens),
      submitted_(submitted) {
  if (rules.repetition) repetition_.emplace(*rules.repetition);
  usage_.prompt_tokens = prompt_tokens;
}

bool RequestOutput::scheduled(int32_t cached_tokens, Clock::time_point now) {
  if (first_scheduled_) return false;
  first_scheduled_ = now;
  usage_.cached_tokens = cached_tokens;
  usage_.queue_s = seconds(now - submitted_);
  return true;
}

// The end id is no part of a repetition, and max_tokens is applied first.
void RequestOutput::cut_repetition(decode::RoundResult& result) {
  if (!repetition_) return;
  const size_t looked_at = result.tokens.size() - (result.ended ? 1 : 0);
  for (size_t i = 0; i < looked_at; ++i) {
    const bool repeats = repetition_->push(result.tokens[i]);
    const bool counts = usage_.completion_tokens + static_cast<int32_t>(i) + 1 >= min_tokens_;
    if (!repeats || !counts || (result.exhausted && i + 1 == result.tokens.size())) continue;
    cut(result, i + 1);
    result.ended = result.exhausted = false;
    result.finite = repeated_ = true;
    return;
  }
}

bool RequestOutput::append_text(Event& event, bool ended, decode::RoundResult& result) {
  // The end id belongs to a request's tokens, not to its text.
  const size_t with_text = result.tokens.size() - (ended ? 1 : 0);
  if (!has_stops_ && !parts_) {
    event.text += detokenizer_.push(std::span(result.tokens).first(with_text));
    return false;
  }
  for (size_t i = 0; i < with_text; ++i) {
    const bool counts = usage_.completion_tokens + static_cast<int32_t>(i) >= min_tokens_;
    const TokenId token = result.tokens[i];
    if (parts_ && std::ranges::find(parts_->marks, token) != parts_->marks.end()) {
      if (!append_matched(detokenizer_.finish(), counts, event)) {
        end_part(token, event);
        continue;
      }
    } else if (!append_matched(detokenizer_.push({&token, 1}), counts, event)) {
      continue;
    }
    repeated_ = false;
    cut(result, i + 1);
    return true;
  }
  return false;
}

bool RequestOutput::append_matched(const std::string& text, bool counts, Event& event) {
  if (parts_ && part_.size() < kPartBeginning) part_.append(text, 0, kPartBeginning - part_.size());
  if (!stops_count_) {
    event.text += text;
    return false;
  }
  text::StopMatcher::Output output = stops_.push(text, counts);
  event.text += output.text;
  stop_text_ = std::move(output.match);
  return stop_text_.has_value();
}

void RequestOutput::end_part(TokenId mark, Event& event) {
  if (stops_count_) event.text += stops_.finish();
  event.marks.push_back({mark, event.text.size()});
  if (parts_->stops_count) stops_count_ = parts_->stops_count(mark, part_);
  part_.clear();
  stops_ = no_stops_yet_;
}

bool RequestOutput::push(decode::RoundResult& result, bool decoded, int32_t drafted, bool complete,
                         Clock::time_point now) {
  Event event;
  if (!first_token_) event.prompt_logprobs = std::exchange(prompt_logprobs_, {});
  if (!first_token_ && !result.tokens.empty()) {
    first_token_ = now;
    usage_.ttft_s = seconds(now - submitted_);
  }
  event.id = id_;
  cut_repetition(result);
  const bool stopped = append_text(event, result.ended, result);
  event.tokens = result.tokens;
  event.logprobs = std::move(result.logprobs);
  if (result.tokens.empty()) drafted = 0;  // no token was verified
  event.drafted = drafted;
  event.accepted = result.accepted;
  usage_.completion_tokens += static_cast<int32_t>(result.tokens.size());
  usage_.drafted_tokens += drafted;
  usage_.accepted_tokens += result.accepted;
  if (decoded && !result.tokens.empty()) tokens_per_step_.push_back(static_cast<int32_t>(result.tokens.size()));
  if (!stopped && !repeated_ && !result.ended && !result.exhausted && !complete) {
    if (!event.tokens.empty()) sink_(event);
    return false;
  }
  if (result.ended && !stopped) stop_token_ = result.tokens.back();
  const bool stops = stopped || repeated_ || result.ended || complete;
  send_finish(std::move(event), stops ? FinishReason::kStop : FinishReason::kLength, now);
  return true;
}

// A preempted request computes its prompt again.
void RequestOutput::add_prompt_logprobs(int32_t start, std::vector<PositionLogprobs> logprobs) {
  if (first_token_) return;
  prompt_logprobs_.resize(start);
  std::ranges::move(logprobs, std::back_inserter(prompt_logprobs_));
  known_prompt_logprobs_ = static_cast<int32_t>(prompt_logprobs_.size());
}

void RequestOutput::finish(FinishReason reason, std::optional<Error> error, Clock::time_point now) {
  Event event;
  event.id = id_;
  event.finish.emplace();
  event.finish->error = std::move(error);
  send_finish(std::move(event), reason, now);
}

// No stop string has cut the text, so what the detokenizer and the matcher held back belongs to it. Unless the request
// was cancelled or failed, that can still hold a stop string.
FinishReason RequestOutput::append_tail(Event& event, FinishReason reason) {
  const std::string held = detokenizer_.finish();
  if (reason != FinishReason::kCancelled && reason != FinishReason::kError) {
    if (append_matched(held, usage_.completion_tokens > min_tokens_, event)) {
      repeated_ = false;
      return FinishReason::kStop;
    }
    event.text += stops_.finish();
  } else {
    event.text += stops_.finish() + held;
  }
  return reason;
}

void RequestOutput::send_finish(Event event, FinishReason reason, Clock::time_point now) {
  if (!event.finish) event.finish.emplace();
  if (!stop_text_) reason = append_tail(event, reason);
  usage_.total_s = seconds(now - submitted_);
  if (!first_scheduled_) usage_.queue_s = usage_.total_s;  // it waited all its life
  event.finish->reason = reason;
  event.finish->stop_text = stop_text_;
  if (!stop_text_) event.finish->stop_token = stop_token_;
  event.finish->repeated = repeated_;
  event.finish->usage = usage_;
  event.finish->tokens_per_step = std::move(tokens_per_step_);
  sink_(event);
}

}  // namespace volley::engine
