#include "serve/choice_output.h"

#include <algorithm>
#include <utility>

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

void append(OutputDelta& delta, OutputDelta more) {
  delta.content += more.content;
  delta.reasoning += more.reasoning;
  for (OutputDelta::ToolCall& call : more.tool_calls) {
    auto& calls = delta.tool_calls;
    const auto same = std::find_if(calls.begin(), calls.end(), [&](const auto& c) { return c.index == call.index; });
    if (same == calls.end()) {
      calls.push_back(std::move(call));
    } else {
      same->arguments += call.arguments;
    }
  }
}

}  // namespace

ChoiceOutput::ChoiceOutput(const ResponseInfo& info, int index) : info_(info), prompt_(info.prompt_of(index)) {
  if (!info.parser) return;
  OutputParser::Options options = *info.parser;
  options.call_id_prefix += std::to_string(index) + "_";
  parser_.emplace(options);
}

std::string ChoiceOutput::text_of(const Event& event, bool first) const {
  std::string text = first ? prompt_.echo : std::string();
  if (info_.shape.echo_only) return text;
  text += event.text;
  if (event.finish && info_.shape.include_stop) {
    if (event.finish->stop_text) {
      text += *event.finish->stop_text;
    } else if (event.finish->stop_token) {
      text += info_.visible_text(*event.finish->stop_token);
    }
  }
  return text;
}

void ChoiceOutput::add_logprobs(const Event& event, News& news) {
  if (news.first && info_.shape.prompt_logprobs >= 0) {
    news.prompt_logprobs = prompt_logprobs_json(event.prompt_logprobs, info_.shape.prompt_logprobs, info_.token_text);
  }
  if (news.first && info_.echo_logprobs >= 0) {
    logprobs_writer_.add_echo(prompt_.ids.front(), event.prompt_logprobs, info_.echo_logprobs, info_.token_text,
                              news.logprobs);
  }
  if (!info_.logprobs || info_.shape.echo_only || event.logprobs.empty()) return;
  if (info_.kind == ApiKind::kChat) {
    logprobs_writer_.add_chat(event.logprobs, info_.token_text, news.logprobs);
  } else {
    logprobs_writer_.add_completion(event.logprobs, info_.token_text, news.logprobs);
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

ChoiceOutput::News ChoiceOutput::read(const Event& event) {
  News news;
  news.first = !std::exchange(begun_, true);
  news.last = event.finish.has_value();
  if (!info_.shape.echo_only) completion_tokens_ += static_cast<int64_t>(event.tokens.size());
  std::string text = text_of(event, news.first);
  if (parser_) {
    news.delta = parser_->push(text);
    if (news.last) append(news.delta, parser_->finish());
  } else {
    news.delta.content = std::move(text);
  }
  if (!info_.shape.reasoning) news.delta.reasoning.clear();
  add_logprobs(event, news);
  if (info_.shape.token_ids && !info_.shape.echo_only) news.tokens = event.tokens;
  if (news.last) finish_ = event.finish;
  if (info_.shape.blocks && !event.tokens.empty()) news.volley = block_json(event);
  if (news.last && (info_.shape.blocks || info_.shape.tokens_per_step)) {
    if (news.volley.is_null()) news.volley = Json::object();
    news.volley.update(final_json());
  }
  return news;
}

const char* ChoiceOutput::finish_reason() const {
  if (finish_->reason == FinishReason::kLength) return "length";
  return parser_ && parser_->calls() > 0 ? "tool_calls" : "stop";
}

Json ChoiceOutput::stop_reason() const {
  if (finish_->stop_text) return *finish_->stop_text;
  const auto& ids = info_.stop_token_ids;
  const auto& token = finish_->stop_token;
  if (token && std::find(ids.begin(), ids.end(), *token) != ids.end()) return *token;
  return nullptr;
}

}  // namespace volley::serve
