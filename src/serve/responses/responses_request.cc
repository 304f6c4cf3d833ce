#include "serve/responses/responses_request.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/foreign_fields.h"
#include "serve/api/hosted_tools.h"
#include "serve/api/request_fields.h"
#include "serve/api/structured_output.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr std::string_view kLogprobs = "message.output_text.logprobs";

// The chat's reader takes these unchanged.
constexpr std::string_view kShared[] = {"model", "stream"};

constexpr UnbuiltField kChatOnly[] = {
    {"messages", "[]", "use \"input\""},
    {"max_tokens", "[]", "use \"max_output_tokens\""},
    {"max_completion_tokens", "[]", "use \"max_output_tokens\""},
    {"response_format", R"([{"type": "text"}])", "use \"text\" with a \"format\""},
    {"reasoning_effort", "[]", "use \"reasoning\" with an \"effort\""},
    {"logprobs", "[false]", "use \"include\" and \"top_logprobs\""},
    {"continue_final_message", "[false]", "the model always answers in a message of its own"},
    {"add_generation_prompt", "[true]", "the model always answers in a message of its own"},
    // The Responses API's own fields.
    {"conversation", "[]", "use \"previous_response_id\""},
    {"prompt", "[]", "send \"instructions\" and \"input\""},
    {"context_management", "[[]]", "leave it out"},
};

constexpr std::string_view kSealed = "reasoning.encrypted_content";

constexpr std::string_view kIncluded[] = {
    kLogprobs,
    kSealed,
    // Fields of items that never come here.
    "web_search_call.results",
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
};

std::string number_json(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(std::begin(text), std::end(text), value);
  return std::string(std::begin(text), end);
}

// Reads the request's own names.
class Reader {
 public:
  Reader(FieldReader& in, std::string_view body, const ResponsesContext& context)
      : in_(in), body_(body), context_(context), hosted_(in, context.rules.refuse_hosted_tools) {}

  ApiResult<ResponsesRequest> read(const json& object) {
    chat_.chat.field = "input";
    chat_.chat.effort_field = "reasoning.effort";
    read_text();
    read_reasoning();
    read_limits();
    read_include();
    read_bookkeeping();
    read_unbuilt();
    refuse_fields(in_, kChatOnly);
    refuse_fields(in_, only_in_chats());
    read_conversation();
    read_tools();
    read_tool_choice();
    if (in_.error()) return *in_.error();
    chat_.ignored_tools = hosted_.types();
    auto read = read_shared_fields(object, in_.known(), body_, context_.rules, choice_, std::move(chat_));
    if (auto* error = std::get_if<ApiError>(&read)) return std::move(*error);
    ResponsesRequest out;
    out.chat = std::get<ApiRequest>(std::move(read));
    out.chat.generate.sampling.logprobs = logprobs_;
    for (const std::string& name : in_.unread()) {
      if (name.find('.') != std::string::npos) out.chat.ignored_fields.push_back(name);
    }
    if (store_) out.turn = context_.store.begin(context_.tenant, std::move(previous_), std::move(input_));
    out.tools = std::move(tools_);
    out.seals_thoughts = seals_thoughts_;
    finish_echo(out);
    return out;
  }

 private:
  void read_text() {
    std::string format = R"({"type":"text"})";
    std::string verbosity;
    in_.object("text", [&](FieldReader& text) {
      text.string("verbosity", verbosity);
      const std::string_view raw = find_member(find_member(body_, "text"), "format");
      text.object("format", [&](FieldReader& fields) {
        chat_.generate.grammar = read_text_format(fields, raw, "text.format");
        chat_.grammar_field = "text.format";
        format = raw;
      });
    });
    echo("text",
         R"({"format":)" + format + (verbosity.empty() ? "" : R"(,"verbosity":)" + json_quote(verbosity)) + "}");
  }

  void read_reasoning() {
    std::string effort, summary, mode, context;
    in_.object("reasoning", [&](FieldReader& reasoning) {
      // The chat template decides which earlier thoughts it prints.
      if (reasoning.string("context", context) && context != "auto" && context != "current_turn" &&
          context != "all_turns") {
        reasoning.fail(invalid_field("context", R"("context" must be "auto", "current_turn" or "all_turns".)"));
      }
      if (reasoning.string("mode", mode) && mode != "standard") {
        reasoning.fail(unsupported_field("mode", R"("mode" is not supported unless it is "standard".)"));
      }
      if (reasoning.string("effort", effort)) chat_.chat.effort = effort;
      for (const char* name : {"summary", "generate_summary"}) {
        if (!reasoning.string(name, summary)) continue;
        if (summary != "auto" && summary != "concise" && summary != "detailed") {
          reasoning.fail(invalid_field(name, in_quotes(name) + R"( must be "auto", "concise" or "detailed".)"));
        }
      }
    });
    // The answer has the thoughts themselves, and no model writes a summary.
    echo("reasoning", R"({"effort":)" + (effort.empty() ? "null" : json_quote(effort)) + R"(,"summary":null})");
  }

