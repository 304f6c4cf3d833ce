#include "serve/responses/response_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/api/custom_tool.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using nlohmann::json;
using ToolKind = ResponseTool::Kind;

constexpr std::string_view kDefaultSpace = "functions";  // OpenAI's name for tools in no other namespace
constexpr std::string_view kSearch = "tool_search";
constexpr std::string_view kSeparator = "__";

// Both, on lines of their own.
std::string paragraphs(std::string first, const std::string& second) {
  if (!first.empty() && !second.empty()) first += "\n\n";
  return first + second;
}

void fail_choice(FieldReader& in) {
  in.fail(invalid_field("tool_choice",
                        R"("tool_choice" must be "none", "auto", "required", {"type": "function" or "custom", )"
                        R"("name": …} or {"type": "allowed_tools", "mode": "auto" or "required", "tools": […]}.)"));
}

}  // namespace

bool is_hosted_response_tool(std::string_view type) {
  return is_hosted_type(type, {"web_search", "file_search", "code_interpreter", "image_generation", "mcp", "computer",
                               "local_shell", "shell", "apply_patch", kSearch, "programmatic_tool_calling"});
}

std::string model_tool_name(std::string_view space, std::string_view name) {
  if (space.empty() || space == kDefaultSpace) return std::string(name);
  return std::string(space).append(space.ends_with(kSeparator) ? "" : kSeparator).append(name);
}

// Reads one list, with its namespaces.
class ResponseTools::Reader {
 public:
  Reader(ResponseTools& tools, FieldReader& in, const std::string& field, HostedTools& hosted, bool again)
      : tools_(tools), in_(in), field_(field.substr(0, field.find('['))), hosted_(hosted), again_(again) {}

  bool read(const json& tool, std::string_view raw, const std::string& where) {
    const std::string type = text_member(tool, "type");
    if (type == "namespace") return read_namespace(tool, raw, where);
    if (type == kSearch && text_member(tool, "execution") == "client") return read_search(tool, raw, where);
    if (is_hosted_response_tool(type)) {
      left_out_ = true;
      return hosted_.leave_out(where, type);
    }
    return read_callable(tool, type, raw, where);
  }

  bool left_out() const { return left_out_; }  // the last tool was left out

 private:
  bool read_callable(const json& tool, const std::string& type, std::string_view raw, const std::string& where) {
    if (type == "function") return read_function(tool, raw, where);
    if (type == "custom") return read_custom(tool, where);
    if (!tool.is_object() || type.empty()) return wrong(where + R"( must be an object with a "type" and a "name".)");
    in_.fail(unsupported_field(field_, where + " is of type " + excerpt(json(type)) +
                                           ". Functions, custom tools and namespaces of them are supported."));
    return false;
  }

  bool read_function(const json& tool, std::string_view raw, const std::string& where) {
    const std::string name = text_member(tool, "name");
    if (name.empty()) return wrong(where + R"( must be an object with "type": "function" and a "name".)");
    return add_function({ToolKind::kFunction, name, space_}, description_of(tool), tool, raw, where);
  }

  bool read_custom(const json& tool, const std::string& where) {
    const std::string name = text_member(tool, "name");
    if (name.empty()) return wrong(where + R"( must be an object with "type": "custom" and a "name".)");
    auto shown = custom_tool(model_tool_name(space_, name), description_of(tool), tool.value("format", json()));
    if (!shown) {
      return wrong(where + R"(.format must be {"type": "text"}, or {"type": "grammar", "syntax": "lark" or "regex", )"
                           R"("definition": …}.)");
    }
    return add({{ToolKind::kCustom, name, space_}, std::move(*shown)}, where);
  }

  bool read_search(const json& tool, std::string_view raw, const std::string& where) {
    return add_function({ToolKind::kSearch, std::string(kSearch)}, text_member(tool, "description"), tool, raw, where);
  }

  bool read_namespace(const json& tool, std::string_view raw, const std::string& where) {
    space_ = text_member(tool, "name");
    const auto list = tool.find("tools");
    if (space_.empty() || list == tool.end() || !list->is_array()) {
      return wrong(where + R"( must be an object with "type": "namespace", a "name" and "tools".)");
    }
    about_space_ = text_member(tool, "description");
    const std::vector<std::string_view> texts = array_elements(find_member(raw, "tools"));
    for (size_t i = 0; i < texts.size(); ++i) {
      const json& inner = list->at(i);
      const std::string type = text_member(inner, "type");
      if (!read_callable(inner, type, texts[i], where + ".tools[" + std::to_string(i) + "]")) return false;
    }
    space_.clear();
    about_space_.clear();
    return true;
  }

  // A namespace's description comes once, with its first tool.
  std::string description_of(const json& tool) {
    return paragraphs(std::exchange(about_space_, {}), text_member(tool, "description"));
  }

  bool add_function(ResponseTool own, const std::string& description, const json& tool, std::string_view raw,
                    const std::string& where) {
    auto function = function_tool(model_tool_name(own.space, own.name),
                                  description.empty() ? "" : json_quote(description), tool, raw);
    if (const auto* message = std::get_if<std::string>(&function)) return wrong(where + *message);
    return add({std::move(own), std::get<ShownTool>(std::move(function))}, where);
  }

