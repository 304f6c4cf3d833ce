#include "serve/responses/response_items.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/api/chat_messages.h"
#include "serve/api/custom_tool.h"
#include "serve/api/sealed_text.h"
#include "serve/json/json_text.h"
#include "serve/responses/response_tools.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using ItemKind = ResponseItem::Kind;

constexpr std::string_view kTexts[] = {"input_text", "output_text", "text", "refusal"};
constexpr std::string_view kResultTexts[] = {"input_text", "output_text", "text"};
constexpr std::string_view kThoughtTexts[] = {"reasoning_text", "summary_text", "text"};
constexpr PartTypes::LeftOut kPictures[] = {{"input_image", "image"}, {"input_file", "file"}};
constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};

// The JSON form of a kind of item.
struct Form {
  ItemKind kind;
  std::string_view type, id_prefix;
  std::string_view text;  // the member with its text
  bool has_call_id = false;
  bool holds_json = false;  // its text is JSON
};

constexpr Form kForms[] = {
    {ItemKind::kMessage, "message", "msg_", "content"},
    {ItemKind::kReasoning, "reasoning", "rs_", "content"},
    {ItemKind::kCall, "function_call", "fc_", "arguments", true},
    {ItemKind::kCallOutput, "function_call_output", "fco_", "output", true},
    {ItemKind::kCustomCall, "custom_tool_call", "ctc_", "input", true},
    {ItemKind::kCustomOutput, "custom_tool_call_output", "ctco_", "output", true},
    {ItemKind::kSearchCall, "tool_search_call", "tsc_", "arguments", true, true},
    {ItemKind::kSearchOutput, "tool_search_output", "tso_", "tools", true, true},
    {ItemKind::kTools, "additional_tools", "at_", "tools", false, true},
    {ItemKind::kForeign, "", "item_", ""},
};

const Form& form_of(ItemKind kind) {
  return *std::ranges::find(kForms, kind, &Form::kind);
}

class ItemReader {
 public:
  ItemReader(FieldReader& in, std::string id_suffix, bool sees, const FindItem& find, Notes& notes)
      : in_(in), id_suffix_(std::move(id_suffix)), sees_(sees), find_(find), notes_(notes) {}

  std::vector<ResponseItem> read(const json& list, std::string_view raw) {
    std::vector<ResponseItem> items;
    const std::vector<std::string_view> texts = array_elements(raw);
    for (size_t i = 0; i < list.size() && !in_.error(); ++i) {
      where_ = "input[" + std::to_string(i) + "]";
      auto item = read_item(list.at(i), texts[i]);
      if (!item) break;
      if (item->id.empty()) item->id = std::string(id_prefix(item->kind)) + id_suffix_ + "_in" + std::to_string(i);
      items.push_back(std::move(*item));
    }
    return items;
  }

 private:
  std::optional<ResponseItem> read_item(const json& value, std::string_view raw) {
    if (!value.is_object()) return wrong(" must be an object, not " + excerpt(value) + ".");
    const std::string type = text_member(value, "type");
    ResponseItem item;
    if (value.contains("id") && value.at("id").is_string()) item.id = value.at("id").get<std::string>();
    if (is_foreign(type, value)) return keep_foreign(type, raw, std::move(item));
    if (type == "item_reference") return refer(item.id);
    const auto form = std::ranges::find(kForms, type.empty() && value.contains("role") ? "message" : type, &Form::type);
    if (form == std::end(kForms) || form->type.empty()) {
      in_.fail(unsupported_field(
          "input", where_ + " is of type " + excerpt(value.value("type", json())) +
                       ". Messages, reasoning, calls of tools, their outputs, additional_tools and item_reference are "
                       "supported."));
      return std::nullopt;
    }
    item.kind = form->kind;
    if (form->has_call_id && !read_string(value, "call_id", item.call_id)) return std::nullopt;
    switch (form->kind) {
      case ItemKind::kMessage:
        return read_message(value, std::move(item));
      case ItemKind::kReasoning:
        return read_reasoning(value, std::move(item));
      case ItemKind::kCall:
      case ItemKind::kCustomCall:
        return read_call(value, *form, std::move(item));
      case ItemKind::kCallOutput:
      case ItemKind::kCustomOutput:
        if (!read_text(value, "output", kResultTexts, item.text, kPictures, &item.pictures)) return std::nullopt;
        return item;
      case ItemKind::kSearchCall:
        if (!value.value("arguments", json()).is_object()) return wrong(".arguments must be an object.");
        break;
      default:
        if (!value.value("tools", json()).is_array()) return wrong(".tools must be a list of tools.");
    }
    item.text = find_member(raw, form->text);
    return item;
  }

  // A tool search is the client's by default.
  static bool is_foreign(std::string_view type, const json& value) {
    if (type.starts_with("tool_search_")) return value.value("execution", json()) == "server";
    return is_hosted_response_tool(type) || is_hosted_type(type, {"compaction", "context_compaction"});
  }

