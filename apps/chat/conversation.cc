#include "apps/chat/conversation.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/file.h"
#include "serve/api/sealed_text.h"
#include "serve/json/json_text.h"

namespace volley::apps {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Floats = std::optional<float> RequestSettings::*;
using Integers = std::optional<int32_t> RequestSettings::*;
using Seeds = std::optional<uint64_t> RequestSettings::*;

// Words for defaults without a value.
using Words = std::string_view;

struct Setting {
  std::string_view name;
  std::variant<Floats, Integers, Seeds> member;
  std::variant<float SamplingParams::*, int32_t SamplingParams::*, Words> usual;
};

// The engine and the endpoint check ranges.
const Setting kSettings[] = {
    {"temperature", &RequestSettings::temperature, &SamplingParams::temperature},
    {"top_p", &RequestSettings::top_p, &SamplingParams::top_p},
    {"top_k", &RequestSettings::top_k, &SamplingParams::top_k},
    {"min_p", &RequestSettings::min_p, &SamplingParams::min_p},
    {"repetition_penalty", &RequestSettings::repetition_penalty, &SamplingParams::repetition_penalty},
    {"presence_penalty", &RequestSettings::presence_penalty, &SamplingParams::presence_penalty},
    {"frequency_penalty", &RequestSettings::frequency_penalty, &SamplingParams::frequency_penalty},
    {"seed", &RequestSettings::seed, "drawn for each answer"},
    {"max_tokens", &RequestSettings::max_tokens, "as many as fit"},
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
  for (const std::string& known : ChatSettings::names()) names.append(names.empty() ? "" : ", ").append(known);
  return invalid_argument("There is no setting " + std::string(name) + ": there are " + names + ".");
}

// Uses the fewest digits that give the same number: 0.7, not 0.699999988079071.
template <typename T>
std::string shortest(T value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string usual_value(const Setting& setting, const AnswerDefaults& defaults) {
  const auto text = [&defaults](auto usual) -> std::string {
    if constexpr (std::is_same_v<decltype(usual), Words>) {
      return std::string(usual);
    } else {
      return defaults.sampling ? shortest((*defaults.sampling).*usual) : "the server's";
    }
  };
  return std::visit(text, setting.usual);
}

OrderedJson settings_json(const ChatSettings& settings) {
  OrderedJson json = OrderedJson::object();
  for (const Setting& setting : kSettings) {
    const auto put = [&](auto member) {
      const auto& value = settings.sampling.*member;
      if (value) json[std::string(setting.name)] = OrderedJson::parse(shortest(*value));
    };
    std::visit(put, setting.member);
  }
  if (settings.thinking) json[std::string(kThinking)] = *settings.thinking ? "on" : "off";
  return json;
}

OrderedJson content_json(const ChatMessage& message) {
  if (message.pictures.empty()) return message.content;
  OrderedJson parts = OrderedJson::array();
  for (const std::string& url : message.pictures) {
    parts.push_back({{"type", "image_url"}, {"image_url", {{"url", url}}}});
  }
  parts.push_back({{"type", "text"}, {"text", message.content}});
  return parts;
}

// Reads content_json()'s list.
std::optional<std::string> read_parts(const OrderedJson& parts, std::vector<std::string>& pictures) {
  std::optional<std::string> content;
  for (const OrderedJson& part : parts) {
    const OrderedJson object = part.is_object() ? part : OrderedJson::object();
    const OrderedJson picture = object.value("image_url", OrderedJson::object()),
                      text = object.value("text", OrderedJson());
    if (picture.is_object() && picture.value("url", OrderedJson()).is_string()) {
      pictures.push_back(picture.at("url"));
    } else if (text.is_string() && !content) {
      content = text;
    } else {
      return std::nullopt;
    }
  }
  return content;
}

Result<ChatMessage> read_message(const OrderedJson& json) {
  const auto text = [&json](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  };
  const auto role = json.is_object() ? text("role") : std::nullopt;
  auto content = json.is_object() ? text("content") : std::nullopt;
  std::vector<std::string> pictures;
  if (role == "user" && json.contains("content") && json["content"].is_array()) {
    content = read_parts(json["content"], pictures);
  }
  if (!role || !content || (*role != "system" && *role != "user" && *role != "assistant")) {
    return invalid_argument("a message needs a role (system, user or assistant) and a text as content");
  }
  return ChatMessage{*role, *content, text("reasoning_content").value_or(""), std::move(pictures)};
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

std::vector<std::string> ChatSettings::names() {
  std::vector<std::string> names;
  for (const Setting& setting : kSettings) names.emplace_back(setting.name);
  names.emplace_back(kThinking);
  return names;
}

std::string ChatSettings::describe(const AnswerDefaults& defaults) const {
  constexpr size_t kColumns = 20;
  const OrderedJson given = settings_json(*this);
  std::string text;
  const auto line = [&](std::string_view name, const std::string& usual) {
    const auto found = given.find(std::string(name));
    const std::string value = found == given.end() ? usual + " (default)"
                              : found->is_string() ? found->get<std::string>()
                                                   : found->dump();
    text.append(name).append(kColumns - name.size(), ' ').append(value).append("\n");
  };
  for (const Setting& setting : kSettings) line(setting.name, usual_value(setting, defaults));
  line(kThinking, !defaults.thinking ? "as the model does" : *defaults.thinking ? "on" : "off");
  return text;
}

std::string Conversation::messages_json() const {
  OrderedJson json = OrderedJson::array();
  if (!system.empty()) json.push_back({{"role", "system"}, {"content", system}});
  for (const ChatMessage& message : messages)
    json.push_back({{"role", message.role}, {"content", content_json(message)}});
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

bool Conversation::take_back_answer(std::string* user_text) {
  size_t last = messages.size();
  while (last > 0 && messages[last - 1].role != "user") --last;
  if (last == 0) return false;
  *user_text = messages[last - 1].content;
  messages.resize(last - 1);
  return true;
}

Result<std::string> picture_url(const std::string& path) {
  constexpr size_t kMaxBytes = 20u << 20;
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"\x89PNG", "png"}, {"\xFF\xD8\xFF", "jpeg"}, {"RIFF", "webp"}, {"GIF8", "gif"}};
  VOLLEY_ASSIGN(const std::string file, read_file(path, kMaxBytes));
  for (const auto& [start, kind] : kKinds) {
    if (file.starts_with(start)) return "data:image/" + std::string(kind) + ";base64," + serve::to_base64(file);
  }
  return invalid_argument(path + " is no picture in PNG, JPEG, WebP or GIF.");
}

std::string conversation_file(const Conversation& conversation, const ChatSettings& settings) {
  OrderedJson messages = OrderedJson::array();
  if (!conversation.system.empty()) messages.push_back({{"role", "system"}, {"content", conversation.system}});
  for (const ChatMessage& message : conversation.messages) {
    messages.push_back({{"role", message.role}, {"content", content_json(message)}});
    if (!message.reasoning.empty()) messages.back()["reasoning_content"] = message.reasoning;
  }
  const OrderedJson json = {{"messages", std::move(messages)}, {"settings", settings_json(settings)}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<Conversation> read_conversation(std::string_view text, ChatSettings* settings) {
  const auto checked = serve::parse_json(text);  // bounds the depth
  if (std::holds_alternative<serve::ApiError>(checked)) return invalid_argument("it is not JSON");
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("it holds a number that is too large");
  const OrderedJson messages = json.is_object() ? json.value("messages", OrderedJson()) : json;
  if (!messages.is_array()) return invalid_argument("it holds no list of messages");
  Conversation conversation;
  for (const OrderedJson& entry : messages) {
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