  // The request's own tools, and those in the conversation.
  void read_tools() {
    if (in_.list("tools", "tools")) {
      tools_.add(in_, find_member(body_, "tools"), "tools", hosted_, /*again=*/false);
    }
    echo("tools", "[" + tools_.echo() + "]");
    const auto add_from = [&](const std::vector<ResponseItem>& items, bool new_ones) {
      for (size_t i = 0; i < items.size() && !in_.error(); ++i) {
        const std::string field = new_ones ? "input[" + std::to_string(i) + "].tools" : "previous_response_id";
        if (items[i].has_tools()) tools_.add(in_, items[i].text, field, hosted_, /*again=*/true);
      }
    };
    if (previous_) previous_->for_each([&](const std::vector<ResponseItem>& items) { add_from(items, false); });
    add_from(input_, true);
    tools_.fill(chat_.tools);
  }

  void read_tool_choice() {
    const json* choice = in_.get("tool_choice");
    echo("tool_choice", choice ? find_member(body_, "tool_choice") : R"("auto")");
    if (choice) choice_ = tools_.choose(in_, *choice);
  }

  void read_limits() {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    int64_t most = 0;
    chat_.max_tokens_given = in_.integer("max_output_tokens", 1, kMost, chat_.generate.max_tokens);
    echo("max_output_tokens", chat_.max_tokens_given ? std::to_string(chat_.generate.max_tokens) : "null");
    // It bounds calls of tools that would run here, of which there are none.
    echo("max_tool_calls", in_.integer("max_tool_calls", 1, kMost, most) ? std::to_string(most) : "null");
    in_.object("stream_options", [](FieldReader& options) {
      bool obfuscation = false;
      options.boolean("include_obfuscation", obfuscation);  // TLS hides lengths, or nothing does
    });
  }

  void read_include() {
    bool logprobs = false;
    if (const json* include = in_.list("include")) {
      for (const json& name : *include) {
        if (!check_included(name)) break;
        logprobs = logprobs || name == kLogprobs;
        seals_thoughts_ = seals_thoughts_ || name == kSealed;
      }
    }
    int64_t top = 0;
    const bool given = in_.integer("top_logprobs", 0, kMaxLogprobs, top);
    if (given && top > 0 && !logprobs) {
      in_.fail(
          invalid_field("top_logprobs", "\"top_logprobs\" needs \"" + std::string(kLogprobs) + "\" in \"include\"."));
    }
    if (logprobs) logprobs_ = static_cast<int32_t>(top);
    echo("top_logprobs", std::to_string(top));
  }

  bool check_included(const json& name) {
    if (name.is_string() && std::ranges::find(kIncluded, name.get_ref<const std::string&>()) != std::end(kIncluded)) {
      return true;
    }
    in_.fail(unsupported_field("include", "\"include\" holds " + excerpt(name) + "; \"" + std::string(kLogprobs) +
                                              "\" and \"" + std::string(kSealed) + "\" are available."));
    return false;
  }

  // Reads fields that the answer repeats, for the client alone.
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
        previous_->for_each([&](const std::vector<ResponseItem>& items) { add_turns(items, turns); });
      }
    }
    echo("previous_response_id", id.empty() ? "null" : json_quote(id));
    size_t brought = previous_ ? previous_->conversation_bytes() : 0;
    input_ = read_input(
        in_, find_member(body_, "input"), context_.id_suffix, context_.rules.info.pictures.has_value(),
        [&](const std::string& name) {
          auto item = context_.store.find_item(context_.tenant, name);
          if (item) brought += item->bytes();
          if (item && brought > context_.max_conversation_bytes) {
            in_.fail(context_too_long("input", "The items that \"input\" refers to are too long together."));
          }
          return item;
        },
        chat_.notes);
    add_turns(input_, turns);
    chat_.chat.messages = turns.take();
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
  HostedTools hosted_;
  ApiRequest chat_;
  ResponseTools tools_;
  std::optional<ToolChoice> choice_;
  std::string echo_;
  bool store_ = true, seals_thoughts_ = false;
  int32_t logprobs_ = -1;
  std::shared_ptr<const StoredTurn> previous_;
  std::vector<ResponseItem> input_;
};

}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ResponsesContext& context) {
  const auto parsed = parse_json_object(body);
  if (const ApiError* error = std::get_if<ApiError>(&parsed)) return *error;
  const auto& object = std::get<json>(parsed);
  FieldReader in(object);
  return Reader(in, body, context).read(object);
}

std::set<std::string_view> responses_fields(const RequestRules& rules) {
  const json empty = json::object();
  FieldReader in(empty);
  ResponseStore store(0, 0);
  (void)Reader(in, "{}", {rules, store, {}, {}, 0}).read(empty);
  for (const std::string_view name : kShared) in.know(name);
  return in.known();
}

}  // namespace volley::serve
