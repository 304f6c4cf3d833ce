#include "serve/chat_messages.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// Templates print any role they are given, so a mistyped one would reach the model as if it were one.
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

bool is_role(std::string_view role) {
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

std::string role_list() {
  std::string list;
  for (const std::string_view role : kRoles) {
    if (!list.empty()) list += role == kRoles[std::size(kRoles) - 1] ? " or " : ", ";
    list.append("\"").append(role).append("\"");
  }
  return list;
}

// The text of a list of content parts, joined by line ends: what templates that take strings expect. Nothing after an
// error.
std::optional<std::string> join_parts(FieldReader& in, const json& parts, const std::string& where) {
  std::string text;
  for (const json& part : parts) {
    const bool object = part.is_object() && part.contains("type") && part.at("type").is_string();
    if (!object) {
      in.fail(invalid_field("messages", where + ".content holds a part that is not an object with a \"type\"."));
      return std::nullopt;
    }
    if (part.at("type") != "text") {
      in.fail(unsupported_field("messages", where + ".content holds a part of type " + excerpt(part.at("type")) +
                                                ". Only text is supported."));
      return std::nullopt;
    }
    if (!part.contains("text") || !part.at("text").is_string()) {
      in.fail(invalid_field("messages", where + ".content holds a text part without a string \"text\"."));
      return std::nullopt;
    }
    if (&part != &parts.front()) text += '\n';
    text += part.at("text").get_ref<const std::string&>();
  }
  return text;
}

// One message as JSON text: the client's own bytes, except that a list of text parts becomes one string, and that
// members which are null are left out: a template takes one that is there for one that says something. Answers have
// their thoughts under two names, of which most templates read reasoning_content, and clients send back either.
std::optional<std::string> message_text(FieldReader& in, const json& message, std::string_view raw, size_t index) {
  const std::string where = "messages[" + std::to_string(index) + "]";
  if (!message.is_object() || !message.contains("role") || !message.at("role").is_string()) {
    in.fail(invalid_field("messages", where + " must be an object with a string \"role\"."));
    return std::nullopt;
  }
  if (message.at("role") == "function") {
    in.fail(unsupported_field("messages", where + ".role \"function\" is not supported: use \"tool\"."));
    return std::nullopt;
  }
  if (!is_role(message.at("role").get_ref<const std::string&>())) {
    in.fail(invalid_field("messages",
                          where + ".role must be " + role_list() + ", not " + excerpt(message.at("role")) + "."));
    return std::nullopt;
  }
  static const json kMissing;
  const auto found = message.find("content");
  const json& content = found == message.end() ? kMissing : *found;
  const bool may_be_missing = message.at("role") == "assistant";
  const bool plain = content.is_string() || (content.is_null() && may_be_missing);
  bool has_nulls = false;
  for (const auto& [key, value] : message.items()) has_nulls = has_nulls || (key != "content" && value.is_null());
  const auto says = [&](const char* key) { return message.contains(key) && !message.at(key).is_null(); };
  const bool copies_thoughts = message.contains("reasoning") && message.at("reasoning").is_string() &&
                               message.at("role") == "assistant" && !says("reasoning_content");
  if (plain && !has_nulls && !copies_thoughts) return std::string(raw);
  std::string text = "{";
  if (!plain) {
    if (!content.is_array()) {
      in.fail(invalid_field(
          "messages", where + ".content must be a string or a list of text parts, not " + excerpt(content) + "."));
      return std::nullopt;
    }
    const auto joined = join_parts(in, content, where);
    if (!joined) return std::nullopt;
    text += "\"content\":" + json(*joined).dump();
  }
  for (const auto& [key, value] : object_members(raw)) {
    if (key == "content" ? !plain : value == "null") continue;
    text.append(text.size() > 1 ? "," : "").append(json(key).dump()).append(":").append(value);
    if (key == "reasoning" && copies_thoughts) text.append(",\"reasoning_content\":").append(value);
  }
  return text + "}";
}

}  // namespace

void read_messages(FieldReader& in, std::string_view body, ChatMessages& chat) {
  const json* messages = in.get("messages");
  if (!messages || !messages->is_array() || messages->empty()) {
    in.fail(invalid_field("messages", "\"messages\" must be a list of at least one message."));
    return;
  }
  // Templates print values, so they see what the client wrote: its order of keys and its numbers.
  const std::vector<std::string_view> raw = array_elements(find_member(body, "messages"));
  chat.messages_json = "[";
  for (size_t i = 0; i < raw.size(); ++i) {
    const auto text = message_text(in, messages->at(i), raw[i], i);
    if (!text) return;
    if (i > 0) chat.messages_json += ',';
    chat.messages_json += *text;
  }
  chat.messages_json += ']';
}

void read_template_fields(FieldReader& in, std::string_view body, ChatMessages& chat) {
  in.boolean("continue_final_message", chat.continue_final_message);
  chat.add_generation_prompt = !chat.continue_final_message;
  in.boolean("add_generation_prompt", chat.add_generation_prompt);
  if (chat.add_generation_prompt && chat.continue_final_message) {
    in.fail(invalid_field("continue_final_message",
                          "\"continue_final_message\" and \"add_generation_prompt\" cannot both be true."));
  }
  // Templates of their models name these two like any other variable.
  std::vector<std::string> variables;
  std::string effort;
  if (in.string("reasoning_effort", effort)) {
    variables.push_back("\"reasoning_effort\":" + json(effort).dump());
    // What models of today call it.
    if (effort == "none") variables.push_back("\"enable_thinking\":false");
  }
  if (const json* documents = in.get("documents")) {
    if (!documents->is_array()) {
      in.fail(invalid_field("documents", "\"documents\" must be a list, not " + excerpt(*documents) + "."));
    }
    variables.push_back("\"documents\":" + std::string(find_member(body, "documents")));
  }
  if (const json* kwargs = in.get("chat_template_kwargs")) {
    if (!kwargs->is_object()) {
      in.fail(invalid_field("chat_template_kwargs",
                            "\"chat_template_kwargs\" must be an object, not " + excerpt(*kwargs) + "."));
      return;
    }
    // Else the error would come of the template, which knows no fields.
    for (const char* name : {"messages", "tools", "add_generation_prompt", "strftime_now"}) {
      if (!kwargs->contains(name)) continue;
      in.fail(invalid_field("chat_template_kwargs", "\"chat_template_kwargs\" cannot set " + in_quotes(name) +
                                                        ", which the server gives to the template: leave it out."));
      return;
    }
    const std::string_view raw = find_member(body, "chat_template_kwargs");
    if (variables.empty()) {
      chat.template_kwargs_json = raw;
      return;
    }
    // The last of equal names counts: what is said in kwargs.
    for (const auto& [key, value] : object_members(raw))
      variables.push_back(json(key).dump() + ":" + std::string(value));
  }
  if (variables.empty()) return;
  for (const std::string& variable : variables) {
    chat.template_kwargs_json += (chat.template_kwargs_json.empty() ? "{" : ",") + variable;
  }
  chat.template_kwargs_json += "}";
}

}  // namespace volley::serve
