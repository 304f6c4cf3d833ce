#include "serve/api/chat_messages.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/api/custom_tool.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// Templates print any role, so the model would read a mistyped one.
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr const char* kRoleList = R"("system", "developer", "user", "assistant" or "tool")";

constexpr std::string_view kTexts[] = {"text"};
constexpr std::string_view kAnswers[] = {"text", "refusal"};
constexpr PartTypes::LeftOut kPictures[] = {{"image_url", "image"}};
// Types of parts with pictures, of all three APIs.
constexpr std::string_view kPictureTypes[] = {"image_url", "input_image", "image"};

bool is_custom_call(const json& call) {
  return call.is_object() && call.value("type", json()) == "custom";
}

// Reads a message's calls; calls of custom tools become functions'. False after an error.
bool read_calls(FieldReader& in, const json& calls, std::string_view raw, const std::string& where, ChatMessage& out) {
  const std::vector<std::string_view> texts = array_elements(raw);
  for (size_t i = 0; i < texts.size(); ++i) {
    const json& call = calls.at(i);
    if (!is_custom_call(call)) {
      out.calls.emplace_back(texts[i]);
      continue;
    }
    const json custom = call.value("custom", json());
    const auto text_of = [&](const char* name) { return custom.is_object() ? custom.value(name, json()) : json(); };
    const json name = text_of("name"), input = text_of("input"), id = call.value("id", json());
    if (!name.is_string() || !input.is_string()) {
      in.fail(invalid_field("messages", where + ".tool_calls[" + std::to_string(i) +
                                            "].custom must be an object with a string \"name\" and \"input\"."));
      return false;
    }
    out.calls.push_back(call_json(id.is_string() ? id.get_ref<const std::string&>() : "",
                                  name.get_ref<const std::string&>(),
                                  custom_arguments(input.get_ref<const std::string&>())));
  }
  return true;
}

bool is_picture_part(const json& part) {
  return std::ranges::find(kPictureTypes, text_member(part, "type")) != std::end(kPictureTypes);
}

// Reads a part with a picture. False after an error.
bool read_picture_part(FieldReader& in, const PartTypes& types, const json& part, const std::string& where,
                       std::string& out) {
  const json& value = member_of(part, text_member(part, "type") == "image" ? "source" : "image_url");
  std::string url = value.is_string() ? value.get<std::string>() : text_member(value, "url");
  if (text_member(value, "type") == "base64") {
    url = "data:" + text_member(value, "media_type") + ";base64," + text_member(value, "data");
  }
  std::string file_id = text_member(part, "file_id");
  if (file_id.empty()) file_id = text_member(value, "file_id");
  const bool is_file = url.empty() && !file_id.empty();
  if (is_file) url = std::move(file_id);
  if (url.empty()) {
    in.fail(
        invalid_field(types.field, where + " must hold a picture's bytes: as \"data:image/png;base64,\" and Base64."));
  } else {
    out += kPicture;
    types.pictures->push_back({where, std::move(url), is_file});
    return true;
  }
  return false;
}

// Null members are left out, because a template takes a present member as meaningful. Thoughts of answers have two
// names, and clients send either back.
std::optional<ChatMessage> read_message(FieldReader& in, const json& message, std::string_view raw, size_t index,
                                        bool sees, Notes& notes) {
  const std::string where = "messages[" + std::to_string(index) + "]";
  if (!message.is_object() || !message.contains("role") || !message.at("role").is_string()) {
    in.fail(invalid_field("messages", where + " must be an object with a string \"role\"."));
    return std::nullopt;
  }
  if (message.at("role") == "function") {
    in.fail(unsupported_field("messages", where + ".role \"function\" is not supported: use \"tool\"."));
    return std::nullopt;
  }
  ChatMessage out{message.at("role"), {}};
  if (std::ranges::find(kRoles, out.role) == std::end(kRoles)) {
    in.fail(
        invalid_field("messages", where + ".role must be " + kRoleList + ", not " + excerpt(message.at("role")) + "."));
    return std::nullopt;
  }
  const json& content = member_of(message, "content");
  if (!content.is_null() || out.role != "assistant") {
    const PartTypes types{"messages", "Only text is supported.",
                          out.role == "assistant" ? std::span<const std::string_view>(kAnswers) : kTexts,
                          out.role == "tool" ? std::span(kPictures) : std::span<const PartTypes::LeftOut>(),
                          sees && (out.role == "tool" || out.role == "user") ? &out.pictures : nullptr};
    const auto read = [&](const json& part, const std::string& at, std::string& text) {
      return read_part(in, types, part, at, notes, text);
    };
    if (!read_parts(in, "messages", content, where + ".content", out.content.emplace(), read)) return std::nullopt;
  }
  // Moves a text member that this role has. False: another member.
  const auto take = [&](const char* role, const std::string& key, const char* name, std::optional<std::string>& text) {
    if (out.role != role || key != name || !message.at(key).is_string()) return false;
    text = message.at(key).get<std::string>();
    return true;
  };
  for (const auto& [key, value] : object_members(raw)) {
    if (key == "role" || key == "content" || value == "null") continue;
    if (take("assistant", key, "reasoning_content", out.thoughts) || take("tool", key, "tool_call_id", out.call_id)) {
      continue;
    }
    if (key != "tool_calls" || !message.at(key).is_array()) out.others.emplace_back(key, value);
  }
  const auto is_set = [&](const char* name) { return message.contains(name) && !message.at(name).is_null(); };
  if (!is_set("reasoning_content") && is_set("reasoning")) take("assistant", "reasoning", "reasoning", out.thoughts);
  const json& calls = member_of(message, "tool_calls");
  if (calls.is_array() && !read_calls(in, calls, find_member(raw, "tool_calls"), where, out)) return std::nullopt;
  return out;
}

}  // namespace

