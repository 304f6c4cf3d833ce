// The Responses API's tools under one name each, as models need: a namespaced tool has both names in one, and the
// client's search is a function. Calls come back in the client's form.
#pragma once

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "serve/api/hosted_tools.h"
#include "serve/api/tool_choice.h"
#include "serve/json/fields.h"

namespace volley::serve {

struct ResponseTool {
  enum class Kind { kFunction, kCustom, kSearch };

  Kind kind = Kind::kFunction;
  std::string name;
  std::string space = {};  // its namespace; may be empty
};

// Whether a tool runs at OpenAI, or belongs to its own models. A search does, unless its "execution" is "client".
bool is_hosted_response_tool(std::string_view type);

// The model's name for a tool: "crm__find" for "find" of the namespace "crm".
std::string model_tool_name(std::string_view space, std::string_view name);

class ResponseTools {
 public:
  // Reads `raw`, a JSON array of tools as the client sent it; `field` is its name in errors: "tools", "input[2].tools".
  // `hosted` gets tools that cannot run here. A repeated name is an error, or with `again` replaces the earlier tool.
  // False: `in` has an error.
  bool add(FieldReader& in, std::string_view raw, const std::string& field, HostedTools& hosted, bool again);

  // For the model, with one name each.
  void fill(ToolRequest& out) const;
  const std::string& echo() const { return echo_; }  // the tools of the first list, as an array without brackets

  // The tool that the model means. Models leave out a namespace, or write a dot behind it: the rest must then be one
  // tool's. Any other name is that of a missing function.
  ResponseTool find(std::string_view model_name) const;
  // "tool_choice". Left-out tools may be among the allowed ones, if another one is there. No value: `in` has an error.
  std::optional<ToolChoice> choose(FieldReader& in, const nlohmann::json& choice) const;

 private:
  struct Entry {
    ResponseTool tool;
    ShownTool shown;

    const std::string& model_name() const { return shown.tool.name; }
  };
  class Reader;

  static constexpr size_t kSeveral = std::numeric_limits<size_t>::max();
  void insert(Entry entry);
  const Entry* look_up(std::string_view model_name) const;
  const Entry* named_by(const nlohmann::json& reference) const;
  bool add_name(FieldReader& in, const nlohmann::json& reference, ToolChoice& out) const;

  std::vector<Entry> tools_;
  std::unordered_map<std::string, size_t> by_model_name_;
  // Namespaced tools, by the names that models write instead; kSeveral if it could be two.
  std::unordered_map<std::string, size_t> by_other_name_;
  std::string echo_;
};

}  // namespace volley::serve
