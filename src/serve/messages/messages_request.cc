#include "serve/messages/messages_request.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/foreign_fields.h"
#include "serve/api/request_fields.h"
#include "serve/json/json_text.h"
#include "serve/messages/messages_blocks.h"
#include "serve/messages/messages_tools.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// The chat's reader takes these unchanged.
constexpr std::string_view kShared[] = {"chat_template_kwargs", "stream"};

constexpr std::string_view kNoTokens = "messages have no token ids and no log-probabilities";

constexpr UnbuiltField kChatOnly[] = {
    {"stop", "[[]]", "use \"stop_sequences\""},
    {"max_completion_tokens", "[]", "use \"max_tokens\""},
    {"response_format", R"([{"type": "text"}])", "use \"output_config\" with a \"format\""},
    {"reasoning_effort", "[]", "use \"output_config\" with an \"effort\""},
    {"parallel_tool_calls", "[true]", "\"tool_choice\" has \"disable_parallel_tool_use\""},
    {"stream_options", "[{}]", "every stream has its usage"},
    {"continue_final_message", "[false]", "end \"messages\" with the assistant's text"},
    {"add_generation_prompt", "[true]", "end \"messages\" with the assistant's text"},
    {"logprobs", "[false]", kNoTokens},
    {"top_logprobs", "[0]", kNoTokens},
    // The Messages API's own fields.
    {"container", "[]", "no code is run here"},
    {"mcp_servers", "[[]]", "send their tools as \"tools\""},
};

// Reads the request's own names.
class Reader {
 public:
  Reader(FieldReader& in, std::string_view body, const RequestRules& rules)
      : in_(in), body_(body), rules_(rules), tools_(in, rules.refuse_hosted_tools) {}

  ApiResult<MessagesRequest> read(const json& object, bool to_count) {
    out_.chat.chat.effort_field = "output_config.effort";
    out_.chat.tools.parallel_field = "tool_choice.disable_parallel_tool_use";
    read_limits(to_count);
    read_tool_choice();
    read_thinking();
    read_output_config();
    read_bookkeeping();
    refuse_fields(in_, kChatOnly);
    refuse_fields(in_, only_in_chats());
    read_conversation();
    if (in_.error()) return *in_.error();
    out_.chat.ignored_tools = tools_.left_out();
    auto read = read_shared_fields(object, in_.known(), body_, rules_, choice_, std::move(out_.chat));
    if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
    out_.chat = std::get<ApiRequest>(std::move(read));
    return std::move(out_);
  }

 private:
  void read_limits(bool to_count) {
    GenerateRequest& generate = out_.chat.generate;
    out_.chat.is_message = true;
    out_.chat.max_tokens_given = in_.integer("max_tokens", 1, kMaxTokens, generate.max_tokens);
    if (!out_.chat.max_tokens_given && !to_count) {
      in_.fail(invalid_field("max_tokens", "\"max_tokens\" must say how many tokens the answer may have."));
    }
    read_stop(in_, "stop_sequences", generate.stop);
  }

  void read_tool_choice() {
    using Mode = ToolChoice::Mode;
    in_.object("tool_choice", [&](FieldReader& choice) {
      std::string type, name;
      choice.string("type", type);
      const bool named = choice.string("name", name);
      if (type == "auto" || type == "none" || type == "any") {
        choice_ = ToolChoice{type == "auto" ? Mode::kAuto : type == "none" ? Mode::kNone : Mode::kRequired};
      } else if (type == "tool" && named) {
        choice_ = ToolChoice{Mode::kRequired, {{name}}, /*single=*/true};
      } else {
        choice.fail(invalid_field(
            "type", R"("tool_choice" must have the "type" "auto", "any", "none", or "tool" with a "name".)"));
      }
      bool single = false;
      if (choice.boolean("disable_parallel_tool_use", single)) out_.chat.tools.parallel = !single;
    });
  }

  // A request that does not ask for thoughts gets none.
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
      if (thinking.string("display", display)) out_.seals_thoughts = display == "omitted";
    });
    out_.chat.chat.thinks = out_.thinking;
  }

  void read_output_config() {
    in_.object("output_config", [&](FieldReader& config) {
      std::string effort;
      if (config.string("effort", effort)) out_.chat.chat.effort = effort;
      config.object("format", [&](FieldReader& format) {
        read_format(format, find_member(find_member(body_, "output_config"), "format"), "output_config.format");
      });
    });
    in_.object("output_format",
               [&](FieldReader& format) { read_format(format, find_member(body_, "output_format"), "output_format"); });
  }

  void read_format(FieldReader& format, std::string_view raw, const char* field) {
    std::string type;
    format.string("type", type);
    const json* schema = format.get("schema");
    if (type != "json_schema" || !schema || !schema->is_object()) {
      format.fail(invalid_field("type", R"(the format must have the "type" "json_schema" and a "schema", an object.)"));
      return;
    }
    out_.chat.grammar_field = field;
    out_.chat.generate.grammar = {GrammarSpec::Kind::kJsonSchema, std::string(find_member(raw, "schema")), {}};
  }

  void read_bookkeeping() {
    for (const char* name : {"metadata", "cache_control"}) {
      (void)in_.object(name);
    }
    std::string text;
    for (const char* name : {"service_tier", "inference_geo"}) in_.string(name, text);
    in_.object("context_management", [](FieldReader& management) {
      const json* edits = management.list("edits");
      for (size_t i = 0; edits && i < edits->size(); ++i) {
        // The chat template decides which thoughts stay.
        const json type = edits->at(i).is_object() ? edits->at(i).value("type", json()) : json();
        if (type.is_string() && type.get_ref<const std::string&>().starts_with("clear_thinking")) continue;
        management.fail(unsupported_field(
            "edits", "\"context_management.edits[" + std::to_string(i) + "]\" is of type " + excerpt(type) +
                         ". Only the clearing of thoughts is supported: leave out messages instead."));
        return;
      }
    });
  }

  void read_conversation() {
    if (const json* tools = in_.list("tools", "tools")) {
      if (!tools_.read(*tools, find_member(body_, "tools"))) return;
    }
    ChatTurns turns;
    if (const json* system = in_.get("system")) {
      if (!read_system(in_, *system, turns)) return;
    }
    const json* messages = in_.get("messages");
    if (!messages || !messages->is_array() || messages->empty()) {
      in_.fail(invalid_field("messages", "\"messages\" must be a list of at least one message."));
      return;
    }
    if (!read_message_list(in_, *messages, find_member(body_, "messages"), rules_.info.pictures.has_value(), turns,
                           tools_, out_.chat.notes)) {
      return;
    }
    out_.chat.chat.continue_final_message = turns.ends_with_text();
    out_.chat.chat.messages = turns.take();
    tools_.take(out_.chat.tools);
  }

  FieldReader& in_;
  const std::string_view body_;
  const RequestRules& rules_;
  MessagesTools tools_;
  std::optional<ToolChoice> choice_;
  MessagesRequest out_;
};

}  // namespace

ApiResult<MessagesRequest> parse_messages_request(std::string_view body, const RequestRules& rules, bool to_count) {
  const auto parsed = parse_json_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  const auto& object = std::get<json>(parsed);
  FieldReader in(object);
  return Reader(in, body, rules).read(object, to_count);
}

std::set<std::string_view> messages_fields(const RequestRules& rules) {
  const json empty = json::object();
  FieldReader in(empty);
  (void)Reader(in, "{}", rules).read(empty, false);
  for (const std::string_view name : kShared) in.know(name);
  return in.known();
}

}  // namespace volley::serve
