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

// Thoughts, text, calls: a model writes no others in between while one character is read.
void add_in_order(OutputDelta delta, std::vector<OutputDelta>& pieces) {
  if (!delta.reasoning.empty()) {
    if (pieces.empty() || pieces.back().reasoning.empty()) pieces.emplace_back();
    pieces.back().reasoning += delta.reasoning;
  }
  if (!delta.content.empty()) {
    if (pieces.empty() || pieces.back().content.empty()) pieces.emplace_back();
    pieces.back().content += delta.content;
  }
  for (OutputDelta::ToolCall& call : delta.tool_calls) {
    if (pieces.empty() || pieces.back().tool_calls.empty() || pieces.back().tool_calls.front().index != call.index) {
      pieces.emplace_back().tool_calls.push_back(std::move(call));
    } else {
      pieces.back().tool_calls.front().arguments += call.arguments;
    }
  }
}

}  // namespace

ChoiceOutput::ChoiceOutput(const ResponseInfo& info, int index)
    : info_(info), prompt_(info.prompt_of(index)), thoughts_(info.reasoning) {
  if (!info.parser) return;
  OutputParser::Options options = *info.parser;
  options.call_id_prefix += std::to_string(index) + "_";
  options.in_order = info.in_order;
  parser_.emplace(options);
  if (options.harmony) harmony_.emplace(*info.harmony, *options.harmony, options.tools != ToolFormat::kNone);
}

std::string ChoiceOutput::text_of(const Event& event, bool first) const {
  std::string text = first ? prompt_.echo : std::string();
  if (info_.shape.echo_only) return text;
  text += event.text;
  if (event.finish && info_.shape.include_stop) {
    if (event.finish->stop_text) {
      text += *event.finish->stop_text;
    } else if (event.finish->stop_token && !(harmony_ && info_.harmony->mark_of(*event.finish->stop_token))) {
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
  if (harmony_) {
    for (const TokenId token : event.tokens) {
      harmony_->push(token, [&](TokenId id) { return info_.decode({&id, 1}, false); });
    }
    return;
  }
  for (size_t i = 0; i < event.tokens.size() && !thoughts_.done(); ++i) {
    thoughts_.push(info_.decode({&event.tokens[i], 1}, false));
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
    take({std::move(text), {}, {}}, news);
    return;
  }
  const auto parse_piece = [&](std::string_view piece) {
    if (info_.in_order) {
      parse_in_order(piece, news);
    } else {
      take(parser_->push(piece), news);
    }
  };
  size_t begin = 0;
  for (const Event::Mark& mark : marks) {
    parse_piece(std::string_view(text).substr(begin, mark.at - begin));
    begin = mark.at;
    if (const auto known = info_.harmony->mark_of(mark.token)) take(parser_->mark(*known), news);
  }
  parse_piece(std::string_view(text).substr(begin));
  if (news.last) take(parser_->finish(), news);
}

void ChoiceOutput::take(OutputDelta delta, News& news) const {
  if (!info_.shape.reasoning) delta.reasoning.clear();
  if (info_.in_order) {
    add_in_order(std::move(delta), news.in_order);
  } else {
    append(news.delta, std::move(delta));
  }
}

// Character by character: a delta of more of them does not say what came first, and how many an event has is a matter
// of speculation, which nothing of an answer may depend on.
void ChoiceOutput::parse_in_order(std::string_view text, News& news) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    take(parser_->push(text.substr(begin, end - begin)), news);
    begin = end;
  }
}

ChoiceOutput::News ChoiceOutput::read(const Event& event) {
  News news;
  news.first = !std::exchange(begun_, true);
  news.last = event.finish.has_value();
  if (!info_.shape.echo_only) completion_tokens_ += static_cast<int64_t>(event.tokens.size());
  count_thoughts(event);
  parse(text_of(event, news.first), event.marks, news);
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
  if (finish_->repeated) return "repetition";
  if (finish_->reason == FinishReason::kLength || finish_->reason == FinishReason::kTimeout) return "length";
  if (!parser_ || parser_->calls() == 0) return "stop";
  // A client takes "tool_calls" for calls that it can make.
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
