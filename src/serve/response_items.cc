#include "serve/response_items.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/chat_body.h"
#include "serve/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Kind = ResponseItem::Kind;

constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};

std::string type_of(const json& object) {
  const auto found = object.find("type");
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Reads the items of one "input".
class ItemReader {
 public:
  ItemReader(FieldReader& in, std::string id_suffix, const FindItem& find)
      : in_(in), id_suffix_(std::move(id_suffix)), find_(find) {}

  std::vector<ResponseItem> read(const json& list) {
    std::vector<ResponseItem> items;
    for (size_t i = 0; i < list.size() && !in_.error(); ++i) {
      where_ = "input[" + std::to_string(i) + "]";
      auto item = read_item(list.at(i));
      if (!item) break;
      if (item->id.empty()) item->id = std::string(id_prefix(item->kind)) + id_suffix_ + "_in" + std::to_string(i);
      items.push_back(std::move(*item));
    }
    return items;
  }

 private:
  std::optional<ResponseItem> read_item(const json& value) {
    if (!value.is_object()) return wrong(" must be an object, not " + excerpt(value) + ".");
    const std::string type = type_of(value);
    ResponseItem item;
    if (value.contains("id") && value.at("id").is_string()) item.id = value.at("id").get<std::string>();
    if (type == "message" || (type.empty() && value.contains("role"))) return read_message(value, std::move(item));
    if (type == "function_call") return read_call(value, std::move(item));
    if (type == "function_call_output") return read_output(value, std::move(item));
    if (type == "reasoning") return read_reasoning(value, std::move(item));
    if (type == "item_reference") return refer(item.id);
    in_.fail(unsupported_field(
        "input", where_ + " is of type " + excerpt(value.value("type", json())) +
                     ". Messages, function_call, function_call_output, reasoning and item_reference are supported."));
    return std::nullopt;
  }

  std::optional<ResponseItem> read_message(const json& value, ResponseItem item) {
    item.kind = Kind::kMessage;
    const auto role = value.find("role");
    if (role == value.end() || !role->is_string() ||
        std::find(std::begin(kRoles), std::end(kRoles), role->get_ref<const std::string&>()) == std::end(kRoles)) {
      return wrong(R"(.role must be "user", "assistant", "system" or "developer".)");
    }
    item.role = role->get<std::string>();
    if (!read_text(value, "content", {"input_text", "output_text", "text", "refusal"}, item.text)) return std::nullopt;
    return item;
  }

  std::optional<ResponseItem> read_call(const json& value, ResponseItem item) {
    item.kind = Kind::kCall;
    if (!read_string(value, "call_id", item.call_id) || !read_string(value, "name", item.name) ||
        !read_string(value, "arguments", item.text)) {
      return std::nullopt;
    }
    return item;
  }

  std::optional<ResponseItem> read_output(const json& value, ResponseItem item) {
    item.kind = Kind::kCallOutput;
    if (!read_string(value, "call_id", item.call_id)) return std::nullopt;
    if (!read_text(value, "output", {"input_text", "output_text", "text"}, item.text)) return std::nullopt;
    return item;
  }

  // The thoughts themselves where there are any, else their summary. Encrypted ones of another service say nothing.
  std::optional<ResponseItem> read_reasoning(const json& value, ResponseItem item) {
    item.kind = Kind::kReasoning;
    for (const char* name : {"content", "summary"}) {
      const auto list = value.find(name);
      if (list == value.end() || list->is_null() || !item.text.empty()) continue;
      if (!read_text(value, name, {"reasoning_text", "summary_text", "text"}, item.text)) return std::nullopt;
    }
    return item;
  }

  std::optional<ResponseItem> refer(const std::string& id) {
    auto item = find_(id);
    if (item) return item;
    ApiError error = invalid_field("input", where_ + " refers to the item " + json_quote(id.substr(0, 100)) +
                                                ", which is not kept here. Send the item itself.");
    error.code = "item_not_found";
    in_.fail(std::move(error));
    return std::nullopt;
  }

  bool read_string(const json& value, const char* name, std::string& out) {
    const auto found = value.find(name);
    if (found == value.end() || !found->is_string()) return fail("." + std::string(name) + " must be a string.");
    out = found->get<std::string>();
    return true;
  }

  // A text, or a list of parts of these types, joined by line ends.
  bool read_text(const json& value, const char* name, std::initializer_list<std::string_view> types, std::string& out) {
    const auto found = value.find(name);
    const std::string field = "." + std::string(name);
    if (found != value.end() && found->is_string()) {
      out = found->get<std::string>();
      return true;
    }
    if (found == value.end() || !found->is_array()) return fail(field + " must be a text or a list of parts.");
    for (size_t i = 0; i < found->size(); ++i) {
      const json& part = found->at(i);
      const std::string at = field + "[" + std::to_string(i) + "]";
      if (!part.is_object()) return fail(at + " must be an object with a \"type\".");
      const std::string type = type_of(part);
      if (std::find(types.begin(), types.end(), type) == types.end()) {
        in_.fail(unsupported_field(
            "input", where_ + at + " is of type " + excerpt(part.value("type", json())) + ". Only text is supported."));
        return false;
      }
      const auto text = part.find(type == "refusal" ? "refusal" : "text");
      if (text == part.end() || !text->is_string()) return fail(at + " must hold a text.");
      if (i > 0) out += '\n';
      out += text->get_ref<const std::string&>();
    }
    return true;
  }

  std::nullopt_t wrong(const std::string& message) {
    fail(message);
    return std::nullopt;
  }
  bool fail(const std::string& message) {
    in_.fail(invalid_field("input", where_ + message));
    return false;
  }

  FieldReader& in_;
  const std::string id_suffix_;
  const FindItem& find_;
  std::string where_;
};

}  // namespace

