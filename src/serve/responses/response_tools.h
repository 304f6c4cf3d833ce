// The tools of the Responses API as models know them, by one name each: a tool of a namespace has
// both names in one, and a search that the client runs is a function. Calls come back as what the client knows.
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
  std::string space = {};  // the namespace that it is of; empty: of none
};

// One that runs at OpenAI, or is the interface of its own models. A search is unless its "execution" is "client".
bool is_hosted_response_tool(std::string_view type);

// What the model calls the tool: "crm__find" for "find" of the namespace "crm".
std::string model_tool_name(std::string_view space, std::string_view name);

class ResponseTools {
 public:
  // Reads `raw`, a JSON array of tools as the client sent it; `field` is what errors call it: "tools",
  // "input[2].tools". Tools that cannot run here go to `hosted`. A tool of a name that is there already is an error, or
  // with `again` takes that one's place: the client has told of it once more. False: `in` has an error.
  bool add(FieldReader& in, std::string_view raw, const std::string& field, HostedTools& hosted, bool again);

  // For the model, which has one name for each.
  void fill(ToolRequest& out) const;
  const std::string& echo() const { return echo_; }  // what was read of the first list, as an array without brackets

  // The tool that the model means. Models leave out a namespace, or write a dot behind it: what is left must be one
  // tool's. Another name is that of a function which does not exist.
  ResponseTool find(std::string_view model_name) const;
  // "tool_choice". Tools that were left out are not missed among allowed ones, as long as another one is there.
  // Nothing: `in` has an error.
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
  // Tools of namespaces, by the names that models write instead; kSeveral where it could be either of two.
  std::unordered_map<std::string, size_t> by_other_name_;
  std::string echo_;
};

}  // namespace volley::serve
