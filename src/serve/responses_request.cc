#include "serve/responses_request.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/foreign_fields.h"
#include "serve/json_text.h"
#include "serve/request_fields.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr std::string_view kLogprobs = "message.output_text.logprobs";

constexpr FieldName kNames[] = {
    {"messages", "input"},
    {"max_tokens", "max_output_tokens"},
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"logprobs", "include"},
};

constexpr std::string_view kOneAnswer = "a response is one answer, without what belongs to its prompt";
constexpr std::string_view kNoTokens = "responses have no token ids";

constexpr UnbuiltField kChatOnly[] = {
    {"messages", "[]", "use \"input\""},
    {"max_tokens", "[]", "use \"max_output_tokens\""},
    {"max_completion_tokens", "[]", "use \"max_output_tokens\""},
    {"response_format", R"([{"type": "text"}])", "use \"text\" with a \"format\""},
    {"reasoning_effort", "[]", "use \"reasoning\" with an \"effort\""},
    {"logprobs", "[false]", "use \"include\" and \"top_logprobs\""},
    {"n", "[1]", kOneAnswer},
    {"best_of", "[1]", kOneAnswer},
    {"echo", "[false]", kOneAnswer},
    {"prompt_logprobs", "[]", kOneAnswer},
    {"continue_final_message", "[false]", "the model always answers in a message of its own"},
    {"add_generation_prompt", "[true]", "the model always answers in a message of its own"},
    {"return_token_ids", "[false]", kNoTokens},
    {"return_tokens_as_token_ids", "[false]", kNoTokens},
    // The Responses API's own fields.
    {"conversation", "[]", "use \"previous_response_id\""},
    {"prompt", "[]", "send \"instructions\" and \"input\""},
    {"context_management", "[[]]", "leave it out"},
};

constexpr std::string_view kIncluded[] = {
    kLogprobs,
    "reasoning.encrypted_content",  // thoughts are given as they are, so there is nothing that must be hidden
};

std::string number_json(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), value);
  return std::string(std::begin(text), end);
}

// "type" apart, what a tool says is what a chat's says about its function.
std::string chat_tool(std::string_view raw) {
  std::string function;
  for (const auto& [name, value] : object_members(raw)) {
    if (name != "type") {
      function.append(function.empty() ? "" : ",").append(json_quote(name)).append(":").append(value);
    }
  }
  return R"({"type":"function","function":{)" + function + "}}";
}

bool is_function(const json& value) {
  return value.is_object() && value.value("type", json()) == "function" && value.contains("name") &&
         value.at("name").is_string() && value.at("name") != "";
}

std::string chat_function_choice(const json& value) {
  return R"({"type":"function","function":{"name":)" + json_quote(value.at("name").get<std::string>()) + "}}";
}

// One request: what it says in names of its own goes into a chat's body, all else is taken over.
class Translator {
 public:
  Translator(FieldReader& in, std::string_view body, const ResponsesContext& context)
      : in_(in), body_(body), context_(context) {}

  ApiResult<ResponsesRequest> translate() {
    read_model_name();
    read_text();
    read_reasoning();
    read_tools();
    read_tool_choice();
    read_limits();
    read_include();
    read_bookkeeping();
    read_unbuilt();
    refuse_fields(in_, kChatOnly);
    read_conversation();
    if (in_.error()) return *in_.error();
    chat_.add_rest(body_, in_.known());
    auto parsed = parse_chat_request(chat_.take(), context_.rules);
    if (auto* error = std::get_if<ApiError>(&parsed)) return with_own_names(std::move(*error), kNames);
    ResponsesRequest out;
    out.chat = std::get<ApiRequest>(std::move(parsed));
    if (out.chat.shape.tokens_per_step || out.chat.shape.blocks) {
      return unsupported_field("volley", "\"volley\" has only \"speculation\" here.");
    }
    for (const std::string& name : in_.unread()) {
      if (name.find('.') != std::string::npos) out.chat.ignored_fields.push_back(name);
    }
    if (store_) out.turn = context_.store.begin(context_.tenant, std::move(previous_), std::move(input_));
    finish_echo(out);
    return out;
  }

