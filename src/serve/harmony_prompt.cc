#include "serve/harmony_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "serve/call_ids.h"
#include "serve/fields.h"
#include "serve/harmony.h"
#include "serve/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// A noncharacter of Unicode, which no text is meant to hold, behind the first letter of what looks like a token.
constexpr std::string_view kMark = "\xEF\xB7\x90";

std::string json_string(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// In one pass: a text may be nothing but what is looked for.
void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t at = text.find(from), begin = 0;
  if (at == std::string::npos) return;
  std::string out;
  for (; at != std::string::npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  text = out.append(text, begin);
}

std::string marked(std::string_view token) {
  return std::string(token.substr(0, 1)).append(kMark).append(token.substr(1));
}

// Behind the quote that ends the string which begins at `begin`.
size_t end_of_string(std::string_view json_text, size_t begin) {
  size_t at = begin + 1;
  while (at < json_text.size() && json_text[at] != '"') at += json_text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, json_text.size());
}

bool instructs(std::string_view role) {
  return role == "system" || role == "developer";
}

// One message while it is taken apart.
struct Message {
  std::vector<std::pair<std::string, std::string_view>> members;
  std::string role, content, thoughts, answers;  // `answers`: the call's id
  std::vector<std::string_view> calls;
};

std::string text_of(std::string_view value) {
  if (!value.starts_with('"')) return {};
  return json::parse(value).get<std::string>();
}

Message read_message(std::string_view text) {
  Message message;
  for (auto& [key, value] : object_members(text)) {
    if (key == "role") message.role = text_of(value);
    if (key == "content") message.content = text_of(value);
    if (key == "tool_call_id") message.answers = text_of(value);
    if (key == "tool_calls" && value.starts_with('[')) message.calls = array_elements(value);
    const bool thoughts = key == "reasoning_content" || key == "reasoning" || key == "thinking";
    if (thoughts && message.thoughts.empty()) message.thoughts = text_of(value);
    message.members.emplace_back(std::move(key), value);
  }
  return message;
}

// The object with another value of one member.
template <typename Rewrite>
std::string rewritten(std::string_view object, std::string_view name, const Rewrite& rewrite) {
  if (!object.starts_with('{')) return std::string(object);
  std::string out = "{";
  for (const auto& [key, value] : object_members(object)) {
    out.append(out.size() > 1 ? "," : "").append(json_string(key)).append(":");
    out.append(key == name ? rewrite(value) : std::string(value));
  }
  return out + "}";
}

// Templates read the first message's instructions alone. More of them at the start become one with it.
void join_first_instructions(std::vector<Message>& messages) {
  size_t end = 0;
  while (end < messages.size() && instructs(messages[end].role)) ++end;
  if (end < 2) return;
  std::string& all = messages[0].content;
  for (size_t i = 1; i < end; ++i) {
    if (messages[i].content.empty()) continue;
    all.append(all.empty() ? "" : "\n\n").append(messages[i].content);
  }
  messages.erase(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(end));
}

// Arguments are JSON within a string, and templates see what it holds: there a token may be spelt with escapes.
std::string mark_arguments(std::string_view call) {
  return rewritten(call, "function", [](std::string_view function) {
    return rewritten(function, "arguments", [](std::string_view arguments) {
      return arguments.starts_with('"') ? json_string(mark_lookalikes(text_of(arguments))) : std::string(arguments);
    });
  });
}

// Empty if there is none: nobody has checked what a call is.
std::string id_of(std::string_view call) {
  return call.starts_with('{') ? text_of(find_member(call, "id")) : std::string();
}

// The message with other content, thoughts and calls; none of the latter if `call` is empty.
std::string write_message(const Message& message, std::string_view content, std::string_view thoughts,
                          std::string_view call) {
  std::string text = "{\"role\":" + json_string(message.role) + ",\"content\":" + json_string(content);
  if (!thoughts.empty()) text += ",\"thinking\":" + json_string(thoughts);
  if (!call.empty()) text.append(",\"tool_calls\":[").append(mark_arguments(call)).append("]");
  for (const auto& [key, value] : message.members) {
    const bool written = key == "role" || key == "content" || key == "tool_calls" || key == "reasoning_content" ||
                         key == "reasoning" || key == "thinking";
    if (!written) text.append(",").append(json_string(key)).append(":").append(value);
  }
  return text + "}";
}

// Where the tokens stand that the template printed.
struct Found {
  size_t at = 0;
  HarmonyMark mark{};
};

std::vector<Found> find_tokens(std::string_view text) {
  std::vector<Found> found;
  for (size_t at = text.find("<|"); at != std::string_view::npos; at = text.find("<|", at + 1)) {
    const auto texts = HarmonyTokens::texts();
    const auto token = std::ranges::find_if(texts, [&](std::string_view t) { return text.substr(at).starts_with(t); });
    if (token != texts.end()) found.push_back({at, static_cast<HarmonyMark>(token - texts.begin())});
  }
  return found;
}

