#include "serve/api/logprobs_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity. A token that a mask ruled out gets OpenAI's value for "practically impossible".
float finite_logprob(float logprob) {
  return std::max(logprob, -9999.0f);
}

Json chat_logprob(const TokenLogprob& entry, const TokenText& token_text) {
  const std::string text = token_text(entry.token);
  Json bytes = nullptr;
  // U+FFFD: the token has part of a character, and its own bytes are unknown here.
  if (text.find("\xEF\xBF\xBD") == std::string::npos) {
    bytes = Json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", text}, {"logprob", finite_logprob(entry.logprob)}, {"bytes", std::move(bytes)}};
}

Json completion_logprobs() {
  return {{"tokens", Json::array()},
          {"token_logprobs", Json::array()},
          {"top_logprobs", Json::array()},
          {"text_offset", Json::array()}};
}

// OpenAI's form: the `top` likeliest tokens and the token itself. Keys are texts, and tokens can look alike (parts of
// characters): the token itself keeps its text, then the likeliest of the others, and the rest get their ids.
Json top_logprobs(const PositionLogprobs& position, size_t top, const TokenText& token_text) {
  const TokenId chosen = position.chosen.token;
  const std::string chosen_text = token_text(chosen);
  Json entries = Json::object();
  bool has_chosen = false;
  for (size_t i = 0; i < std::min(top, position.top.size()); ++i) {
    const TokenLogprob& entry = position.top[i];
    std::string name = entry.token == chosen ? chosen_text : token_text(entry.token);
    has_chosen = has_chosen || entry.token == chosen;
    if (entry.token != chosen && (name == chosen_text || entries.contains(name))) {
      name = "token_id:" + std::to_string(entry.token);
    }
    entries[name] = finite_logprob(entry.logprob);
  }
  if (!has_chosen) entries[chosen_text] = finite_logprob(position.chosen.logprob);
  return entries;
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// More tokens ending in U+FFFD are no unfinished character, because a character has at most four bytes.
constexpr size_t kMaxOpen = 4;
constexpr size_t kContext = 8;  // ids: more than a character needs

}  // namespace

// Incomplete bytes may decode otherwise with more bytes behind them, so they are no context.
std::string TextOffset::shown(const Decode& decode, bool skip_special) const {
  std::string text = context_.empty() ? "" : decode(context_, skip_special);
  return text.find(kReplacement) == std::string::npos ? text : "";
}

bool TextOffset::at_start(const Decode& decode, bool skip_special) const {
  return offset_ == 0 && open_.empty() && shown(decode, skip_special).empty();
}

size_t TextOffset::take(TokenId token, const Decode& decode, bool skip_special) {
  const std::string context = shown(decode, skip_special);
  const auto open_text = [&] {
    if (context.empty()) return decode(open_, skip_special);
    std::vector<TokenId> ids = context_;
    ids.insert(ids.end(), open_.begin(), open_.end());
    const std::string text = decode(ids, skip_special);
    return text.starts_with(context) ? text.substr(context.size()) : decode(open_, skip_special);
  };
  std::string before = open_.empty() ? "" : open_text();
  open_.push_back(token);
  const std::string text = open_text();
  const bool unfinished = text.ends_with(kReplacement);
  // The token stands inside the character, unless it shows that the character will not be finished.
  if (unfinished || !text.starts_with(before)) {
    while (before.ends_with(kReplacement)) before.resize(before.size() - kReplacement.size());
  }
  const size_t begin = offset_ + count_code_points(before);
  if (unfinished && open_.size() < kMaxOpen) return begin;
  offset_ += count_code_points(text);
  context_.insert(context_.end(), open_.begin(), open_.end());
  if (context_.size() > kContext) context_.erase(context_.begin(), context_.end() - kContext);
  open_.clear();
  return begin;
}

TokenText LogprobsWriter::next_names() {
  const bool first = !std::exchange(begun_, true) && offset_.at_start(info_.decode, info_.shape.skip_special_tokens);
  if (!first || info_.shape.tokens_as_ids) return info_.token_text;
  return [this](TokenId token) { return info_.decode({&token, 1}, false); };
}

void LogprobsWriter::add_chat(const std::vector<PositionLogprobs>& positions, Json& out) {
  if (out.is_null()) out = {{"content", Json::array()}, {"refusal", nullptr}};
  for (const PositionLogprobs& position : positions) {
    const TokenText names = next_names();
    Json entry = chat_logprob(position.chosen, names);
    Json top = Json::array();
    for (const TokenLogprob& other : position.top) top.push_back(chat_logprob(other, names));
    entry["top_logprobs"] = std::move(top);
    out["content"].push_back(std::move(entry));
  }
}

void LogprobsWriter::add_position(const PositionLogprobs& position, size_t top, bool skip_special, Json& out) {
  const TokenText names = next_names();
  out["tokens"].push_back(names(position.chosen.token));
  out["token_logprobs"].push_back(finite_logprob(position.chosen.logprob));
  out["top_logprobs"].push_back(top_logprobs(position, top, names));
  out["text_offset"].push_back(offset_.take(position.chosen.token, info_.decode, skip_special));
}

void LogprobsWriter::add_completion(const std::vector<PositionLogprobs>& positions, Json& out) {
  if (out.is_null()) out = completion_logprobs();
  for (const PositionLogprobs& position : positions) {
    add_position(position, position.top.size(), info_.shape.skip_special_tokens, out);
  }
}

void LogprobsWriter::add_echo(const PromptInfo& prompt, const std::vector<PositionLogprobs>& rest, int top, Json& out) {
  if (out.is_null()) out = completion_logprobs();
  const TokenId first = prompt.ids.front();
  out["tokens"].push_back(next_names()(first));
  out["token_logprobs"].push_back(nullptr);
  out["top_logprobs"].push_back(nullptr);
  // The tokenizer may have added this token to a text that is echoed as sent.
  const std::string text = info_.decode({&first, 1}, false);
  const bool shown = text.find(kReplacement) != std::string::npos || prompt.echo.starts_with(text);
  out["text_offset"].push_back(shown ? offset_.take(first, info_.decode, false) : 0);
  begun_ = shown;
  for (const PositionLogprobs& position : rest) add_position(position, static_cast<size_t>(top), false, out);
}

Json prompt_logprobs_json(const std::vector<PositionLogprobs>& rest, int top, const TokenText& token_text) {
  Json list = Json::array({nullptr});
  for (const PositionLogprobs& position : rest) {
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& token, Json rank) {
      Json& slot = entry[std::to_string(token.token)];
      if (!slot.is_null()) return;
      slot = {{"logprob", finite_logprob(token.logprob)},
              {"rank", std::move(rank)},
              {"decoded_token", token_text(token.token)}};
    };
    const auto is_chosen = [&](const TokenLogprob& token) { return token.token == position.chosen.token; };
    const auto found = std::find_if(position.top.begin(), position.top.end(), is_chosen);
    const bool ranked = found != position.top.end();
    add(position.chosen, ranked ? Json(found - position.top.begin() + 1) : Json(nullptr));
    for (size_t i = 0; i < std::min(static_cast<size_t>(top), position.top.size()); ++i) add(position.top[i], i + 1);
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace volley::serve
