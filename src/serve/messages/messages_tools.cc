#include "serve/messages/messages_tools.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;

// The type of one of Anthropic's own tools, such as "web_search_20250305"; else empty. Most run there, and the model
// does not know the others.
std::string hosted_type(const json& tool) {
  constexpr size_t kDate = 9;  // letters of "_20250305"
  const json type = tool.is_object() ? tool.value("type", json()) : json();
  if (!type.is_string()) return "";
  const auto& name = type.get_ref<const std::string&>();
  if (name == "mcp_toolset") return name;
  const size_t end = name.size() > kDate ? name.size() - kDate : 0;
  const bool dated = end > 0 && name[end] == '_' && name.find_first_not_of("0123456789", end + 1) == std::string::npos;
  return dated && is_hosted_type(name, {std::string_view(name).substr(0, end)}) ? name : "";
}

}  // namespace

bool MessagesTools::read(const json& tools, std::string_view raw) {
  const std::vector<std::string_view> texts = array_elements(raw);
  for (size_t i = 0; i < texts.size(); ++i) {
    const json& tool = tools.at(i);
    const std::string where = "tools[" + std::to_string(i) + "]";
    if (const std::string type = hosted_type(tool); !type.empty()) {
      if (!hosted_.leave_out(where, type)) return false;
      loads_all_ = loads_all_ || type.starts_with("tool_search");
      continue;
    }
    auto entry = read_tool(tool, texts[i], "tools", where);
    if (!entry) return false;
    add(std::move(*entry));
  }
  return true;
}

bool MessagesTools::define(const json& tool, std::string_view raw, std::string_view field, const std::string& where) {
  if (const std::string type = hosted_type(tool); !type.empty()) return hosted_.leave_out(where, type);
  auto defined = read_tool(tool, raw, field, where);
  if (!defined) return false;
  defined->loaded = true;
  if (Entry* known = find(defined->shown.tool.name)) {
    *known = std::move(*defined);
  } else {
    add(std::move(*defined));
  }
  return true;
}

// A tool's other members concern caches and the streaming of its input.
std::optional<MessagesTools::Entry> MessagesTools::read_tool(const json& tool, std::string_view raw,
                                                             std::string_view field, const std::string& where) {
  const json& type = member_of(tool, "type");
  const json& defer = member_of(tool, "defer_loading");
  const std::string name = text_member(tool, "name");
  if (type.is_string() && type != "custom") {
    in_.fail(unsupported_field(field, where + " is of type " + excerpt(type) +
                                          ". Only tools that the client runs, with an \"input_schema\", are "
                                          "supported."));
  } else if (name.empty()) {
    in_.fail(invalid_field(field, where + " must be an object with a \"name\"."));
  } else if (member_of(tool, "input_schema").is_null()) {
    in_.fail(invalid_field(field, where + ".input_schema must be a JSON schema of an object."));
  } else if (!defer.is_boolean() && !defer.is_null()) {
    in_.fail(invalid_field(field, where + ".defer_loading must be true or false."));
  } else {
    const std::string description = text_member(tool, "description");
    auto shown = function_tool(name, description.empty() ? "" : json_quote(description), tool, raw, "input_schema");
    if (auto* read = std::get_if<ShownTool>(&shown)) return Entry{std::move(*read), defer != true};
    in_.fail(invalid_field(field, where + std::get<std::string>(shown)));
  }
  return std::nullopt;
}

MessagesTools::Entry* MessagesTools::find(std::string_view name) {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &tools_[place->second];
}

void MessagesTools::add(Entry entry) {
  places_.try_emplace(entry.shown.tool.name, tools_.size());
  tools_.push_back(std::move(entry));
}

bool MessagesTools::load(std::string_view name) {
  Entry* tool = find(name);
  if (tool) tool->loaded = true;
  return tool != nullptr;
}

void MessagesTools::unload(std::string_view name) {
  if (Entry* tool = find(name)) tool->loaded = false;
}

void MessagesTools::take(ToolRequest& out) {
  std::set<std::string> names;
  for (auto& [shown, loaded] : tools_) {
    if (!loaded && !loads_all_) continue;
    if (!names.insert(shown.tool.name).second) {
      in_.fail(invalid_field("tools", "tools[" + std::to_string(names.size()) + "]: there is another tool named " +
                                          json_quote(shown.tool.name) + "."));
      return;
    }
    out.tools_json.append(out.tools_json.empty() ? "[" : ",").append(shown.json);
    out.tools.push_back(std::move(shown.tool));
  }
  if (!out.tools_json.empty()) out.tools_json += ']';
}

}  // namespace volley::serve