bool read_part(FieldReader& in, const PartTypes& types, const json& part, const std::string& where, Notes& notes,
               std::string& out) {
  const std::string type = text_member(part, "type");
  if (type.empty()) {
    in.fail(invalid_field(types.field, where + " must be an object with a \"type\"."));
    return false;
  }
  if (types.pictures && is_picture_part(part)) return read_picture_part(in, types, part, where, out);
  if (const auto left_out = std::ranges::find(types.left_out, type, &PartTypes::LeftOut::first);
      left_out != types.left_out.end()) {
    out += left_out_text(left_out->second, notes);
    return true;
  }
  if (std::ranges::find(types.texts, type) == types.texts.end()) {
    in.fail(unsupported_field(types.field,
                              where + " is of type " + excerpt(part.at("type")) + ". " + std::string(types.supported)));
    return false;
  }
  const auto text = part.find(type == "refusal" ? "refusal" : "text");
  if (text == part.end() || !text->is_string()) {
    in.fail(invalid_field(types.field, where + " must hold a text."));
    return false;
  }
  out += text->get_ref<const std::string&>();
  return true;
}

bool read_parts(FieldReader& in, std::string_view field, const json& content, const std::string& where,
                std::string& out, const ReadPart& read) {
  if (content.is_string()) {
    out += content.get_ref<const std::string&>();
    return true;
  }
  if (!content.is_array()) {
    in.fail(invalid_field(field, where + " must be a text or a list of parts, not " + excerpt(content) + "."));
    return false;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    std::string part;
    if (!read(content.at(i), where + "[" + std::to_string(i) + "]", part)) return false;
    i > 0 ? append_part(out, part) : void(out += part);
  }
  return true;
}

void read_messages(FieldReader& in, std::string_view body, bool sees, Conversation& chat, Notes& notes) {
  const json* messages = in.get("messages");
  if (!messages || !messages->is_array() || messages->empty()) {
    in.fail(invalid_field("messages", "\"messages\" must be a list of at least one message."));
    return;
  }
  const std::vector<std::string_view> raw = array_elements(find_member(body, "messages"));
  chat.messages.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    auto message = read_message(in, messages->at(i), raw[i], i, sees, notes);
    if (!message) return;
    chat.messages.push_back(std::move(*message));
  }
}

bool has_pictures(std::string_view messages) {
  if (messages.find("\"image") == std::string_view::npos) return false;
  const json list = read_json(messages);
  for (const json& message : list.is_array() ? list : json::array()) {
    const json& parts = member_of(message, "content");
    if (parts.is_array() && std::ranges::any_of(parts, is_picture_part)) return true;
  }
  return false;
}

Result<Conversation> conversation_of(const ChatMessages& chat, bool sees) {
  const std::string body = R"({"messages":)" + chat.messages_json + "}";
  const json object = read_json(body);
  Conversation out;
  out.tools_json = chat.tools_json;
  out.template_kwargs_json = chat.template_kwargs_json;
  out.add_generation_prompt = chat.add_generation_prompt;
  out.continue_final_message = chat.continue_final_message;
  FieldReader in(object);
  Notes notes;
  read_messages(in, body, sees, out, notes);
  if (in.error()) return invalid_argument(in.error()->message);
  return out;
}

void read_template_fields(FieldReader& in, std::string_view body, Conversation& chat) {
  in.boolean("continue_final_message", chat.continue_final_message);
  chat.add_generation_prompt = !chat.continue_final_message;
  in.boolean("add_generation_prompt", chat.add_generation_prompt);
  if (chat.add_generation_prompt && chat.continue_final_message) {
    in.fail(invalid_field("continue_final_message",
                          "\"continue_final_message\" and \"add_generation_prompt\" cannot both be true."));
  }
  // Templates read these like any other variable.
  std::vector<std::string> variables;
  if (std::string effort; in.string("reasoning_effort", effort)) chat.effort = std::move(effort);
  if (chat.effort) {
    variables.push_back("\"reasoning_effort\":" + json(*chat.effort).dump());
    if (chat.effort == "none") variables.push_back("\"enable_thinking\":false");  // newer templates read this
  }
  if (in.list("documents")) {
    variables.push_back("\"documents\":" + std::string(find_member(body, "documents")));
  }
  const json* kwargs = in.object("chat_template_kwargs");
  if (chat.thinks) variables.push_back(std::string("\"enable_thinking\":") + (*chat.thinks ? "true" : "false"));
  if (kwargs) {
    // Checked here because the template's error would name no field.
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
    // The last of equal names counts: the one in kwargs.
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
