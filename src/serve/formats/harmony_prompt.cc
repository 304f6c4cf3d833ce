#include "serve/formats/harmony_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "serve/formats/harmony.h"
#include "serve/json/fields.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// A Unicode noncharacter, which no text should hold. It goes behind the first letter of text that looks like a token.
constexpr std::string_view kMark = "\xEF\xB7\x90";

// Replaces in one pass, because a text may consist only of matches.
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

// Index behind the closing quote of the string at `begin`.
size_t end_of_string(std::string_view json_text, size_t begin) {
  size_t at = begin + 1;
  while (at < json_text.size() && json_text[at] != '"') at += json_text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, json_text.size());
}

bool instructs(std::string_view role) {
  return role == "system" || role == "developer";
}

std::string text_of(std::string_view value) {
  if (!value.starts_with('"')) return {};
  return json::parse(value).get<std::string>();
}

// Templates read only the first message's instructions, so further ones at the start join it.
void join_first_instructions(std::vector<ChatMessage>& messages) {
  size_t end = 0;
  while (end < messages.size() && instructs(messages[end].role)) ++end;
  if (end < 2) return;
  std::string& all = *messages[0].content;
  for (size_t i = 1; i < end; ++i) {
    if (messages[i].content->empty()) continue;
    all.append(all.empty() ? "" : "\n\n").append(*messages[i].content);
  }
  messages.erase(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(end));
}

// Arguments are JSON within a string, and templates see its value, where a token may be spelt with escapes.
std::string mark_arguments(std::string_view call) {
  return with_member(call, "function", [](std::string_view function) {
    return with_member(function, "arguments", [](std::string_view arguments) {
      return arguments.starts_with('"') ? json_quote(mark_lookalikes(text_of(arguments))) : std::string(arguments);
    });
  });
}

// Empty if there is none: a call's form was not checked.
std::string id_of(std::string_view call) {
  return call.starts_with('{') ? text_of(find_member(call, "id")) : std::string();
}

// Keeps the first thought that is not empty.
void gather_thoughts(ChatMessage& message) {
  std::string thoughts = std::exchange(message.thoughts, std::nullopt).value_or("");
  std::erase_if(message.others, [&](const auto& member) {
    const auto& [name, value] = member;
    const bool thinks = name == "reasoning_content" || name == "reasoning" || name == "thinking";
    if (thinks && thoughts.empty()) thoughts = text_of(value);
    return thinks;
  });
  if (!thoughts.empty()) message.thoughts = std::move(thoughts);
}

void mark(std::string& text) {
  for (const std::string_view token : HarmonyTokens::texts()) replace_all(text, token, marked(token));
}

// Changes the message so that no text in it looks like a control token.
void mark(ChatMessage& message) {
  for (auto* text : {&message.content, &message.call_id}) {
    if (*text) mark(**text);
  }
  for (std::string& call : message.calls) call = mark_lookalikes(mark_arguments(call));
  for (auto& [name, value] : message.others) {
    mark(name);
    value = mark_lookalikes(value);
  }
}

// Places of the tokens that the template printed.
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
      if (parsed.is_string()) text = parsed.get<std::string>();  // otherwise the text is no JSON, and has no string
    }
    const std::string before = text;
    mark(text);
    out.append(text == before ? literal : json_quote(text));
  }
  return out;
}

std::string unmarked(std::string_view text) {
  std::string out(text);
  if (out.find(kMark) == std::string::npos) return out;
  for (const std::string_view token : HarmonyTokens::texts()) replace_all(out, marked(token), token);
  return out;
}

std::vector<ChatMessage> harmony_messages(std::vector<ChatMessage> messages, bool preambles) {
  join_first_instructions(messages);
  std::vector<ChatMessage> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    ChatMessage& message = messages[i];
    gather_thoughts(message);
    message.content = message.content.value_or("");
    const std::vector<std::string> calls = std::exchange(message.calls, {});
    if (message.role != "assistant" || calls.empty()) {
      out.push_back(std::move(message));
      continue;
    }
    size_t end = i + 1;
    while (end < messages.size() && messages[end].role == "tool") ++end;
    if (!preambles && message.thoughts && !message.content->empty()) {
      message.thoughts->append("\n").append(std::exchange(*message.content, {}));
    }
    std::unordered_map<std::string, std::vector<ChatMessage*>> results;  // by the call's id
    for (size_t j = i + 1; j < end; ++j) {
      if (!messages[j].call_id.value_or("").empty()) results[*messages[j].call_id].push_back(&messages[j]);
    }
    std::vector<bool> written(end - i);
    for (const std::string& call : calls) {
      ChatMessage& one = out.emplace_back(message);
      one.calls = {call};
      message.content = "";
      message.thoughts.reset();
      const auto found = results.find(id_of(call));
      if (found == results.end()) continue;
      for (ChatMessage* result : found->second) {
        out.push_back(*result);
        written[static_cast<size_t>(result - &message)] = true;
      }
      results.erase(found);
    }
    for (size_t j = i + 1; j < end; ++j) {
      if (!written[j - i]) out.push_back(messages[j]);
    }
    i = end - 1;
  }
  // The name that these templates read.
  for (ChatMessage& message : out) {
    if (message.thoughts) message.others.emplace_back("thinking", json_quote(*message.thoughts));
    message.thoughts.reset();
  }
  return out;
}

