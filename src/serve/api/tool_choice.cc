#include "serve/api/tool_choice.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using Choice = ToolRequest::Choice;

// The object in `object[name]`, or null.
const json* member_object(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

// Reads one element of "tools". `text`: its JSON, which the template gets unless it is custom. Nothing after an error.
std::optional<ShownTool> read_tool(FieldReader& in, const json& value, std::string_view text,
                                   const std::string& where) {
  const auto wrong = [&](const std::string& message) {
    in.fail(invalid_field("tools", where + message));
    return std::nullopt;
  };
  const json type = value.is_object() ? value.value("type", json()) : json();
  if (type != "function" && type != "custom") {
    return wrong(R"( must be an object with "type": "function" or "custom"; other types of tools are not supported.)");
  }
  const std::string kind = type;
  const json* tool = member_object(value, kind.c_str());
  if (!tool || !tool->contains("name") || !tool->at("name").is_string() || tool->at("name") == "") {
    return wrong("." + kind + " must be an object with a \"name\".");
  }
  const std::string name = tool->at("name");
  if (kind == "custom") {
    auto custom = custom_tool(name, text_member(*tool, "description"), member_of(*tool, "format"));
    if (custom) return custom;
    return wrong(R"(.custom.format must be {"type": "text"}, or {"type": "grammar", "grammar": {"syntax": "lark" or )"
                 R"("regex", "definition": …}}.)");
  }
  auto out = function_tool(name, {}, *tool, find_member(text, "function"));
  if (const auto* message = std::get_if<std::string>(&out)) return wrong(".function" + *message);
  std::get<ShownTool>(out).json = text;
  return std::get<ShownTool>(std::move(out));
}

bool read_tool_list(FieldReader& in, const json& list, std::string_view raw, ToolRequest& out) {
  const std::vector<std::string_view> texts = array_elements(raw);
  std::unordered_set<std::string> names;
  std::string functions;
  bool any_custom = false;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    auto read = read_tool(in, list.at(i), texts[i], where);
    if (!read) return false;
    if (!names.insert(read->tool.name).second) {
      in.fail(invalid_field("tools", where + ": there is another tool named " + json_quote(read->tool.name) + "."));
      return false;
    }
    any_custom = any_custom || read->tool.is_custom;
    functions.append(i > 0 ? "," : "").append(read->json);
    out.tools.push_back(std::move(read->tool));
  }
  out.tools_json = any_custom ? "[" + functions + "]" : std::string(raw);
  return true;
}

void fail_choice(FieldReader& in) {
  in.fail(invalid_field(
      "tool_choice",
      R"("tool_choice" must be "none", "auto", "required", {"type": "function", "function": {"name": …}}, )"
      R"({"type": "custom", "custom": {"name": …}} or )"
      R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}}.)"));
}

// Reads {"type": "function", "function": {"name": …}}, or the same with "custom".
std::optional<ToolChoice::Name> read_name(const json& reference) {
  const bool custom = reference.is_object() && reference.value("type", json()) == "custom";
  const json* named = reference.is_object() ? member_object(reference, custom ? "custom" : "function") : nullptr;
  if (!named || !named->contains("name") || !named->at("name").is_string()) return std::nullopt;
  return ToolChoice::Name{named->at("name"), custom};
}

// No value: it has another form.
std::optional<ToolChoice> read_choice(const json& choice) {
  using Mode = ToolChoice::Mode;
  if (choice == "none") return ToolChoice{Mode::kNone};
  if (choice == "auto") return ToolChoice{Mode::kAuto};
  if (choice == "required") return ToolChoice{Mode::kRequired};
  const json type = choice.is_object() ? choice.value("type", json()) : json();
  ToolChoice out;
  json references = json::array({choice});
  if (type == "function" || type == "custom") {
    out = {Mode::kRequired, {}, /*single=*/true};
  } else if (type == "allowed_tools" && member_object(choice, "allowed_tools")) {
    const json& allowed = choice.at("allowed_tools");
    const json mode = allowed.value("mode", json());
    references = allowed.value("tools", json());
    if ((mode != "auto" && mode != "required") || !references.is_array()) return std::nullopt;
    out.mode = mode == "auto" ? Mode::kAuto : Mode::kRequired;
  } else {
    return std::nullopt;
  }
  for (const json& reference : references) {
    auto name = read_name(reference);
    if (!name) return std::nullopt;
    out.names.push_back(std::move(*name));
  }
  return out.names.empty() ? std::nullopt : std::optional(std::move(out));
}

// Keeps only the tools of these names, in their order. False: `in` has an error.
bool keep_named(FieldReader& in, const std::vector<ToolChoice::Name>& names, ToolRequest& out) {
  std::unordered_map<std::string_view, Tool*> rest;
  for (Tool& tool : out.tools) rest.emplace(tool.name, &tool);
  std::vector<Tool> kept;
  for (const auto& [name, is_custom] : names) {
    const auto found = rest.find(name);
    if (found == rest.end() || found->second->is_custom != is_custom) {
      in.fail(invalid_field("tool_choice", "\"tool_choice\" names " + json_quote(name) +
                                               ", but \"tools\" holds none of that name and type."));
      return false;
    }
    Tool& tool = *found->second;
    rest.erase(found);
    kept.push_back(std::move(tool));
  }
  if (!rest.empty()) out.constrained_by = "tool_choice";
  out.tools = std::move(kept);
  return true;
}

}  // namespace

void read_tools(FieldReader& in, std::string_view body, ToolRequest& out) {
  const json* tools = in.list("tools", "tools");
  const json* choice = in.get("tool_choice");
  if (!tools && in.get("tools")) return;  // another kind, which has failed
  std::optional<ToolChoice> chosen;
  if (choice) {
    chosen = read_choice(*choice);
    if (!chosen) {
      fail_choice(in);
      return;
    }
  }
  if (tools && !tools->empty() && !read_tool_list(in, *tools, find_member(body, "tools"), out)) return;
  choose_tools(in, chosen, out);
}

void choose_tools(FieldReader& in, const std::optional<ToolChoice>& chosen, ToolRequest& out) {
  in.boolean("parallel_tool_calls", out.parallel);
  if (out.tools.empty()) {
    if (chosen && (chosen->mode == Choice::kRequired || !chosen->names.empty())) {
      in.fail(invalid_field("tool_choice", "\"tool_choice\" asks for a call, but the request has no \"tools\"."));
    }
    return;
  }
  const ToolChoice choice = chosen.value_or(ToolChoice{});
  out.choice = choice.mode;
  if (!choice.names.empty() && !keep_named(in, choice.names, out)) return;
  if (choice.single) out.parallel = false;
  if (out.choice == Choice::kNone) {
    out.tools.clear();
    out.tools_json.clear();
    return;
  }
  const bool strict = std::any_of(out.tools.begin(), out.tools.end(), [](const Tool& tool) { return tool.strict; });
  if (out.choice == Choice::kRequired) {
    out.constrained_by = "tool_choice";
  } else if (out.constrained_by.empty() && (strict || !out.parallel)) {
    out.constrained_by = strict ? "tools" : out.parallel_field;
  }
}

}  // namespace volley::serve
