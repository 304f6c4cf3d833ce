// The tools of a request to /v1/messages. A tool with "defer_loading" is shown to the model once the conversation loads
// it: by a reference in a result of the client's search, or by a change in a system message. The model reads the tools
// at the conversation's end, so any chat template can print them. Anthropic's own tools, whose types end with a date,
// are left out. Pure.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/hosted_tools.h"
#include "serve/api/tool_choice.h"
#include "serve/json/fields.h"

namespace volley::serve {

class MessagesTools {
 public:
  // `refuse_hosted`: tools that cannot run here are errors.
  MessagesTools(FieldReader& in, bool refuse_hosted) : in_(in), hosted_(in, refuse_hosted) {}

  // The request's "tools", a list: `raw` is their text. False after an error, in all of these functions.
  bool read(const nlohmann::json& tools, std::string_view raw);
  // A message's own tool. It replaces one of that name.
  bool define(const nlohmann::json& tool, std::string_view raw, std::string_view field, const std::string& where);

  // False: no tool of that name.
  bool load(std::string_view name);
  void unload(std::string_view name);

  // Moves out the tools that the model sees. Call last.
  void take(ToolRequest& out);
  const std::set<std::string>& left_out() const { return hosted_.types(); }

 private:
  struct Entry {
    ShownTool shown;
    bool loaded;
  };
  // No value: `in` has an error.
  std::optional<Entry> read_tool(const nlohmann::json& tool, std::string_view raw, std::string_view field,
                                 const std::string& where);
  // The first of that name, or null.
  Entry* find(std::string_view name);
  void add(Entry entry);

  FieldReader& in_;
  HostedTools hosted_;
  std::vector<Entry> tools_;
  std::map<std::string, size_t, std::less<>> places_;  // index in tools_, by name
  bool loads_all_ = false;                             // the search among deferred tools would run elsewhere
};

}  // namespace volley::serve
