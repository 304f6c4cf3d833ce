// Reads a chat request's tools. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/custom_tool.h"
#include "serve/json/fields.h"

namespace volley::serve {

// "tool_choice", in any API's form.
struct ToolChoice {
  enum class Mode { kNone, kAuto, kRequired };
  struct Name {
    std::string name;
    bool is_custom = false;
  };

  Mode mode = Mode::kAuto;
  std::vector<Name> names = {};  // tools that may be called; empty: all
  bool single = false;           // exactly one call, of one of `names`
};

struct ToolRequest {
  using Choice = ToolChoice::Mode;

  // For the chat template: the client's own text, with functions for custom tools. Empty without tools and with "none".
  std::string tools_json;
  std::vector<Tool> tools;  // tools that may be called: all, or those in tool_choice
  Choice choice = Choice::kNone;
  bool open_objects = false;  // schemas' objects may have unnamed properties, unless they say otherwise
  bool parallel = true;       // more than one call in an answer; false for a named tool
  std::string_view parallel_field = "parallel_tool_calls";  // the name in the client's API
  // The field that constrains the model: "tool_choice" (a call, or some of the tools), "tools" (one is strict) or
  // `parallel_field` (one call at most). Empty: the model is free, or sees no tools.
  std::string constrained_by;
};

// Reads "tools", "tool_choice" ("none", "auto", "required", a named tool, or OpenAI's allowed_tools) and
// "parallel_tool_calls". `body` is the text that `in` reads. Fails for tools that are neither functions nor custom, for
// missing or repeated names, and for a choice without a tool of the request.
void read_tools(FieldReader& in, std::string_view body, ToolRequest& out);

// The same for another API, whose reader has filled `out` with all tools, and with `parallel` if that API has its own
// name for it. Without `chosen` the model is free.
void choose_tools(FieldReader& in, const std::optional<ToolChoice>& chosen, ToolRequest& out);

}  // namespace volley::serve