  bool add(Entry entry, const std::string& where) {
    if (!again_ && tools_.by_model_name_.contains(entry.model_name())) {
      return wrong(where + ": there is another tool named " + json_quote(entry.model_name()) + ".");
    }
    tools_.insert(std::move(entry));
    return true;
  }

  bool wrong(std::string message) {
    in_.fail(invalid_field(field_, std::move(message)));
    return false;
  }

  ResponseTools& tools_;
  FieldReader& in_;
  const std::string field_;
  HostedTools& hosted_;
  const bool again_;
  std::string space_, about_space_;  // the current namespace
  bool left_out_ = false;
};

bool ResponseTools::add(FieldReader& in, std::string_view raw, const std::string& field, HostedTools& hosted,
                        bool again) {
  const auto list = read_json(raw);
  const std::vector<std::string_view> texts = array_elements(raw);
  for (size_t i = 0; i < texts.size(); ++i) {
    Reader reader(*this, in, field, hosted, again);
    if (!reader.read(list.at(i), texts[i], field + "[" + std::to_string(i) + "]")) return false;
    if (!reader.left_out() && !again) echo_.append(echo_.empty() ? "" : ",").append(texts[i]);
  }
  return true;
}

void ResponseTools::fill(ToolRequest& out) const {
  for (const Entry& entry : tools_) {
    out.tools_json.append(out.tools_json.empty() ? "[" : ",").append(entry.shown.json);
    out.tools.push_back(entry.shown.tool);
  }
  if (!tools_.empty()) out.tools_json += ']';
}

void ResponseTools::insert(Entry entry) {
  const auto [known, is_new] = by_model_name_.emplace(entry.model_name(), tools_.size());
  if (!is_new) {
    tools_[known->second] = std::move(entry);
    return;
  }
  const auto& [kind, name, space] = entry.tool;
  if (!space.empty()) {
    for (const std::string& other : {name, space + "." + name}) {
      const auto [same, is_only] = by_other_name_.emplace(other, tools_.size());
      if (!is_only) same->second = kSeveral;
    }
  }
  tools_.push_back(std::move(entry));
}

const ResponseTools::Entry* ResponseTools::look_up(std::string_view model_name) const {
  const std::string name(model_name);
  if (const auto found = by_model_name_.find(name); found != by_model_name_.end()) return &tools_[found->second];
  const auto other = by_other_name_.find(name);
  return other == by_other_name_.end() || other->second == kSeveral ? nullptr : &tools_[other->second];
}

ResponseTool ResponseTools::find(std::string_view model_name) const {
  const Entry* found = look_up(model_name);
  return found ? found->tool : ResponseTool{ToolKind::kFunction, std::string(model_name)};
}

const ResponseTools::Entry* ResponseTools::named_by(const json& reference) const {
  const std::string type = text_member(reference, "type");
  const std::string name = type == kSearch ? type : text_member(reference, "name");
  const Entry* found = look_up(model_tool_name(text_member(reference, "namespace"), name));
  const ToolKind kind = type == kSearch    ? ToolKind::kSearch
                        : type == "custom" ? ToolKind::kCustom
                                           : ToolKind::kFunction;
  return found && found->tool.kind == kind ? found : nullptr;
}

std::optional<ToolChoice> ResponseTools::choose(FieldReader& in, const json& choice) const {
  using Mode = ToolChoice::Mode;
  if (choice == "none") return ToolChoice{Mode::kNone};
  if (choice == "auto") return ToolChoice{Mode::kAuto};
  if (choice == "required") return ToolChoice{Mode::kRequired};
  ToolChoice out{Mode::kRequired, {}, /*single=*/true};
  if (!choice.is_object() || text_member(choice, "type") != "allowed_tools") {
    return add_name(in, choice, out) ? std::optional(std::move(out)) : std::nullopt;
  }
  const json mode = choice.value("mode", json()), tools = choice.value("tools", json());
  if ((mode != "auto" && mode != "required") || !tools.is_array() || tools.empty()) {
    fail_choice(in);
    return std::nullopt;
  }
  out = {mode == "auto" ? Mode::kAuto : Mode::kRequired};
  const json* left_out = nullptr;
  for (const json& tool : tools) {
    if (tool.is_object() && is_hosted_response_tool(text_member(tool, "type")) && !named_by(tool)) {
      left_out = &tool;
    } else if (!add_name(in, tool, out)) {
      return std::nullopt;
    }
  }
  if (out.names.empty() && !add_name(in, *left_out, out)) return std::nullopt;
  return out;
}

// Adds the tool that `reference` names. False: no such tool.
bool ResponseTools::add_name(FieldReader& in, const json& reference, ToolChoice& out) const {
  const std::string type = text_member(reference, "type");
  if (const Entry* named = type.empty() ? nullptr : named_by(reference)) {
    out.names.push_back({named->model_name(), named->tool.kind == ToolKind::kCustom});
    return true;
  }
  if (is_hosted_response_tool(type)) {
    in.fail(unsupported_field("tool_choice", "\"tool_choice\" asks for a tool of type " + in_quotes(type) +
                                                 ", which cannot run here. Choose another one."));
  } else if (type == "function" || type == "custom") {
    in.fail(invalid_field("tool_choice", "\"tool_choice\" names " + excerpt(reference.value("name", json())) +
                                             ", but \"tools\" holds none of that name and of type " + in_quotes(type) +
                                             "."));
  } else {
    fail_choice(in);
  }
  return false;
}

}  // namespace volley::serve
