#include "serve/logprobs_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "serve/json_text.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity; a token that a mask ruled out gets the value that OpenAI uses for "practically impossible".
float finite_logprob(float logprob) {
  return std::max(logprob, -9999.0f);
}

Json chat_logprob(const TokenLogprob& entry, const TokenText& token_text) {
  const std::string text = token_text(entry.token);
  Json bytes = nullptr;
  // U+FFFD: the token holds part of a character, and its own bytes are not known here.
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

}  // namespace

void LogprobsWriter::add_chat(const std::vector<PositionLogprobs>& positions, const TokenText& token_text, Json& out) {
  if (out.is_null()) out = {{"content", Json::array()}, {"refusal", nullptr}};
  for (const PositionLogprobs& position : positions) {
    Json entry = chat_logprob(position.chosen, token_text);
    Json top = Json::array();
    for (const TokenLogprob& other : position.top) top.push_back(chat_logprob(other, token_text));
    entry["top_logprobs"] = std::move(top);
    out["content"].push_back(std::move(entry));
  }
}

void LogprobsWriter::add_position(const PositionLogprobs& position, size_t top, const TokenText& token_text,
                                  Json& out) {
  const std::string text = token_text(position.chosen.token);
  out["tokens"].push_back(text);
  out["token_logprobs"].push_back(finite_logprob(position.chosen.logprob));
  Json others = Json::object();
  for (size_t i = 0; i < std::min(top, position.top.size()); ++i) {
    // Two tokens can print alike (parts of characters): the likelier one came first and stays.
    others.emplace(token_text(position.top[i].token), finite_logprob(position.top[i].logprob));
  }
  out["top_logprobs"].push_back(std::move(others));
  out["text_offset"].push_back(offset_);
  offset_ += count_code_points(text);
}

void LogprobsWriter::add_completion(const std::vector<PositionLogprobs>& positions, const TokenText& token_text,
                                    Json& out) {
  if (out.is_null()) out = completion_logprobs();
  for (const PositionLogprobs& position : positions) add_position(position, position.top.size(), token_text, out);
}

void LogprobsWriter::add_echo(TokenId first, const std::vector<PositionLogprobs>& rest, int top,
                              const TokenText& token_text, Json& out) {
  if (out.is_null()) out = completion_logprobs();
  const std::string text = token_text(first);
  out["tokens"].push_back(text);
  out["token_logprobs"].push_back(nullptr);
  out["top_logprobs"].push_back(nullptr);
  out["text_offset"].push_back(offset_);
  offset_ += count_code_points(text);
  for (const PositionLogprobs& position : rest) add_position(position, static_cast<size_t>(top), token_text, out);
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
