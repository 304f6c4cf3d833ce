#include "serve/responses/responses_writer.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/json/json_text.h"
#include "serve/messages/answer_blocks.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerBlock::Kind;
using ItemKind = ResponseItem::Kind;

class ResponsesWriter final : public BlockWriter {
 public:
  ResponsesWriter(ResponseInfo info, ResponseObject object, bool stream)
      : BlockWriter(knowing(*this, std::move(info)), true), object_(std::move(object)), stream_(stream) {}

 private:
  // A model may call a namespaced tool by its own name alone.
  static ResponseInfo knowing(const ResponsesWriter& self, ResponseInfo info) {
    info.is_custom = [&self](const std::string& name) {
      return self.object_.tools.find(name).kind == ResponseTool::Kind::kCustom;
    };
    return info;
  }

  void begin_answer(std::string& out) override {
    if (!stream_) return;
    const std::string response = response_json("in_progress", {});
    event("response.created", R"("response":)" + response, out);
    event("response.in_progress", R"("response":)" + response, out);
  }

  void begin_block(size_t index, std::string& out) override {
    if (!stream_) return;
    const ResponseItem item = item_of(index, false);
    item_kind_ = item.kind;
    event("response.output_item.added",
          R"("output_index":)" + std::to_string(index) + R"(,"item":)" + item_json(item, "in_progress"), out);
    if (kind(index) != Kind::kCall) {
      event("response.content_part.added", place(index) + R"(,"part":)" + part_json(item), out);
    }
  }

  void grow_block(size_t index, std::string_view more, std::string& out) override {
    if (!stream_ || item_kind_ == ItemKind::kSearchCall) return;
    std::string members = place(index) + R"(,"delta":)" + json_quote(more);
    if (kind(index) == Kind::kText) members += R"(,"logprobs":[)" + new_logprobs() + "]";
    event(std::string(text_event()) + ".delta", members, out);
  }

  void end_block(size_t index, std::string& out) override {
    if (!stream_) return;
    const ResponseItem item = item_of(index, true);
    const std::string text = json_quote(item.text);
    const std::string done = std::string(text_event()) + ".done";
    if (item.kind == ItemKind::kCall) {
      event(done, place(index) + R"(,"name":)" + json_quote(item.name) + R"(,"arguments":)" + text, out);
    } else if (item.kind == ItemKind::kCustomCall) {
      event(done, place(index) + R"(,"input":)" + text, out);
    } else if (item.kind != ItemKind::kSearchCall) {
      std::string members = place(index) + R"(,"text":)" + text;
      if (kind(index) == Kind::kText) members += R"(,"logprobs":[)" + logprobs() + "]";
      event(done, members, out);
      event("response.content_part.done", place(index) + R"(,"part":)" + part_json(item, logprobs_of(index)), out);
    }
    event("response.output_item.done",
          R"("output_index":)" + std::to_string(index) + R"(,"item":)" +
              item_json(item, item_status(index), logprobs_of(index)),
          out);
  }

  std::string end_answer() override {
    const bool complete = is_complete();
    std::string response = response_json(complete ? "completed" : "incomplete", output_json());
    if (object_.keep) {
      std::vector<ResponseItem> items;
      for (size_t i = 0; i < blocks().size(); ++i) items.push_back(item_of(i, true));
      object_.keep(std::move(items), response);
    }
    if (!stream_) return response;
    std::string out;
    event(complete ? "response.completed" : "response.incomplete", R"("response":)" + response, out);
    return out;
  }

  // Leaves the output out, because the client has its events.
  std::string fail_answer(const ApiError& error) override {
    const std::string code = error.code.value_or(error.type);
    std::string out;
    event("error",
          R"("code":)" + json_quote(code) + R"(,"message":)" + json_quote(error.message) + R"(,"param":)" +
              (error.param ? json_quote(*error.param) : "null"),
          out);
    const std::string reason = R"({"code":)" + json_quote(code) + R"(,"message":)" + json_quote(error.message) + "}";
    event("response.failed", R"("response":)" + response_json("failed", {}, reason), out);
    return out;
  }

  Kind kind(size_t index) const { return blocks()[index].kind; }
  std::string_view logprobs_of(size_t index) const {
    return kind(index) == Kind::kText ? std::string_view(logprobs()) : std::string_view();
  }

  bool is_complete() const {
    const std::string_view reason = output().finish_reason();
    return reason == "stop" || reason == "tool_calls";
  }
  // Only the last item can be cut by a limit.
  const char* item_status(size_t index) const {
    const bool cut = output().finish() && !is_complete() && index + 1 == blocks().size();
    return cut ? "incomplete" : "completed";
  }