  // Looks at every field, whatever is wrong with them.
  void touch() { (void)translate(); }

 private:
  // Chat's parser checks it.
  void read_model_name() {
    if (in_.get("model")) chat_.add("model", find_member(body_, "model"));
  }

  void read_text() {
    std::string format = R"({"type":"text"})";
    std::string verbosity;
    in_.object("text", [&](FieldReader& text) {
      text.string("verbosity", verbosity);
      const std::string_view raw = find_member(find_member(body_, "text"), "format");
      text.object("format", [&](FieldReader& fields) {
        std::string type;
        if (!fields.string("type", type)) {
          fields.fail(invalid_field("type", "\"text.format\" needs a \"type\": text, json_object or json_schema."));
        } else if (type == "json_schema") {
          read_schema(fields, raw);
        } else if (type == "json_object") {
          chat_.add("response_format", R"({"type":"json_object"})");
        } else if (type != "text") {
          fields.fail(unsupported_field("type", "\"text.format\" has type " + excerpt(json(type)) +
                                                    ", but only text, json_object and json_schema are available."));
        }
        format = raw;
      });
    });
    echo("text",
         R"({"format":)" + format + (verbosity.empty() ? "" : R"(,"verbosity":)" + json_quote(verbosity)) + "}");
  }

  void read_schema(FieldReader& fields, std::string_view raw) {
    std::string name, description;
    bool strict = false;
    fields.string("name", name);
    fields.string("description", description);
    fields.boolean("strict", strict);  // the text follows the schema either way
    const json* schema = fields.get("schema");
    if (!schema || !schema->is_object()) {
      fields.fail(invalid_field("schema", "\"text.format\" of type json_schema needs a \"schema\", an object."));
      return;
    }
    chat_.add("response_format", R"({"type":"json_schema","json_schema":{"name":"","schema":)" +
                                     std::string(find_member(raw, "schema")) + "}}");
  }

  void read_reasoning() {
    std::string effort, summary;
    in_.object("reasoning", [&](FieldReader& reasoning) {
      if (reasoning.string("effort", effort)) chat_.add("reasoning_effort", json_quote(effort));
      for (const char* name : {"summary", "generate_summary"}) {
        if (!reasoning.string(name, summary)) continue;
        if (summary != "auto" && summary != "concise" && summary != "detailed") {
          reasoning.fail(invalid_field(name, in_quotes(name) + R"( must be "auto", "concise" or "detailed".)"));
        }
      }
    });
    // The thoughts themselves are in the answer, and no model writes a summary of them.
    echo("reasoning", R"({"effort":)" + (effort.empty() ? "null" : json_quote(effort)) + R"(,"summary":null})");
  }

  void read_tools() {
    const json* tools = in_.get("tools");
    echo("tools", tools && tools->is_array() ? find_member(body_, "tools") : "[]");
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
    if (type.is_string() && type != "function") {
      in_.fail(unsupported_field(
          "tools", where + " is of type " + excerpt(type) + ". Only functions, which the client runs, are supported."));
    } else if (!is_function(tool)) {
      in_.fail(invalid_field("tools", where + R"( must be an object with "type": "function" and a "name".)"));
    } else if (const json parameters = tool.value("parameters", json());
               !parameters.is_null() &&
               (!parameters.is_object() || parameters.value("type", json("object")) != "object")) {
      in_.fail(invalid_field("tools", where + ".parameters must be a JSON schema of an object."));
    } else if (const json strict = tool.value("strict", json()); !strict.is_boolean() && !strict.is_null()) {
      in_.fail(invalid_field("tools", where + ".strict must be true or false."));
    } else {
      return true;
    }
    return false;
  }