// From the last piece backwards, so that of a long prompt only what is kept is tokenised.
Result<std::vector<TokenId>> encode_harmony(const Engine& engine, const HarmonyTokens& tokens, std::string_view text,
                                            EncodeLimits limits) {
  const std::vector<Found> found = find_tokens(text);
  const EncodeLimits asked = limits;
  limits.plain = true;
  std::vector<std::vector<TokenId>> pieces;
  size_t size = 0, end = text.size();
  const auto add = [&](std::vector<TokenId> ids) {
    size += ids.size();
    pieces.push_back(std::move(ids));
  };
  for (size_t i = found.size() + 1; i-- > 0;) {
    const size_t begin = i > 0 ? found[i - 1].at + HarmonyTokens::text_of(found[i - 1].mark).size() : 0;
    if (begin < end) {
      if (asked.last_tokens > 0) limits.last_tokens = asked.last_tokens - size;
      VOLLEY_ASSIGN(auto ids, engine.encode_within(unmarked(text.substr(begin, end - begin)), false, limits));
      add(std::move(ids));
    }
    if (i > 0) {
      add({tokens.id_of(found[i - 1].mark)});
      end = found[i - 1].at;
    }
    if ((asked.last_tokens > 0 && size >= asked.last_tokens) || size > asked.max_tokens) break;
  }
  std::vector<TokenId> ids;
  ids.reserve(size);
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece)
    ids.insert(ids.end(), piece->begin(), piece->end());
  if (asked.last_tokens > 0 && ids.size() > asked.last_tokens) {
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(asked.last_tokens));
  }
  return ids;
}

}  // namespace

std::string mark_lookalikes(std::string_view json_text) {
  std::string out;
  for (size_t at = 0; at < json_text.size();) {
    const size_t begin = std::min(json_text.find('"', at), json_text.size());
    out.append(json_text.substr(at, begin - at));
    if (begin == json_text.size()) break;
    at = end_of_string(json_text, begin);
    const std::string_view literal = json_text.substr(begin, at - begin);
    std::string text;
    if (literal.find('|') != std::string_view::npos || literal.find("\\u") != std::string_view::npos) {
      const json parsed = json::parse(literal, nullptr, /*allow_exceptions=*/false);
      if (parsed.is_string()) text = parsed.get<std::string>();  // else no JSON text, and no string in it
    }
    const std::string before = text;
    for (const std::string_view token : HarmonyTokens::texts()) replace_all(text, token, marked(token));
    out.append(text == before ? literal : json_string(text));
  }
  return out;
}

std::string unmarked(std::string_view text) {
  std::string out(text);
  if (out.find(kMark) == std::string::npos) return out;
  for (const std::string_view token : HarmonyTokens::texts()) replace_all(out, marked(token), token);
  return out;
}

std::string harmony_messages(std::string_view messages_json, bool preambles) {
  std::vector<Message> messages;
  for (const std::string_view text : array_elements(messages_json)) messages.push_back(read_message(text));
  join_first_instructions(messages);
  std::vector<std::string> out;
  const auto write_result = [&](const Message& m) { out.push_back(write_message(m, m.content, {}, {})); };
  for (size_t i = 0; i < messages.size(); ++i) {
    Message& message = messages[i];
    if (message.role != "assistant" || message.calls.empty()) {
      out.push_back(write_message(message, message.content, message.thoughts, {}));
      continue;
    }
    size_t end = i + 1;
    while (end < messages.size() && messages[end].role == "tool") ++end;
    if (!preambles && !message.thoughts.empty() && !message.content.empty()) {
      message.thoughts += "\n" + std::exchange(message.content, {});
    }
    std::unordered_map<std::string_view, std::vector<size_t>> results;  // by the call's id
    for (size_t j = i + 1; j < end; ++j) {
      if (!messages[j].answers.empty()) results[messages[j].answers].push_back(j);
    }
    std::vector<bool> written(end - i);
    for (const std::string_view call : message.calls) {
      out.push_back(
          write_message(message, std::exchange(message.content, {}), std::exchange(message.thoughts, {}), call));
      const auto found = results.find(id_of(call));
      if (found == results.end()) continue;
      for (const size_t j : found->second) {
        write_result(messages[j]);
        written[j - i] = true;
      }
      results.erase(found);
    }
    for (size_t j = i + 1; j < end; ++j) {
      if (!written[j - i]) write_result(messages[j]);
    }
    i = end - 1;
  }
  std::string text = "[";
  for (const std::string& message : out) text.append(text.size() > 1 ? "," : "").append(message);
  return text + "]";
}

