// Tools as a model knows them: functions alone, one of which stands for a custom tool, whose input is a text of any
// form. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace volley::serve {

// What the text of a custom tool's input must be.
struct TextGrammar {
  enum class Syntax { kLark, kRegex };  // a whole text each: llguidance's dialect, Rust's expressions

  Syntax syntax = Syntax::kLark;
  std::string definition;
};

struct Tool {
  std::string name;
  std::string parameters_json;  // the schema of its arguments, as the client wrote it
  bool strict = false;
  std::optional<TextGrammar> input = {};  // of a custom tool
  bool is_custom = false;                 // its only parameter, "input", is a text
};

struct ShownTool {
  Tool tool;
  std::string json;  // for the chat template: {"type": "function", "function": {…}}
};

// `tool`: the client's, with "strict" and, in a member of this name, a schema of an object, or without either; `raw` is
// its text. `description`: JSON, or empty. What is wrong with it instead, to be put behind its place.
std::variant<ShownTool, std::string> function_tool(std::string name, std::string_view description,
                                                   const nlohmann::json& tool, std::string_view raw,
                                                   const char* schema = "parameters");

// The Responses API writes a grammar's members into the `format`, Chat Completions into an object of its own in there.
// Nothing: the format has another form.
std::optional<ShownTool> custom_tool(std::string name, std::string description, const nlohmann::json& format);

// The text of a custom tool's call, piece by piece, out of the arguments that the model writes: {"input": "…"}. Where
// they have another form, all comes at the end: their only text, else the arguments as they are.
class CustomInput {
 public:
  std::string push(std::string_view arguments);
  std::string finish();

 private:
  enum class State { kHead, kText, kOver, kOther };

  void read_head();
  void read_text(std::string& out);

  State state_ = State::kHead;
  std::string pending_;  // of the head, of an escape, or all of another form
};

// The arguments that become this input.
std::string custom_arguments(std::string_view input);

}  // namespace volley::serve