  ResponseItem keep_foreign(std::string_view type, std::string_view raw, ResponseItem item) {
    note_foreign(type, notes_);
    item.kind = ItemKind::kForeign;
    item.text = raw;
    return item;
  }

  std::optional<ResponseItem> read_message(const json& value, ResponseItem item) {
    const auto role = value.find("role");
    if (role == value.end() || !role->is_string() ||
        std::find(std::begin(kRoles), std::end(kRoles), role->get_ref<const std::string&>()) == std::end(kRoles)) {
      return wrong(R"(.role must be "user", "assistant", "system" or "developer".)");
    }
    item.role = role->get<std::string>();
    const bool may_show = item.role == "user";
    if (!read_text(value, "content", kTexts, item.text, {}, may_show ? &item.pictures : nullptr)) return std::nullopt;
    return item;
  }

  std::optional<ResponseItem> read_call(const json& value, const Form& form, ResponseItem item) {
    if (!read_string(value, "name", item.name)) return std::nullopt;
    // A function may have been called without arguments, which clients write in several ways.
    const bool says_nothing = item.kind == ItemKind::kCall && value.value(form.text, json()).is_null();
    if (!says_nothing && !read_string(value, form.text, item.text)) return std::nullopt;
    item.space = text_member(value, "namespace");
    return item;
  }

  // Takes the thoughts themselves, else our sealed ones, else the summary. Other services' encrypted text is
  // unreadable.
  std::optional<ResponseItem> read_reasoning(const json& value, ResponseItem item) {
    const auto read_list = [&](const char* name) {
      const auto list = value.find(name);
      if (list == value.end() || list->is_null() || !item.text.empty()) return true;
      return read_text(value, name, kThoughtTexts, item.text);
    };
    if (!read_list("content")) return std::nullopt;
    const json sealed = value.value("encrypted_content", json());
    if (!sealed.is_string() && !sealed.is_null()) return wrong(".encrypted_content must be a string.");
    if (item.text.empty() && sealed.is_string()) {
      item.text = unseal_text(sealed.get_ref<const std::string&>()).value_or("");
    }
    if (!read_list("summary")) return std::nullopt;
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

  bool read_string(const json& value, std::string_view name, std::string& out) {
    const auto found = value.find(name);
    if (found == value.end() || !found->is_string()) return fail("." + std::string(name) + " must be a string.");
    out = found->get<std::string>();
    return true;
  }

  // Reads a text, or a list of parts of these types.
  bool read_text(const json& value, const char* name, std::span<const std::string_view> texts, std::string& out,
                 std::span<const PartTypes::LeftOut> left_out = {}, std::vector<ChatPicture>* pictures = nullptr) {
    const PartTypes types{"input", "Only text is supported.", texts, left_out, sees_ ? pictures : nullptr};
    return read_parts(in_, "input", member_of(value, name), where_ + "." + name, out,
                      [&](const json& part, const std::string& at, std::string& text) {
                        return read_part(in_, types, part, at, notes_, text);
                      });
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
  const bool sees_;
  const FindItem& find_;
  Notes& notes_;
  std::string where_;
};

}  // namespace

std::string_view id_prefix(ItemKind kind) {
  return form_of(kind).id_prefix;
}

std::string part_json(const ResponseItem& item, std::string_view logprobs) {
  if (item.kind == ItemKind::kReasoning) return R"({"type":"reasoning_text","text":)" + json_quote(item.text) + "}";
  if (item.role != "assistant") return R"({"type":"input_text","text":)" + json_quote(item.text) + "}";
  return R"({"type":"output_text","text":)" + json_quote(item.text) + R"(,"annotations":[],"logprobs":[)" +
         std::string(logprobs) + "]}";
}

namespace {

// The parts of an item with pictures.
std::string shown_parts(const ResponseItem& item) {
  std::string parts;
  std::string_view rest = item.text;
  const auto add = [&parts](std::string_view part, std::string_view value) {
    parts.append(parts.empty() ? "" : ",").append(part).append(json_quote(value)).append("}");
  };
  for (size_t i = 0; i <= item.pictures.size(); ++i) {
    const std::string_view text = rest.substr(0, rest.find(kPicture));
    if (!text.empty()) add(R"({"type":"input_text","text":)", text);
    if (i == item.pictures.size()) break;
    const auto& [where, url, is_file] = item.pictures[i];
    add(is_file ? R"({"type":"input_image","detail":"auto","file_id":)"
                : R"({"type":"input_image","detail":"auto","image_url":)",
        url);
    rest.remove_prefix(text.size() + 1);
  }
  return "[" + parts + "]";
}

}  // namespace

std::string item_json(const ResponseItem& item, std::string_view status, std::string_view logprobs) {
  if (item.kind == ItemKind::kForeign) {
    std::string json = R"({"id":)" + json_quote(item.id);
    for (const auto& [name, value] : object_members(item.text)) {
      if (name != "id") json.append(",").append(json_quote(name)).append(":").append(value);
    }
    return json + "}";
  }
  const bool begun = status != "in_progress";
  const Form& form = form_of(item.kind);
  std::string json = R"({"id":)" + json_quote(item.id) + R"(,"status":")" + std::string(status) + R"(","type":")" +
                     std::string(form.type) + "\"";
  const auto add = [&](std::string_view name, std::string_view value) {
    json.append(",").append(json_quote(name)).append(":").append(value);
  };
  if (item.kind == ItemKind::kTools) add("role", R"("developer")");
  if (item.kind == ItemKind::kMessage) add("role", json_quote(item.role));
  if (item.kind == ItemKind::kReasoning) add("summary", "[]");
  if (form.has_call_id) add("call_id", json_quote(item.call_id));
  if (item.kind == ItemKind::kCall || item.kind == ItemKind::kCustomCall) {
    add("name", json_quote(item.name));
    if (!item.space.empty()) add("namespace", json_quote(item.space));
  }
  if (item.kind == ItemKind::kSearchCall || item.kind == ItemKind::kSearchOutput) add("execution", R"("client")");
  if (item.kind == ItemKind::kMessage || item.kind == ItemKind::kReasoning) {
    add(form.text, !item.pictures.empty() ? shown_parts(item) : begun ? "[" + part_json(item, logprobs) + "]" : "[]");
  } else if (!item.pictures.empty()) {
    add(form.text, shown_parts(item));
  } else {
    add(form.text, form.holds_json ? item.text : json_quote(item.text));
  }
  if (item.kind == ItemKind::kReasoning) {
    add("encrypted_content", item.sealed && begun ? json_quote(seal_text(item.text)) : "null");
  }
  return json + "}";
}

