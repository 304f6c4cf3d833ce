#include "serve/api/conversation.h"

#include <algorithm>

#include "serve/json/json_text.h"

namespace volley::serve {

std::string call_json(std::string_view id, std::string_view name, std::string_view arguments) {
  return R"({"id":)" + json_quote(id) + R"(,"type":"function","function":{"name":)" + json_quote(name) +
         R"(,"arguments":)" + json_quote(arguments) + "}}";
}

void append_part(std::string& content, std::string_view part) {
  if (!content.ends_with(kPicture) && !part.starts_with(kPicture)) content += '\n';
  content += part;
}

namespace {

std::string content_json(std::string_view content) {
  if (content.find(kPicture) == std::string_view::npos) return json_quote(content);
  std::string parts;
  const auto add = [&parts](std::string_view text) {
    parts.append(parts.empty() ? "" : ",").append(R"({"type":"text","text":)").append(json_quote(text)).append("}");
  };
  while (true) {
    const size_t end = std::min(content.find(kPicture), content.size());
    if (end > 0) add(content.substr(0, end));
    if (end == content.size()) return "[" + parts + "]";
    add(kPictureMark);
    parts += R"(,{"type":"image"})";
    content.remove_prefix(end + 1);
  }
}

}  // namespace

std::string messages_json(const std::vector<ChatMessage>& messages) {
  std::string text = "[";
  const auto member = [&](std::string_view name, std::string_view json) {
    text.append(",").append(json_quote(name)).append(":").append(json);
  };
  for (const ChatMessage& message : messages) {
    text.append(text.size() > 1 ? "," : "").append(R"({"role":)").append(json_quote(message.role));
    member("content", message.content ? content_json(*message.content) : "null");
    if (message.thoughts) member("reasoning_content", json_quote(*message.thoughts));
    if (!message.calls.empty()) {
      std::string calls;
      for (const std::string& call : message.calls) calls.append(calls.empty() ? "[" : ",").append(call);
      member("tool_calls", calls + "]");
    }
    if (message.call_id) member("tool_call_id", json_quote(*message.call_id));
    for (const auto& [name, value] : message.others) member(name, value);
    text += '}';
  }
  return text + "]";
}

ChatMessages for_template(const Conversation& chat, const std::atomic<bool>* cancelled) {
  return {messages_json(chat.messages), chat.tools_json, chat.template_kwargs_json, chat.add_generation_prompt,
          chat.continue_final_message,  cancelled};
}

void ChatTurns::add(ChatMessage message) {
  speaking_ = false;
  messages_.push_back(std::move(message));
}

void ChatTurns::user(std::string text, std::vector<ChatPicture> pictures) {
  ChatMessage message{"user", std::move(text)};
  message.pictures = std::move(pictures);
  add(std::move(message));
}

void ChatTurns::system(std::string_view text) {
  if (messages_.size() != 1 || messages_.front().role != "system") return add({"system", std::string(text)});
  std::string& first = *messages_.front().content;
  first.append(first.empty() ? "" : "\n\n").append(text);
}

ChatMessage& ChatTurns::assistant() {
  if (!speaking_) {
    add({"assistant", ""});
    speaking_ = true;
    spoke_ = false;
  }
  return messages_.back();
}

void ChatTurns::thought(std::string_view text) {
  if (speaking_ && (spoke_ || !messages_.back().calls.empty())) speaking_ = false;
  std::optional<std::string>& thoughts = assistant().thoughts;
  if (thoughts) {
    thoughts->append("\n").append(text);
  } else {
    thoughts = text;
  }
}

void ChatTurns::said(std::string_view text) {
  if (speaking_ && !messages_.back().calls.empty()) speaking_ = false;
  remarked(text);
  spoke_ = true;
}

void ChatTurns::remarked(std::string_view text) {
  std::string& content = *assistant().content;
  content.append(spoke_ || !content.empty() ? "\n" : "").append(text);
}

void ChatTurns::called(std::string_view id, std::string_view name, std::string_view arguments) {
  assistant().calls.push_back(call_json(id, name, arguments));
}

void ChatTurns::tool_result(std::string call_id, std::string text, std::vector<ChatPicture> pictures) {
  ChatMessage result{"tool", std::move(text)};
  result.pictures = std::move(pictures);
  result.call_id = std::move(call_id);
  add(std::move(result));
}

}  // namespace volley::serve
