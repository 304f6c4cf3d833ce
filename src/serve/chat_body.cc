#include "serve/chat_body.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

ApiError with_own_names(ApiError error, std::span<const FieldName> names) {
  for (const FieldName& name : names) {
    replace_all(error.message, in_quotes(name.chat), in_quotes(name.own));
    if (!error.param) continue;
    if (*error.param == name.chat) {
      error.param = std::string(name.own);
    } else if (error.param->starts_with(std::string(name.chat) + ".")) {
      error.param = std::string(name.own) + error.param->substr(name.chat.size());
    }
  }
  return error;
}

void ChatTurns::system(std::string_view text) {
  end_turn();
  if (!at_start_) {
    add("system", text);
    return;
  }
  if (!system_.empty()) system_ += "\n\n";
  system_ += text;
  has_system_ = true;
}

void ChatTurns::end_start() {
  if (!std::exchange(at_start_, false)) return;
  if (has_system_) add("system", system_);
}

void ChatTurns::user(std::string_view text) {
  end_turn();
  end_start();
  add("user", text);
}

void ChatTurns::thought(std::string_view text) {
  if (spoke_ || !calls_.empty()) end_turn();
  speaking_ = true;
  if (!reasoning_.empty()) reasoning_ += '\n';
  reasoning_ += text;
}

void ChatTurns::said(std::string_view text) {
  if (!calls_.empty()) end_turn();
  if (spoke_) content_ += '\n';
  speaking_ = spoke_ = true;
  content_ += text;
}

void ChatTurns::called(std::string_view id, std::string_view name, std::string_view arguments) {
  speaking_ = true;
  calls_.push_back(R"({"id":)" + json_quote(id) + R"(,"type":"function","function":{"name":)" + json_quote(name) +
                   R"(,"arguments":)" + json_quote(arguments) + "}}");
}

void ChatTurns::tool_result(std::string_view call_id, std::string_view text) {
  end_turn();
  end_start();
  add("tool", text, R"(,"tool_call_id":)" + json_quote(call_id));
}

void ChatTurns::add(std::string_view role, std::string_view text, std::string_view more) {
  messages_.push_back(R"({"role":")" + std::string(role) + R"(","content":)" + json_quote(text) + std::string(more) +
                      "}");
}

void ChatTurns::end_turn() {
  if (!speaking_) return;
  end_start();
  std::string more;
  if (!reasoning_.empty()) more += R"(,"reasoning_content":)" + json_quote(reasoning_);
  if (!calls_.empty()) {
    more += R"(,"tool_calls":[)";
    for (size_t i = 0; i < calls_.size(); ++i) more.append(i > 0 ? "," : "").append(calls_[i]);
    more += ']';
  }
  add("assistant", content_, more);
  speaking_ = spoke_ = false;
  content_.clear();
  reasoning_.clear();
  calls_.clear();
}

std::string ChatTurns::take() {
  end_turn();
  end_start();
  std::string text = "[";
  for (const std::string& message : messages_) text.append(text.size() > 1 ? "," : "").append(message);
  messages_.clear();
  return text + "]";
}

void ChatBody::add(std::string_view name, std::string_view json) {
  text_.append(text_.size() > 1 ? "," : "").append(json_quote(name)).append(":").append(json);
}

void ChatBody::add_rest(std::string_view body, const std::set<std::string_view>& read) {
  for (const auto& [name, value] : object_members(body)) {
    if (!read.contains(name)) add(name, value);
  }
}

}  // namespace volley::serve
