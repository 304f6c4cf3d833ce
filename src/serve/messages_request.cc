#include "serve/messages_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/foreign_fields.h"
#include "serve/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

constexpr FieldName kNames[] = {
    {"stop", "stop_sequences"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"},
};

constexpr std::string_view kOneAnswer = "a message is one answer, without what belongs to its prompt";
constexpr std::string_view kNoTokens = "messages have no token ids and no log-probabilities";

constexpr UnbuiltField kChatOnly[] = {
    {"stop", "[[]]", "use \"stop_sequences\""},
    {"max_completion_tokens", "[]", "use \"max_tokens\""},
    {"response_format", R"([{"type": "text"}])", "use \"output_config\" with a \"format\""},
    {"reasoning_effort", "[]", "use \"output_config\" with an \"effort\""},
    {"parallel_tool_calls", "[true]", "\"tool_choice\" has \"disable_parallel_tool_use\""},
    {"stream_options", "[{}]", "every stream has its usage"},
    {"n", "[1]", kOneAnswer},
    {"best_of", "[1]", kOneAnswer},
    {"echo", "[false]", kOneAnswer},
    {"prompt_logprobs", "[]", kOneAnswer},
    {"continue_final_message", "[false]", "end \"messages\" with the assistant's text"},
    {"add_generation_prompt", "[true]", "end \"messages\" with the assistant's text"},
    {"logprobs", "[false]", kNoTokens},
    {"top_logprobs", "[0]", kNoTokens},
    {"return_token_ids", "[false]", kNoTokens},
    {"return_tokens_as_token_ids", "[false]", kNoTokens},
    // The Messages API's own fields.
    {"container", "[]", "no code is run here"},
    {"mcp_servers", "[[]]", "send their tools as \"tools\""},
};

std::string type_of(const json& object) {
  const auto found = object.find("type");
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// The text of the string or of the list of text blocks in `value`.
class TextReader {
 public:
  TextReader(FieldReader& in, std::string_view field) : in_(in), field_(field) {}

  bool read(const json& value, const std::string& where, std::string& out) {
    if (value.is_string()) {
      out = value.get<std::string>();
      return true;
    }
    if (!value.is_array()) return wrong(where + " must be a text or a list of blocks, not " + excerpt(value) + ".");
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out += '\n';
      if (!read_block(value.at(i), where + "[" + std::to_string(i) + "]", out)) return false;
    }
    return true;
  }

  // Appends.
  bool read_block(const json& block, const std::string& where, std::string& out) {
    if (!block.is_object() || type_of(block).empty()) return wrong(where + " must be an object with a \"type\".");
    if (type_of(block) != "text") return unsupported(block, where);
    const auto text = block.find("text");
    if (text == block.end() || !text->is_string()) return wrong(where + " must hold a text.");
    out += text->get_ref<const std::string&>();
    return true;
  }

  bool unsupported(const json& block, const std::string& where) {
    in_.fail(unsupported_field(field_, where + " is of type " + excerpt(block.at("type")) +
                                           ". Only text, tools of the client's and thinking are supported."));
    return false;
  }
  bool wrong(std::string message) {
    in_.fail(invalid_field(field_, std::move(message)));
    return false;
  }

 private:
  FieldReader& in_;
  const std::string_view field_;
};

// "messages": turns of user and assistant, made of blocks.
class MessageReader {
 public:
  MessageReader(FieldReader& in, ChatTurns& turns) : text_(in, "messages"), turns_(turns) {}

  bool read(const json& list, std::string_view raw) {
    const std::vector<std::string_view> texts = array_elements(raw);
    for (size_t i = 0; i < list.size(); ++i) {
      if (!read_message(list.at(i), texts[i], "messages[" + std::to_string(i) + "]")) return false;
    }
    return true;
  }

 private:
  bool read_message(const json& message, std::string_view raw, const std::string& where) {
    if (!message.is_object()) return text_.wrong(where + " must be an object, not " + excerpt(message) + ".");
    const json role = message.value("role", json());
    if (role != "user" && role != "assistant") {
      return text_.wrong(where + R"(.role must be "user" or "assistant", not )" + excerpt(role) +
                         (role == "system" ? "; \"system\" is a field beside \"messages\"." : "."));
    }
    of_user_ = role == "user";
    pending_ = false;
    const auto content = message.find("content");
    if (content != message.end() && content->is_string()) {
      add_text(content->get<std::string>());
    } else if (content != message.end() && content->is_array()) {
      const std::vector<std::string_view> blocks = array_elements(find_member(raw, "content"));
      for (size_t i = 0; i < content->size(); ++i) {
        if (!read_block(content->at(i), blocks[i], where + ".content[" + std::to_string(i) + "]")) return false;
      }
    } else {
      return text_.wrong(where + ".content must be a text or a list of blocks.");
    }
    end_text();
    return true;
  }

  bool read_block(const json& block, std::string_view raw, const std::string& where) {
    const std::string type = block.is_object() ? type_of(block) : "";
    if (type == "tool_result" && of_user_) return read_result(block, where);
    if (type == "tool_use" && !of_user_) return read_call(block, raw, where);
    if (type == "thinking" && !of_user_) return read_thought(block, where);
    if (type == "redacted_thinking" && !of_user_) return true;  // encrypted by another service: it says nothing here
    std::string text;
    if (!text_.read_block(block, where, text)) return false;
    add_text(std::move(text));
    return true;
  }

  bool read_result(const json& block, const std::string& where) {
    std::string id, text;
    if (!read_string(block, "tool_use_id", where, id)) return false;
    const auto content = block.find("content");
    if (content != block.end() && !content->is_null() && !text_.read(*content, where + ".content", text)) return false;
    end_text();
    turns_.tool_result(id, text);
    return true;
  }

  bool read_call(const json& block, std::string_view raw, const std::string& where) {
    std::string id, name;
    if (!read_string(block, "id", where, id) || !read_string(block, "name", where, name)) return false;
    if (!block.contains("input") || !block.at("input").is_object()) {
      return text_.wrong(where + ".input must be an object.");
    }
    end_text();
    turns_.called(id, name, find_member(raw, "input"));
    return true;
  }

  bool read_thought(const json& block, const std::string& where) {
    std::string thought;
    if (!read_string(block, "thinking", where, thought)) return false;
    end_text();
    if (!thought.empty()) turns_.thought(thought);
    return true;
  }

  bool read_string(const json& block, const char* name, const std::string& where, std::string& out) {
    const auto found = block.find(name);
    if (found == block.end() || !found->is_string()) {
      return text_.wrong(where + "." + name + " must be a string.");
    }
    out = found->get<std::string>();
    return true;
  }

  // Texts that follow one another are one.
  void add_text(std::string text) {
    if (std::exchange(pending_, true)) {
      said_.append("\n").append(text);
    } else {
      said_ = std::move(text);
    }
  }

  void end_text() {
    if (!std::exchange(pending_, false)) return;
    if (of_user_) {
      turns_.user(said_);
    } else {
      turns_.said(said_);
    }
  }

  TextReader text_;
  ChatTurns& turns_;
  bool of_user_ = true;
  bool pending_ = false;
  std::string said_;
};

// One request: what it says in names of its own goes into a chat's body, all else is taken over.
class Translator {
 public:
  Translator(FieldReader& in, std::string_view body, const RequestRules& rules) : in_(in), body_(body), rules_(rules) {}

  ApiResult<MessagesRequest> translate(bool to_count) {
    read_limits(to_count);
    read_tools();
    read_tool_choice();
    read_thinking();
    read_output_config();
    read_bookkeeping();
    refuse_fields(in_, kChatOnly);
    read_messages();
    if (in_.error()) return *in_.error();
    chat_.add_rest(body_, in_.known());
    auto parsed = parse_chat_request(chat_.take(), rules_);
    if (auto* error = std::get_if<ApiError>(&parsed)) return with_own_names(std::move(*error), kNames);
    out_.chat = std::get<ApiRequest>(std::move(parsed));
    if (out_.chat.shape.tokens_per_step || out_.chat.shape.blocks) {
      return unsupported_field("volley", "\"volley\" has only \"speculation\" here.");
    }
    return std::move(out_);
  }

  void touch() { (void)translate(false); }

 private:
  void read_limits(bool to_count) {
    int64_t most = 0;
    if (in_.integer("max_tokens", 1, kMaxTokens, most)) {
      chat_.add("max_tokens", std::to_string(most));
    } else if (!to_count) {
      in_.fail(invalid_field("max_tokens", "\"max_tokens\" must say how many tokens the answer may have."));
    }
    if (in_.get("stop_sequences")) chat_.add("stop", find_member(body_, "stop_sequences"));
    bool stream = false;
    if (in_.boolean("stream", stream) && stream) chat_.add("stream", "true");
  }

  void read_tools() {
    const json* tools = in_.get("tools");
    if (!tools) return;
    if (!tools->is_array()) {
      in_.fail(invalid_field("tools", "\"tools\" must be a list of tools, not " + excerpt(*tools) + "."));
      return;
    }
    const std::vector<std::string_view> raw = array_elements(find_member(body_, "tools"));
    std::string list = "[";
    for (size_t i = 0; i < raw.size(); ++i) {
      if (!check_tool(tools->at(i), "tools[" + std::to_string(i) + "]")) return;
      list.append(i > 0 ? "," : "").append(chat_tool(raw[i]));
    }
    chat_.add("tools", list + "]");
  }

  bool check_tool(const json& tool, const std::string& where) {
    const json type = tool.is_object() ? tool.value("type", json()) : json();
    const auto is_text = [&](const char* name) { return tool.contains(name) && tool.at(name).is_string(); };
    if (type.is_string() && type != "custom") {
      in_.fail(unsupported_field("tools", where + " is of type " + excerpt(type) +
                                              ". Only tools that the client runs, with an \"input_schema\", are "
                                              "supported."));
    } else if (!tool.is_object() || !is_text("name") || tool.at("name") == "") {
      in_.fail(invalid_field("tools", where + " must be an object with a \"name\"."));
    } else if (const json schema = tool.value("input_schema", json());
               !schema.is_object() || schema.value("type", json("object")) != "object") {
      in_.fail(invalid_field("tools", where + ".input_schema must be a JSON schema of an object."));
    } else if (const json strict = tool.value("strict", json()); !strict.is_boolean() && !strict.is_null()) {
      in_.fail(invalid_field("tools", where + ".strict must be true or false."));
    } else {
      return true;
    }
    return false;
  }

  // The rest of a tool is about caches and the way its input is streamed.
  static std::string chat_tool(std::string_view raw) {
    std::string function;
    const auto add = [&](std::string_view name, std::string_view own) {
      const std::string_view value = find_member(raw, own);
      if (value.empty() || value == "null") return;
      function.append(function.empty() ? "" : ",").append(json_quote(name)).append(":").append(value);
    };
    add("name", "name");
    add("description", "description");
    add("parameters", "input_schema");
    add("strict", "strict");
    return R"({"type":"function","function":{)" + function + "}}";
  }

  void read_tool_choice() {
    in_.object("tool_choice", [&](FieldReader& choice) {
      std::string type, name;
      choice.string("type", type);
      const bool named = choice.string("name", name);
      if (type == "auto" || type == "none") {
        chat_.add("tool_choice", json_quote(type));
      } else if (type == "any") {
        chat_.add("tool_choice", R"("required")");
      } else if (type == "tool" && named) {
        chat_.add("tool_choice", R"({"type":"function","function":{"name":)" + json_quote(name) + "}}");
      } else {
        choice.fail(invalid_field(
            "type", R"("tool_choice" must have the "type" "auto", "any", "none", or "tool" with a "name".)"));
      }
      bool single = false;
      if (choice.boolean("disable_parallel_tool_use", single) && single) chat_.add("parallel_tool_calls", "false");
    });
  }

  // What models of today call it. A request that does not ask for thoughts gets none.
  void read_thinking() {
    in_.object("thinking", [&](FieldReader& thinking) {
      std::string type;
      thinking.string("type", type);
      if (type != "enabled" && type != "disabled" && type != "adaptive") {
        thinking.fail(invalid_field("type", R"("thinking" must have the "type" "enabled", "adaptive" or "disabled".)"));
      }
      out_.thinking = type != "disabled";
      thinking.integer("budget_tokens", 1, kMaxTokens, out_.thinking_tokens);
      std::string display;
      if (thinking.string("display", display) && display == "omitted") out_.thinking = false;
      enable_thinking_ = type != "disabled";
    });
    if (in_.get("chat_template_kwargs")) {
      chat_.add("chat_template_kwargs", find_member(body_, "chat_template_kwargs"));
    } else {
      chat_.add("chat_template_kwargs",
                std::string(R"({"enable_thinking":)") + (enable_thinking_ ? "true" : "false") + "}");
    }
  }

  void read_output_config() {
    in_.object("output_config", [&](FieldReader& config) {
      std::string effort;
      if (config.string("effort", effort)) chat_.add("reasoning_effort", json_quote(effort));
      config.object("format", [&](FieldReader& format) {
        read_format(format, find_member(find_member(body_, "output_config"), "format"));
      });
    });
    in_.object("output_format", [&](FieldReader& format) { read_format(format, find_member(body_, "output_format")); });
  }

  void read_format(FieldReader& format, std::string_view raw) {
    std::string type;
    format.string("type", type);
    const json* schema = format.get("schema");
    if (type != "json_schema" || !schema || !schema->is_object()) {
      format.fail(invalid_field("type", R"(the format must have the "type" "json_schema" and a "schema", an object.)"));
      return;
    }
    chat_.add("response_format", R"({"type":"json_schema","json_schema":{"name":"","schema":)" +
                                     std::string(find_member(raw, "schema")) + "}}");
  }

  void read_bookkeeping() {
    for (const char* name : {"metadata", "cache_control"}) {
      const json* value = in_.get(name);
      if (value && !value->is_object()) {
        in_.fail(invalid_field(name, in_quotes(name) + " must be an object, not " + excerpt(*value) + "."));
      }
    }
    std::string text;
    for (const char* name : {"service_tier", "inference_geo"}) in_.string(name, text);
    // Thoughts are kept or dropped by the chat template.
    const json* management = in_.get("context_management");
    const json edits =
        management && management->is_object() ? management->value("edits", json::array()) : json::array();
    const auto asks_for_nothing = [](const json& edit) {
      return edit.is_object() && type_of(edit).starts_with("clear_thinking") && edit.value("keep", json()) == "all";
    };
    if (management &&
        (!management->is_object() || !edits.is_array() || !std::all_of(edits.begin(), edits.end(), asks_for_nothing))) {
      in_.fail(unsupported_field("context_management",
                                 "\"context_management\" is not supported: leave out messages instead."));
    }
  }

  void read_messages() {
    ChatTurns turns;
    if (const json* system = in_.get("system")) {
      std::string text;
      if (TextReader(in_, "system").read(*system, "system", text) && !text.empty()) turns.system(text);
    }
    const json* messages = in_.get("messages");
    if (!messages || !messages->is_array() || messages->empty()) {
      in_.fail(invalid_field("messages", "\"messages\" must be a list of at least one message."));
      return;
    }
    if (!MessageReader(in_, turns).read(*messages, find_member(body_, "messages"))) return;
    if (turns.ends_with_text()) chat_.add("continue_final_message", "true");
    chat_.add("messages", turns.take());
  }

  FieldReader& in_;
  const std::string_view body_;
  const RequestRules& rules_;
  ChatBody chat_;
  MessagesRequest out_;
  bool enable_thinking_ = false;
};

}  // namespace

ApiResult<MessagesRequest> parse_messages_request(std::string_view body, const RequestRules& rules, bool to_count) {
  const auto parsed = parse_json_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader in(*std::get<OwnedJson>(parsed));
  return Translator(in, body, rules).translate(to_count);
}

std::span<const FieldName> messages_field_names() {
  return kNames;
}

std::set<std::string_view> messages_fields(const RequestRules& rules) {
  const json empty = json::object();
  FieldReader in(empty);
  Translator(in, "{}", rules).touch();
  return in.known();
}

}  // namespace volley::serve