std::string_view id_prefix(Kind kind) {
  switch (kind) {
    case Kind::kMessage:
      return "msg_";
    case Kind::kReasoning:
      return "rs_";
    case Kind::kCall:
      return "fc_";
    case Kind::kCallOutput:
      break;
  }
  return "fco_";
}

std::string part_json(const ResponseItem& item, std::string_view logprobs) {
  if (item.kind == Kind::kReasoning) return R"({"type":"reasoning_text","text":)" + json_quote(item.text) + "}";
  if (item.role != "assistant") return R"({"type":"input_text","text":)" + json_quote(item.text) + "}";
  return R"({"type":"output_text","text":)" + json_quote(item.text) + R"(,"annotations":[],"logprobs":[)" +
         std::string(logprobs) + "]}";
}

std::string item_json(const ResponseItem& item, std::string_view status, std::string_view logprobs) {
  std::string json = R"({"id":)" + json_quote(item.id) + R"(,"status":")" + std::string(status) + R"(","type":)";
  const bool begun = status != "in_progress";
  const std::string content = begun ? "[" + part_json(item, logprobs) + "]" : "[]";
  switch (item.kind) {
    case Kind::kMessage:
      return json + R"("message","role":)" + json_quote(item.role) + R"(,"content":)" + content + "}";
    case Kind::kReasoning:
      return json + R"("reasoning","summary":[],"content":)" + content + "}";
    case Kind::kCall:
      return json + R"("function_call","call_id":)" + json_quote(item.call_id) + R"(,"name":)" + json_quote(item.name) +
             R"(,"arguments":)" + json_quote(item.text) + "}";
    case Kind::kCallOutput:
      break;
  }
  return json + R"("function_call_output","call_id":)" + json_quote(item.call_id) + R"(,"output":)" +
         json_quote(item.text) + "}";
}

std::vector<ResponseItem> read_input(FieldReader& in, const std::string& id_suffix, const FindItem& find) {
  const json* input = in.get("input");
  if (input && input->is_string()) {
    return {{Kind::kMessage, "msg_" + id_suffix + "_in0", "user", input->get<std::string>()}};
  }
  if (!input || !input->is_array() || input->empty()) {
    in.fail(invalid_field("input", "\"input\" must be a text, or a list of at least one item."));
    return {};
  }
  return ItemReader(in, id_suffix, find).read(*input);
}

void add_turns(const std::vector<ResponseItem>& items, ChatTurns& turns) {
  for (const ResponseItem& item : items) {
    if (item.kind == Kind::kReasoning) {
      if (!item.text.empty()) turns.thought(item.text);
    } else if (item.kind == Kind::kCall) {
      turns.called(item.call_id, item.name, item.text);
    } else if (item.kind == Kind::kCallOutput) {
      turns.tool_result(item.call_id, item.text);
    } else if (item.role == "assistant") {
      turns.said(item.text);
    } else if (item.role == "user") {
      turns.user(item.text);
    } else {
      turns.system(item.text);
    }
  }
}

}  // namespace volley::serve