std::vector<ResponseItem> read_input(FieldReader& in, std::string_view raw, const std::string& id_suffix, bool sees,
                                     const FindItem& find, Notes& notes) {
  const json* input = in.get("input");
  if (input && input->is_string()) {
    return {{ItemKind::kMessage, "msg_" + id_suffix + "_in0", "user", input->get<std::string>()}};
  }
  if (!input || !input->is_array() || input->empty()) {
    in.fail(invalid_field("input", "\"input\" must be a text, or a list of at least one item."));
    return {};
  }
  return ItemReader(in, id_suffix, sees, find, notes).read(*input, raw);
}

namespace {

// The model's view of a search result: the tools themselves stand with all others.
std::string found_tools(std::string_view raw) {
  std::string names;
  const auto add = [&](std::string_view space, std::string_view tool) {
    const auto name = read_json(find_member(tool, "name"));
    if (!name.is_string()) return;
    names.append(names.empty() ? "" : ", ").append(model_tool_name(space, name.get_ref<const std::string&>()));
  };
  for (const std::string_view tool : array_elements(raw)) {
    const std::string_view inner = find_member(tool, "tools");
    if (!inner.starts_with('[')) {
      add({}, tool);
      continue;
    }
    const auto space = read_json(find_member(tool, "name"));
    for (const std::string_view one : array_elements(inner))
      add(space.is_string() ? space.get<std::string>() : "", one);
  }
  return names.empty() ? "No tool was found." : "These tools can be called now: " + names;
}

// Outputs are the client's, calls the assistant's.
void add_foreign(const json& value, ChatTurns& turns) {
  const std::string type = text_member(value, "type");
  const bool answers = type.ends_with("_output") || type.ends_with("_response");
  if (answers) return turns.user(foreign_text(value));
  turns.remarked(foreign_text(value));
}

void add_turn(const ResponseItem& item, ChatTurns& turns) {
  switch (item.kind) {
    case ItemKind::kReasoning:
      if (!item.text.empty()) turns.thought(item.text);
      return;
    case ItemKind::kCall:
      return turns.called(item.call_id, model_tool_name(item.space, item.name), item.text);
    case ItemKind::kCustomCall:
      return turns.called(item.call_id, model_tool_name(item.space, item.name), custom_arguments(item.text));
    case ItemKind::kSearchCall:
      return turns.called(item.call_id, "tool_search", item.text);
    case ItemKind::kCallOutput:
    case ItemKind::kCustomOutput:
      return turns.tool_result(item.call_id, item.text, item.pictures);
    case ItemKind::kSearchOutput:
      return turns.tool_result(item.call_id, found_tools(item.text));
    case ItemKind::kForeign:
      return add_foreign(read_json(item.text), turns);
    case ItemKind::kTools:
      return;
    case ItemKind::kMessage:
      break;
  }
  if (item.role == "assistant") return turns.said(item.text);
  if (item.role == "user") return turns.user(item.text, item.pictures);
  turns.system(item.text);
}

}  // namespace

void add_turns(const std::vector<ResponseItem>& items, ChatTurns& turns) {
  for (const ResponseItem& item : items) add_turn(item, turns);
}

}  // namespace volley::serve