std::string harmony_tools(std::string_view tools_json) {
  // Templates insert such a default into text unchanged, and write others as JSON.
  const auto parameter = [](std::string_view spec) {
    const auto lists = [&](const char* name) {
      const std::string_view list = spec.starts_with('{') ? find_member(spec, name) : std::string_view();
      return list.starts_with('[') && !array_elements(list).empty();
    };
    if (!lists("enum") && !lists("oneOf")) return std::string(spec);
    return with_member(spec, "default", [](std::string_view value) {
      return value.starts_with('"') ? std::string(value) : json_quote(value);
    });
  };
  const auto parameters = [&](std::string_view schema) {
    return with_member(schema, "properties", [&](std::string_view properties) {
      if (!properties.starts_with('{')) return std::string(properties);
      std::string out = "{";
      for (const auto& [name, spec] : object_members(properties)) {
        out.append(out.size() > 1 ? "," : "").append(json_quote(name)).append(":").append(parameter(spec));
      }
      return out + "}";
    });
  };
  const auto function = [&](std::string_view object) {
    std::string out = with_member(object, "parameters", parameters);
    if (!object.starts_with('{')) return out;
    const std::string_view description = find_member(object, "description");
    if (description.empty()) return R"({"description":"")" + (out == "{}" ? "}" : "," + out.substr(1));
    return description == "null" ? with_member(out, "description", [](std::string_view) { return std::string("\"\""); })
                                 : out;
  };
  if (!read_json(tools_json).is_array()) return std::string(tools_json);
  std::string out = "[";
  for (const std::string_view tool : array_elements(tools_json)) {
    out.append(out.size() > 1 ? "," : "").append(with_member(tool, "function", function));
  }
  return out + "]";
}

Status check_harmony(const Conversation& chat) {
  if (chat.template_kwargs_json.empty()) return {};
  const json kwargs = read_json(chat.template_kwargs_json);
  const auto effort = kwargs.find("reasoning_effort");
  if (effort == kwargs.end() || *effort == "low" || *effort == "medium" || *effort == "high") return {};
  return invalid_argument(in_quotes(chat.effort_field) + " must be low, medium or high for this model, not " +
                          excerpt(*effort) + ": its Harmony format knows no other.");
}

namespace {

constexpr std::string_view kUserHead = "<|start|>user<|message|>";
constexpr std::string_view kDeveloperHead = "<|start|>developer<|message|>";

// Templates print instructions only at the start and drop later ones. These become a user's message with the required
// head, which no client can imitate, because tokens in its text are marked. Returns their number.
size_t write_later_instructions(std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> kept;
  size_t later = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    ChatMessage& message = messages[i];
    if (i > 0 && instructs(message.role)) {
      if (message.content->empty()) continue;
      ++later;
      message = {"user", std::string(kDeveloperHead) + "# Instructions\n\n" + *message.content};
    }
    kept.push_back(std::move(message));
  }
  messages = std::move(kept);
  return later;
}

Status head_later_instructions(std::string& rendered, size_t later, std::string_view field) {
  if (later == 0) return {};
  const std::string both = std::string(kUserHead).append(kDeveloperHead);
  size_t found = 0;
  for (size_t at = rendered.find(both); at != std::string::npos; at = rendered.find(both, at + both.size())) ++found;
  if (found != later) {
    return invalid_argument(in_quotes(field) +
                            " has instructions (\"system\" or \"developer\") behind other messages, where this model's "
                            "chat template cannot print them: put them first.");
  }
  replace_all(rendered, both, kDeveloperHead);
  return {};
}

}  // namespace

Result<std::string> render_harmony(const Engine& engine, Conversation chat, bool preambles,
                                   const std::atomic<bool>* cancelled) {
  chat.messages = harmony_messages(std::move(chat.messages), preambles);
  for (ChatMessage& message : chat.messages) mark(message);
  chat.tools_json = mark_lookalikes(harmony_tools(chat.tools_json));
  chat.template_kwargs_json = mark_lookalikes(chat.template_kwargs_json);
  const size_t later = write_later_instructions(chat.messages);
  VOLLEY_ASSIGN(std::string rendered, engine.render_chat(for_template(chat, cancelled)));
  VOLLEY_RETURN_IF_ERROR(head_later_instructions(rendered, later, chat.field));
  return rendered;
}

// Encodes from the last piece backwards, so that only the kept part of a long prompt is tokenised.
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

}  // namespace volley::serve
