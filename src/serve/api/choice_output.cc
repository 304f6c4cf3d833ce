#include "serve/api/choice_output.h"

#include <algorithm>
#include <utility>

#include "serve/formats/answer_format.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

ChoiceOutput::ChoiceOutput(const ResponseInfo& info, int index) : info_(info), prompt_(info.prompt_of(index)) {
  if (!info.parser) return;
  OutputParser::Options options = *info.parser;
  options.call_id_prefix += std::to_string(index) + "_";
  options.in_order = info.in_order;
  parser_.emplace(options);
  thoughts_ = options.format->counter(info.reasoning);
}

bool ChoiceOutput::is_mark(TokenId token) const {
  return info_.parser && std::ranges::count(info_.parser->format->marks(), token) > 0;
}

std::string ChoiceOutput::text_of(const Event& event, bool first) const {
  std::string text = first ? prompt_.echo : std::string();
  if (info_.shape.echo_only) return text;
  text += event.text;
  if (event.finish && info_.shape.include_stop) {
    if (event.finish->stop_text) {
      text += *event.finish->stop_text;
    } else if (event.finish->stop_token && !is_mark(*event.finish->stop_token)) {
      text += info_.decode({&*event.finish->stop_token, 1}, info_.shape.skip_special_tokens);
    }
  }
  return text;
}

void ChoiceOutput::add_logprobs(const Event& event, News& news) {
  if (news.first && (info_.shape.prompt_logprobs >= 0 || info_.echo_logprobs >= 0)) add_prompt_logprobs(event, news);
  if (!info_.logprobs || info_.shape.echo_only || event.logprobs.empty()) return;
  if (info_.kind == ApiKind::kChat) {
    logprobs_writer_.add_chat(event.logprobs, news.logprobs);
  } else {
    logprobs_writer_.add_completion(event.logprobs, news.logprobs);
  }
}

void ChoiceOutput::add_prompt_logprobs(const Event& event, News& news) {
  std::vector<PositionLogprobs> with_last;
  const std::vector<PositionLogprobs>* positions = &event.prompt_logprobs;
  if (prompt_.last_is_chosen) {
    with_last = event.prompt_logprobs;
    if (!event.logprobs.empty()) with_last.push_back(event.logprobs.front());
    positions = &with_last;
  }
  if (info_.shape.prompt_logprobs >= 0) {
    news.prompt_logprobs = prompt_logprobs_json(*positions, info_.shape.prompt_logprobs, info_.token_text);
  }
  if (info_.echo_logprobs >= 0) {
    logprobs_writer_.add_echo(prompt_, *positions, info_.echo_logprobs, news.logprobs);
  }
}

void ChoiceOutput::count_thoughts(const Event& event) {
  if (!thoughts_) return;
  for (const TokenId token : event.tokens) {
    thoughts_->push(token, [&](TokenId id) { return info_.decode({&id, 1}, false); });
  }
}

Json ChoiceOutput::block_json(const Event& event) const {
  Json pieces = Json::array();
  for (const TokenId token : event.tokens) pieces.push_back(info_.token_text(token));
  return {{"drafted", event.drafted},
          {"accepted", event.accepted},
          {"tokens", event.tokens.size()},
          {"pieces", std::move(pieces)}};
}

Json ChoiceOutput::final_json() const {
  Json json = Json::object();
  const Usage& usage = finish_->usage;
  if (info_.shape.blocks) {
    json["timing"] = {{"queue_s", usage.queue_s}, {"ttft_s", usage.ttft_s}, {"total_s", usage.total_s}};
  }
  if (info_.shape.tokens_per_step) {
    const auto& steps = finish_->tokens_per_step;
    int64_t tokens = 0;
    for (const int32_t step : steps) tokens += step;
    json["tokens_per_step"] = steps;
    json["acceptance_length"] =
        steps.empty() ? Json(nullptr) : Json(static_cast<double>(tokens) / static_cast<double>(steps.size()));
  }
  return json;
}

void ChoiceOutput::parse(std::string text, const std::vector<Event::Mark>& marks, News& news) {
  if (!parser_) {
    if (!text.empty()) news.delta.add({OutputDelta::Kind::kText, std::move(text), -1, {}, {}});
    return;
  }
  take(parser_->push(text, marks), news);
  if (!news.last) return;
  take(parser_->finish(end_of(*finish_, info_.stop_token_ids)), news);
  end_input(news.delta);
}

// Adds a delta as the client may see it. A call of a custom tool shows its input.
void ChoiceOutput::take(OutputDelta delta, News& news) {
  for (OutputDelta::Piece& piece : delta.pieces) {
    if (!info_.shape.reasoning && piece.kind == OutputDelta::Kind::kReasoning) continue;
    if (piece.call != call_) end_input(news.delta);
    const bool begins = !piece.id.empty();
    if (begins && info_.is_custom && info_.is_custom(piece.name)) {
      input_.emplace();
      call_ = piece.call;
    }
    if (input_) {
      piece.is_custom = true;
      piece.text = input_->push(piece.text);
      if (piece.text.empty() && !begins) continue;
    }
    news.delta.add(std::move(piece));
  }
}

void ChoiceOutput::end_input(OutputDelta& out) {
  if (!input_) return;
  std::string rest = input_->finish();
  if (!rest.empty()) out.add({OutputDelta::Kind::kCall, std::move(rest), call_, {}, {}, true});
  input_.reset();
  call_ = -1;
}

ChoiceOutput::News ChoiceOutput::read(const Event& event) {
  News news;
  news.first = !std::exchange(begun_, true);
  news.last = event.finish.has_value();
  if (news.last) finish_ = event.finish;
  if (!info_.shape.echo_only) completion_tokens_ += static_cast<int64_t>(event.tokens.size());
  count_thoughts(event);
  parse(text_of(event, news.first), event.marks, news);
  add_logprobs(event, news);
  if (info_.shape.token_ids && !info_.shape.echo_only) news.tokens = event.tokens;
  if (info_.shape.blocks && !event.tokens.empty()) news.volley = block_json(event);
  if (news.last && (info_.shape.blocks || info_.shape.tokens_per_step)) {
    if (news.volley.is_null()) news.volley = Json::object();
    news.volley.update(final_json());
  }
  return news;
}

const char* ChoiceOutput::finish_reason() const {
  if (finish_->repeated) return "repetition";
  if (finish_->reason == FinishReason::kLength || finish_->reason == FinishReason::kTimeout) return "length";
  if (!parser_ || parser_->calls() == 0) return "stop";
  // A client takes "tool_calls" to mean that it can make the calls.
  const bool clients_stop = !stop_reason().is_null();
  return clients_stop && !parser_->last_call_is_whole() ? "stop" : "tool_calls";
}

Json ChoiceOutput::stop_reason() const {
  if (finish_->repeated) return "repetition_detected";
  if (finish_->reason == FinishReason::kTimeout) return "timeout";
  if (finish_->stop_text) return *finish_->stop_text;
  const auto& ids = info_.stop_token_ids;
  const auto& token = finish_->stop_token;
  if (token && std::find(ids.begin(), ids.end(), *token) != ids.end()) return *token;
  return nullptr;
}

}  // namespace volley::serve
