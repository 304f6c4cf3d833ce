#include "serve/messages/messages_writer.h"

#include <utility>

#include "serve/api/sealed_text.h"
#include "serve/json/json_text.h"
#include "serve/messages/answer_blocks.h"

namespace volley::serve {
namespace {

using Kind = AnswerBlock::Kind;

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string error_object(int status, std::string_view message) {
  return R"({"type":")" + std::string(error_type(status)) + R"(","message":)" + json_quote(message) + "}";
}

class MessagesWriter final : public BlockWriter {
 public:
  MessagesWriter(ResponseInfo info, bool stream, bool seals_thoughts)
      : BlockWriter(std::move(info), !stream), stream_(stream), seals_thoughts_(seals_thoughts) {}

 private:
  void begin_answer(std::string& out) override {
    if (!stream_) return;
    // The cached part of the prompt is known only at the end.
    const int64_t prompt = info().prompt_of(0).tokens;
    event("message_start", R"("message":)" + message_json("", "null", usage_json(prompt, 0, 0)), out);
    event("ping", "", out);
  }

  void begin_block(size_t index, std::string& out) override {
    if (!stream_) return;
    event("content_block_start", place(index) + R"(,"content_block":)" + block_json(index), out);
  }

  void grow_block(size_t index, std::string_view more, std::string& out) override {
    if (!stream_) return;
    if (seals_thoughts_ && blocks()[index].kind == Kind::kReasoning) {
      thought_ += more;
      return;
    }
    const char* kind = blocks()[index].kind == Kind::kReasoning ? R"("thinking_delta","thinking":)"
                       : blocks()[index].kind == Kind::kCall    ? R"("input_json_delta","partial_json":)"
                                                                : R"("text_delta","text":)";
    delta(index, kind + json_quote(more), out);
  }

  void end_block(size_t index, std::string& out) override {
    if (!stream_) return;
    if (blocks()[index].kind == Kind::kReasoning) {
      delta(index, R"("signature_delta","signature":)" + signature(std::exchange(thought_, {})), out);
    }
    event("content_block_stop", place(index), out);
  }

  std::string end_answer() override {
    const UsageTotals& all = usage();
    const std::string counts = usage_json(all.prompt_tokens(), all.cached_tokens(), all.completion_tokens());
    if (!stream_) {
      std::string content;
      for (size_t i = 0; i < blocks().size(); ++i) content.append(i > 0 ? "," : "").append(block_json(i));
      return message_json(content, json_quote(stop_reason()), counts);
    }
    std::string out;
    event("message_delta",
          R"("delta":{"stop_reason":)" + json_quote(stop_reason()) + R"(,"stop_sequence":)" + stop_sequence() +
              R"(},"usage":)" + counts,
          out);
    event("message_stop", "", out);
    return out;
  }

  std::string fail_answer(const ApiError& error) override {
    std::string out;
    event("error", R"("error":)" + error_object(error.status, error.message), out);
    return out;
  }

  // Clients send thoughts back with a signature. It is not checked here, but some clients drop thoughts without one.
  std::string signature(std::string_view thought) const {
    return json_quote(seals_thoughts_ ? seal_text(thought) : info().id);
  }

  // The block as far as it has grown if its text is kept, else as it begins.
  std::string block_json(size_t index) const {
    const AnswerBlock& block = blocks()[index];
    switch (block.kind) {
      case Kind::kText:
        return R"({"type":"text","text":)" + json_quote(block.text) + "}";
      case Kind::kReasoning:
        return R"({"type":"thinking","thinking":)" + json_quote(seals_thoughts_ ? "" : block.text) +
               R"(,"signature":)" + (stream_ ? R"("")" : signature(block.text)) + "}";
      case Kind::kCall:
        break;
    }
    return R"({"type":"tool_use","id":)" + json_quote(block.call_id) + R"(,"name":)" + json_quote(block.name) +
           R"(,"input":)" + input_json(block.text) + "}";
  }

  // Arguments that were cut off are no JSON: what is left of them is an empty object, and "stop_reason" says why.
  static std::string input_json(const std::string& arguments) { return is_json_text(arguments) ? arguments : "{}"; }

  // `stop_reason`: as JSON.
  std::string message_json(const std::string& content, const std::string& stop_reason, const std::string& usage) const {
    return R"({"id":)" + json_quote(info().id) + R"(,"type":"message","role":"assistant","model":)" +
           json_quote(info().model) + R"(,"content":[)" + content + R"(],"stop_reason":)" + stop_reason +
           R"(,"stop_sequence":)" + (stop_reason == "null" ? "null" : stop_sequence()) + R"(,"usage":)" + usage + "}";
  }

  std::string stop_reason() const {
    const std::string_view reason = output().finish_reason();
    if (reason != "stop" && reason != "tool_calls") return "max_tokens";
    if (output().finish()->stop_text) return "stop_sequence";  // it may have cut a call
    return reason == "tool_calls" ? "tool_use" : "end_turn";
  }
  std::string stop_sequence() const {
    const auto& text = output().finish()->stop_text;
    return text && stop_reason() == "stop_sequence" ? json_quote(*text) : "null";
  }

  // Input tokens do not count those from the cache.
  static std::string usage_json(int64_t prompt, int64_t cached, int64_t output) {
    return R"({"input_tokens":)" + std::to_string(prompt - cached) +
           R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)" + std::to_string(cached) +
           R"(,"output_tokens":)" + std::to_string(output) + "}";
  }

  static std::string place(size_t index) { return R"("index":)" + std::to_string(index); }

  static void delta(size_t index, const std::string& members, std::string& out) {
    event("content_block_delta", place(index) + R"(,"delta":{"type":)" + members + "}", out);
  }

  static void event(std::string_view type, const std::string& members, std::string& out) {
    out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).append("\"");
    if (!members.empty()) out.append(",").append(members);
    out.append("}\n\n");
  }

  const bool stream_, seals_thoughts_;
  std::string thought_;  // to be sealed by a stream
};

}  // namespace

std::unique_ptr<ResponseWriter> messages_writer(ResponseInfo info, bool stream, bool seals_thoughts) {
  return std::make_unique<MessagesWriter>(std::move(info), stream, seals_thoughts);
}

bool is_messages_path(std::string_view target) {
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  return path == "/v1/messages" || path.starts_with("/v1/messages/");
}

void write_messages_error(const std::string& request_id, HttpResponse& response) {
  response.body = R"({"type":"error","error":)" + error_object(response.status, response.message) +
                  R"(,"request_id":)" + json_quote(request_id) + "}";
}

}  // namespace volley::serve