  void read_tool_choice() {
    const json* choice = in_.get("tool_choice");
    echo("tool_choice", choice ? find_member(body_, "tool_choice") : R"("auto")");
    if (!choice) return;
    const json type = choice->is_object() ? choice->value("type", json()) : json();
    if (choice->is_string()) {
      chat_.add("tool_choice", find_member(body_, "tool_choice"));
    } else if (is_function(*choice)) {
      chat_.add("tool_choice", chat_function_choice(*choice));
    } else if (type == "allowed_tools" && choice->contains("tools") && choice->at("tools").is_array()) {
      add_allowed_tools(*choice);
    } else if (type.is_string() && type != "function" && type != "allowed_tools") {
      in_.fail(unsupported_field("tool_choice", "\"tool_choice\" is of type " + excerpt(type) +
                                                    ". Only functions, which the client runs, are supported."));
    } else {
      fail_choice();
    }
  }

  void add_allowed_tools(const json& choice) {
    std::string list;
    for (const json& tool : choice.at("tools")) {
      if (!is_function(tool)) {
        fail_choice();
        return;
      }
      list.append(list.empty() ? "" : ",").append(chat_function_choice(tool));
    }
    const json mode = choice.value("mode", json());
    chat_.add("tool_choice",
              R"({"type":"allowed_tools","allowed_tools":{"mode":)" + mode.dump() + R"(,"tools":[)" + list + "]}}");
  }

  void fail_choice() {
    in_.fail(invalid_field("tool_choice",
                           R"("tool_choice" must be "none", "auto", "required", {"type": "function", "name": …} or )"
                           R"({"type": "allowed_tools", "mode": "auto" or "required", "tools": […]}.)"));
  }

  void read_limits() {
    int64_t most = 0;
    const bool given = in_.integer("max_output_tokens", 1, std::numeric_limits<int32_t>::max(), most);
    if (given) chat_.add("max_completion_tokens", std::to_string(most));
    echo("max_output_tokens", given ? std::to_string(most) : "null");
    // It bounds calls of tools that run here, and there are none.
    echo("max_tool_calls",
         in_.integer("max_tool_calls", 1, std::numeric_limits<int32_t>::max(), most) ? std::to_string(most) : "null");
    in_.boolean("stream", stream_);
    if (stream_) chat_.add("stream", "true");
    in_.object("stream_options", [](FieldReader& options) {
      bool obfuscation = false;
      options.boolean("include_obfuscation", obfuscation);  // lengths are hidden by TLS or by nothing
    });
  }

  void read_include() {
    bool logprobs = false;
    if (const json* include = in_.get("include")) {
      if (!include->is_array()) {
        in_.fail(invalid_field("include", "\"include\" must be a list, not " + excerpt(*include) + "."));
      } else {
        for (const json& name : *include) logprobs = check_included(name) || logprobs;
      }
    }
    int64_t top = 0;
    const bool given = in_.integer("top_logprobs", 0, kMaxLogprobs, top);
    if (given && top > 0 && !logprobs) {
      in_.fail(
          invalid_field("top_logprobs", "\"top_logprobs\" needs \"" + std::string(kLogprobs) + "\" in \"include\"."));
    }
    if (logprobs) {
      chat_.add("logprobs", "true");
      chat_.add("top_logprobs", std::to_string(top));
    }
    echo("top_logprobs", std::to_string(top));
  }

  // True: these are the log-probabilities.
  bool check_included(const json& name) {
    if (!name.is_string() || std::find(std::begin(kIncluded), std::end(kIncluded),
                                       name.get_ref<const std::string&>()) == std::end(kIncluded)) {
      in_.fail(unsupported_field("include", "\"include\" holds " + excerpt(name) + "; \"" + std::string(kLogprobs) +
                                                "\" and \"reasoning.encrypted_content\" are available."));
      return false;
    }
    return name == kLogprobs;
  }