std::string harmony_tools(std::string_view tools_json) {
  // Templates add such a default to a text as it is, and write any other as JSON.
  const auto parameter = [](std::string_view spec) {
    const auto lists = [&](const char* name) {
      const std::string_view list = spec.starts_with('{') ? find_member(spec, name) : std::string_view();
      return list.starts_with('[') && !array_elements(list).empty();
    };
    if (!lists("enum") && !lists("oneOf")) return std::string(spec);
    return rewritten(spec, "default", [](std::string_view value) {
      return value.starts_with('"') ? std::string(value) : json_string(value);
    });
  };
  const auto parameters = [&](std::string_view schema) {
    return rewritten(schema, "properties", [&](std::string_view properties) {
      if (!properties.starts_with('{')) return std::string(properties);
      std::string out = "{";
      for (const auto& [name, spec] : object_members(properties)) {
        out.append(out.size() > 1 ? "," : "").append(json_string(name)).append(":").append(parameter(spec));
      }
      return out + "}";
    });
  };
  const auto function = [&](std::string_view object) {
    std::string out = rewritten(object, "parameters", parameters);
    if (!object.starts_with('{')) return out;
    const std::string_view description = find_member(object, "description");
    if (description.empty()) return R"({"description":"")" + (out == "{}" ? "}" : "," + out.substr(1));
    return description == "null" ? rewritten(out, "description", [](std::string_view) { return std::string("\"\""); })
                                 : out;
  };
  if (!read_json(tools_json)->is_array()) return std::string(tools_json);
  std::string out = "[";
  for (const std::string_view tool : array_elements(tools_json)) {
    out.append(out.size() > 1 ? "," : "").append(rewritten(tool, "function", function));
  }
  return out + "]";
}

Status check_reasoning_effort(const OutputFormat& format, const ChatMessages& chat) {
  if (!format.harmony || chat.template_kwargs_json.empty()) return {};
  const json kwargs = json::parse(chat.template_kwargs_json);
  const auto effort = kwargs.find("reasoning_effort");
  if (effort == kwargs.end() || *effort == "low" || *effort == "medium" || *effort == "high") return {};
  return invalid_argument("\"reasoning_effort\" must be low, medium or high for this model, not " + excerpt(*effort) +
                          ": its Harmony format knows no other.");
}

namespace {

// Only Harmony knows the role "developer". Elsewhere it is the system that speaks, as in OpenAI's models before.
std::string with_system_role(std::string_view messages_json) {
  std::string out = "[";
  for (const std::string_view message : array_elements(messages_json)) {
    out += out.size() > 1 ? "," : "";
    const std::string_view role = find_member(message, "role");
    if (role.empty() || json::parse(role) != "developer") {
      out += message;
      continue;
    }
    out += R"({"role":"system")";
    for (const auto& [key, value] : object_members(message)) {
      if (key != "role") out.append(",").append(json_string(key)).append(":").append(value);
    }
    out += '}';
  }
  return out + "]";
}

constexpr std::string_view kUserHead = "<|start|>user<|message|>";
constexpr std::string_view kDeveloperHead = "<|start|>developer<|message|>";

// Templates print instructions at the start alone, and drop later ones. These become a user's, which begin with the
// head that they must have: no text of a client's can begin so, as a token in it is marked. Returns how many.
size_t write_later_instructions(std::string& messages_json) {
  std::string out = "[";
  size_t later = 0;
  bool first = true;
  for (const std::string_view text : array_elements(messages_json)) {
    const Message message = read_message(text);
    const bool is_later = !first && instructs(message.role);
    first = false;
    if (is_later && message.content.empty()) continue;
    out += out.size() > 1 ? "," : "";
    if (!is_later) {
      out += text;
      continue;
    }
    ++later;
    out += R"({"role":"user","content":)" +
           json_string(std::string(kDeveloperHead) + "# Instructions\n\n" + message.content) + "}";
  }
  messages_json = out + "]";
  return later;
}

Status head_later_instructions(std::string& rendered, size_t later) {
  if (later == 0) return {};
  const std::string both = std::string(kUserHead).append(kDeveloperHead);
  size_t found = 0;
  for (size_t at = rendered.find(both); at != std::string::npos; at = rendered.find(both, at + both.size())) ++found;
  if (found != later) {
    return invalid_argument(
        "\"messages\" has instructions (\"system\" or \"developer\") behind other messages, where this model's chat "
        "template cannot print them: put them first.");
  }
  replace_all(rendered, both, kDeveloperHead);
  return {};
}

}  // namespace

Result<std::string> render_chat_prompt(const Engine& engine, const OutputFormat& format, ChatMessages chat) {
  if (!format.harmony) {
    chat.messages_json = with_system_role(chat.messages_json);
    if (format.tools == ToolFormat::kMistral) chat.messages_json = with_short_call_ids(chat.messages_json);
    return engine.render_chat(chat);
  }
  chat.messages_json = mark_lookalikes(harmony_messages(chat.messages_json, format.preambles));
  chat.tools_json = mark_lookalikes(harmony_tools(chat.tools_json));
  chat.template_kwargs_json = mark_lookalikes(chat.template_kwargs_json);
  const size_t later = write_later_instructions(chat.messages_json);
  VOLLEY_ASSIGN(std::string rendered, engine.render_chat(chat));
  VOLLEY_RETURN_IF_ERROR(head_later_instructions(rendered, later));
  return rendered;
}

Result<std::vector<TokenId>> encode_chat(const Engine& engine, const OutputFormat& format, std::string_view rendered,
                                         bool add_special_tokens, const EncodeLimits& limits) {
  if (!format.harmony) return engine.encode_within(rendered, add_special_tokens, limits);
  return encode_harmony(engine, *format.harmony, rendered, limits);
}

}  // namespace volley::serve
