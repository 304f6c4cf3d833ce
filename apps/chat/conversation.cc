#include "apps/chat/conversation.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "serve/json_text.h"

namespace volley::apps {
namespace {

using Json = nlohmann::ordered_json;
using Floats = std::optional<float> RequestSettings::*;
using Integers = std::optional<int32_t> RequestSettings::*;
using Seeds = std::optional<uint64_t> RequestSettings::*;

struct Setting {
  std::string_view name;
  std::variant<Floats, Integers, Seeds> member;
};

// Ranges are the engine's and the endpoint's to check.
const Setting kSettings[] = {
    {"temperature", &RequestSettings::temperature},
    {"top_p", &RequestSettings::top_p},
    {"top_k", &RequestSettings::top_k},
    {"min_p", &RequestSettings::min_p},
    {"repetition_penalty", &RequestSettings::repetition_penalty},
    {"presence_penalty", &RequestSettings::presence_penalty},
    {"frequency_penalty", &RequestSettings::frequency_penalty},
    {"seed", &RequestSettings::seed},
    {"max_tokens", &RequestSettings::max_tokens},
};
constexpr std::string_view kThinking = "thinking";

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

template <typename T>
Status assign(std::string_view name, std::string_view text, std::optional<T>* into) {
  if (text == "default") {
    into->reset();
    return {};
  }
  const std::optional<T> value = number<T>(text);
  if (value) {
    *into = value;
    return {};
  }
  return invalid_argument(std::string(name) + " must be " +
                          (std::is_floating_point_v<T> ? "a number" : "a whole number") + " or default, not " +
                          std::string(text) + ".");
}

Error unknown_setting(std::string_view name) {
  std::string names;
  for (const Setting& setting : kSettings) names.append(setting.name).append(", ");
  return invalid_argument("There is no setting " + std::string(name) + ": there are " + names + std::string(kThinking) +
                          ".");
}

Json settings_json(const ChatSettings& settings) {
  Json json = Json::object();
  for (const Setting& setting : kSettings) {
    const auto put = [&](auto member) {
      const auto& value = settings.sampling.*member;
      if (value) json[std::string(setting.name)] = *value;
    };
    std::visit(put, setting.member);
  }
  if (settings.thinking) json[std::string(kThinking)] = *settings.thinking ? "on" : "off";
  return json;
}

Result<ChatMessage> read_message(const Json& json) {
  const auto text = [&json](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  };
  const auto role = json.is_object() ? text("role") : std::nullopt;
  const auto content = json.is_object() ? text("content") : std::nullopt;
  if (!role || !content || (*role != "system" && *role != "user" && *role != "assistant")) {
    return invalid_argument("a message needs a role (system, user or assistant) and a text as content");
  }
  return ChatMessage{*role, *content, text("reasoning_content").value_or("")};
}

}  // namespace

Status ChatSettings::set(std::string_view name, std::string_view value) {
  if (name == kThinking) {
    if (value != "on" && value != "off" && value != "default") {
      return invalid_argument("thinking must be on, off or default, not " + std::string(value) + ".");
    }
    thinking = value == "default" ? std::nullopt : std::optional(value == "on");
    return {};
  }
  for (const Setting& setting : kSettings) {
    if (setting.name != name) continue;
    return std::visit([&](auto member) { return assign(name, value, &(sampling.*member)); }, setting.member);
  }
  return unknown_setting(name);
}

std::string ChatSettings::describe() const {
  const Json json = settings_json(*this);
  std::string text;
  const auto line = [&](std::string_view name) {
    const auto found = json.find(std::string(name));
    const std::string value = found == json.end()  ? "default"
                              : found->is_string() ? found->get<std::string>()
                                                   : found->dump();
    text.append(name).append(name.size() < 20 ? 20 - name.size() : 1, ' ').append(value).append("\n");
  };
  for (const Setting& setting : kSettings) line(setting.name);
  line(kThinking);
  return text;
}

std::string Conversation::messages_json() const {
  Json json = Json::array();
  if (!system.empty()) json.push_back({{"role", "system"}, {"content", system}});
  for (const ChatMessage& message : messages) json.push_back({{"role", message.role}, {"content", message.content}});
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool Conversation::take_back_answer(std::string* user_text) {
  size_t last = messages.size();
  while (last > 0 && messages[last - 1].role != "user") --last;
  if (last == 0) return false;
  *user_text = messages[last - 1].content;
  messages.resize(last - 1);
  return true;
}

std::string conversation_file(const Conversation& conversation, const ChatSettings& settings) {
  Json messages = Json::array();
  if (!conversation.system.empty()) messages.push_back({{"role", "system"}, {"content", conversation.system}});
  for (const ChatMessage& message : conversation.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
    if (!message.reasoning.empty()) messages.back()["reasoning_content"] = message.reasoning;
  }
  const Json json = {{"messages", std::move(messages)}, {"settings", settings_json(settings)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Conversation> read_conversation(std::string_view text, ChatSettings* settings) {
  const auto checked = serve::parse_json(text);  // bounds the depth
  if (!std::holds_alternative<serve::OwnedJson>(checked)) return invalid_argument("it is not JSON");
  const Json json = Json::parse(text);
  const Json messages = json.is_object() ? json.value("messages", Json()) : json;
  if (!messages.is_array()) return invalid_argument("it holds no list of messages");
  Conversation conversation;
  for (const Json& entry : messages) {
    VOLLEY_ASSIGN(ChatMessage message, read_message(entry));
    if (message.role != "system") {
      conversation.messages.push_back(std::move(message));
    } else if (conversation.system.empty() && conversation.messages.empty()) {
      conversation.system = std::move(message.content);
    } else {
      return invalid_argument("a system message must be the first, and there may be one");
    }
  }
  ChatSettings read = *settings;
  if (json.is_object() && json.contains("settings")) {
    if (!json["settings"].is_object()) return invalid_argument("its settings are not an object");
    read = {};
    for (const auto& [name, value] : json["settings"].items()) {
      VOLLEY_RETURN_IF_ERROR(read.set(name, value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  *settings = read;
  return conversation;
}

}  // namespace volley::apps