  // What the answer repeats, for the client alone.
  void read_bookkeeping() {
    constexpr size_t kMaxText = 512;
    const json* metadata = in_.get("metadata");
    if (auto error = check_metadata(metadata)) in_.fail(*std::move(error));
    echo("metadata", metadata ? find_member(body_, "metadata") : "{}");
    for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
      std::string text;
      const bool given = in_.string(name, text);
      if (given && count_code_points(text) > kMaxText) {
        in_.fail(invalid_field(name, in_quotes(name) + " may have at most 512 characters."));
      }
      echo(name, given ? json_quote(text) : "null");
    }
    std::string tier;
    in_.string("service_tier", tier);
    echo("service_tier", R"("default")");
  }

  void read_unbuilt() {
    bool background = false;
    if (in_.boolean("background", background) && background) {
      in_.fail(
          unsupported_field("background", "\"background\" is not supported: stream the response, or wait for it."));
    }
    std::string truncation = "disabled";
    in_.string("truncation", truncation);
    if (truncation != "disabled") {
      in_.fail(unsupported_field(
          "truncation", "\"truncation\" is not supported unless it is \"disabled\": leave out items instead."));
    }
    echo("background", "false");
    echo("truncation", R"("disabled")");
  }

  void read_conversation() {
    ChatTurns turns;
    std::string instructions;
    const bool instructed = in_.string("instructions", instructions);
    if (instructed && !instructions.empty()) turns.system(instructions);
    echo("instructions", instructed ? json_quote(instructions) : "null");
    in_.boolean("store", store_);
    std::string id;
    if (in_.string("previous_response_id", id)) {
      previous_ = context_.store.find(context_.tenant, id);
      if (!previous_) {
        ApiError error = invalid_field("previous_response_id", "The response " + json_quote(id.substr(0, 100)) +
                                                                   " is not kept here, or no " +
                                                                   "longer. Send its conversation as \"input\".");
        error.code = "previous_response_not_found";
        in_.fail(std::move(error));
      } else if (previous_->conversation_bytes() > context_.max_conversation_bytes) {
        in_.fail(context_too_long("previous_response_id", "The conversation of this response has grown too long."));
      } else {
        previous_->add_conversation(turns);
      }
    }
    echo("previous_response_id", id.empty() ? "null" : json_quote(id));
    size_t brought = previous_ ? previous_->conversation_bytes() : 0;
    input_ = read_input(in_, context_.id_suffix, [&](const std::string& name) {
      auto item = context_.store.find_item(context_.tenant, name);
      if (item) brought += item->bytes();
      if (item && brought > context_.max_conversation_bytes) {
        in_.fail(context_too_long("input", "The items that \"input\" refers to are too long together."));
      }
      return item;
    });
    add_turns(input_, turns);
    chat_.add("messages", turns.take());
  }

  void echo(std::string_view name, std::string_view json) {
    echo_.append(echo_.empty() ? "" : ",").append(json_quote(name)).append(":").append(json);
  }

  void finish_echo(ResponsesRequest& out) {
    const SamplingParams& sampling = out.chat.generate.sampling;
    echo("temperature", number_json(sampling.temperature));
    echo("top_p", number_json(sampling.top_p));
    echo("parallel_tool_calls", out.chat.tools.parallel ? "true" : "false");
    echo("store", out.turn ? "true" : "false");
    out.echo = std::move(echo_);
  }

  FieldReader& in_;
  const std::string_view body_;
  const ResponsesContext& context_;
  ChatBody chat_;
  std::string echo_;
  bool stream_ = false, store_ = true;
  std::shared_ptr<const StoredTurn> previous_;
  std::vector<ResponseItem> input_;
};

}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ResponsesContext& context) {
  const auto parsed = parse_json_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  FieldReader in(*std::get<OwnedJson>(parsed));
  return Translator(in, body, context).translate();
}

std::span<const FieldName> responses_field_names() {
  return kNames;
}

std::set<std::string_view> responses_fields(const RequestRules& rules) {
  const json empty = json::object();
  FieldReader in(empty);
  ResponseStore store(0, 0);
  Translator(in, "{}", {rules, store, {}, {}, 0}).touch();
  return in.known();
}

}  // namespace volley::serve
