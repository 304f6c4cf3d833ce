// What a chat request says about tools. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/custom_tool.h"
#include "serve/json/fields.h"

namespace volley::serve {

// What "tool_choice" says, in whatever form an API has it.
struct ToolChoice {
  enum class Mode { kNone, kAuto, kRequired };
  struct Name {
    std::string name;
    bool is_custom = false;
  };

  Mode mode = Mode::kAuto;
  std::vector<Name> names = {};  // of the tools that may be called; empty: all
  bool single = false;           // one of `names`, called once
};

struct ToolRequest {
  using Choice = ToolChoice::Mode;

  // For the chat template: the client's own text, and functions for custom tools. Empty without tools and with "none".
  std::string tools_json;
  std::vector<Tool> tools;  // those that may be called: all, or the ones that tool_choice names
  Choice choice = Choice::kNone;
  bool open_objects = false;  // objects of schemas have more properties than they name, unless these say otherwise
  bool parallel = true;       // more than one call in an answer; false for a named tool
  std::string_view parallel_field = "parallel_tool_calls";  // as the client's API calls it
  // The field that holds the model to a form: "tool_choice" (a call, or some of the tools), "tools" (one is strict) or
  // `parallel_field` (it allows one call). Empty: the model is free, or sees no tools.
  std::string constrained_by;
};

// Reads "tools", "tool_choice" ("none", "auto", "required", a named tool, or OpenAI's allowed_tools) and
// "parallel_tool_calls". `body` is the text that `in` reads. Fails for tools that are neither functions nor custom, for
// names that are missing or doubled, and for a choice that names no tool of the request.
void read_tools(FieldReader& in, std::string_view body, ToolRequest& out);

// The same of what another API's reader has found: `out` has all tools, and `parallel` where that API has a name of its
// own for it. Without `chosen` the model is free.
void choose_tools(FieldReader& in, const std::optional<ToolChoice>& chosen, ToolRequest& out);

}  // namespace volley::serve