  // The growing block's event. A search has none, because it comes whole.
  const char* text_event() const {
    switch (item_kind_) {
      case ItemKind::kReasoning:
        return "response.reasoning_text";
      case ItemKind::kCall:
        return "response.function_call_arguments";
      case ItemKind::kCustomCall:
        return "response.custom_tool_call_input";
      default:
        return "response.output_text";
    }
  }

  ResponseItem item_of(size_t index, bool with_text) const {
    const AnswerBlock& block = blocks()[index];
    ResponseItem item;
    if (with_text) item.text = block.text;
    if (block.kind == Kind::kCall) {
      fill_call(block, item);
    } else if (block.kind == Kind::kReasoning) {
      item.kind = ItemKind::kReasoning;
      item.sealed = object_.seals_thoughts;
    } else {
      item.role = "assistant";
    }
    item.id = std::string(id_prefix(item.kind)) + object_.id_suffix + "_" + std::to_string(index);
    return item;
  }

  void fill_call(const AnswerBlock& block, ResponseItem& item) const {
    const ResponseTool tool = object_.tools.find(block.name);
    item.call_id = block.call_id;
    item.name = tool.name;
    item.space = tool.space;
    switch (tool.kind) {
      case ResponseTool::Kind::kFunction:
        item.kind = ItemKind::kCall;
        return;
      case ResponseTool::Kind::kCustom:
        item.kind = ItemKind::kCustomCall;
        return;
      case ResponseTool::Kind::kSearch:
        item.kind = ItemKind::kSearchCall;
        // An object; a cut one is none.
        if (!Json::accept(item.text) || !item.text.starts_with('{')) item.text = "{}";
    }
  }

  std::string output_json() const {
    std::string list;
    for (size_t i = 0; i < blocks().size(); ++i) {
      list.append(i > 0 ? "," : "").append(item_json(item_of(i, true), item_status(i), logprobs_of(i)));
    }
    return list;
  }

  // The place of an event's text.
  std::string place(size_t index) const {
    std::string members =
        R"("item_id":)" + json_quote(item_of(index, false).id) + R"(,"output_index":)" + std::to_string(index);
    if (kind(index) != Kind::kCall) members += R"(,"content_index":0)";
    return members;
  }

  void event(std::string_view type, const std::string& members, std::string& out) {
    out.append("event: ").append(type).append("\ndata: {\"type\":\"").append(type).append("\",\"sequence_number\":");
    out.append(std::to_string(sequence_++)).append(",").append(members).append("}\n\n");
  }

  std::string response_json(std::string_view status, const std::string& output,
                            const std::string& error = "null") const {
    const bool ended = status == "completed" || status == "incomplete";
    std::string json = R"({"id":)" + json_quote(info().id) + R"(,"object":"response","created_at":)" +
                       std::to_string(info().created) + R"(,"status":")" + std::string(status) +
                       R"(","completed_at":)" + (status == "completed" ? std::to_string(std::time(nullptr)) : "null") +
                       R"(,"error":)" + error + R"(,"incomplete_details":)";
    if (status == "incomplete") {
      const std::string_view reason = output_reason();
      json += R"({"reason":)" + json_quote(reason) + "}";
    } else {
      json += "null";
    }
    json += R"(,"model":)" + json_quote(info().model) + R"(,"output":[)" + output + R"(],"usage":)" +
            (ended ? usage_json() : "null");
    return json + "," + object_.echo + "}";
  }

  std::string_view output_reason() const {
    const std::string_view reason = output().finish_reason();
    return reason == "length" ? "max_output_tokens" : reason;
  }

  std::string usage_json() const {
    const UsageTotals& all = usage();
    const Json json = {{"input_tokens", all.prompt_tokens()},
                       {"input_tokens_details", {{"cached_tokens", all.cached_tokens()}}},
                       {"output_tokens", all.completion_tokens()},
                       {"output_tokens_details", {{"reasoning_tokens", all.reasoning_tokens()}}},
                       {"total_tokens", all.prompt_tokens() + all.completion_tokens()}};
    return json.dump();
  }

  const ResponseObject object_;
  const bool stream_;
  int64_t sequence_ = 0;
  ItemKind item_kind_ = ItemKind::kMessage;  // kind of a stream's growing block
};

}  // namespace

std::unique_ptr<ResponseWriter> responses_writer(ResponseInfo info, ResponseObject object, bool stream) {
  return std::make_unique<ResponsesWriter>(std::move(info), std::move(object), stream);
}

}  // namespace volley::serve
