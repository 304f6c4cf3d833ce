// Shows tools to a model as functions; for a custom tool, whose input is free text, one function stands. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace volley::serve {

// The required form of a custom tool's input.
struct TextGrammar {
  enum class Syntax { kLark, kRegex };  // for the whole text: llguidance's dialect, Rust's regular expressions

  Syntax syntax = Syntax::kLark;
  std::string definition;
};

struct Tool {
  std::string name;
  std::string parameters_json;  // schema of its arguments, as the client wrote it
  bool strict = false;
  std::optional<TextGrammar> input = {};  // form of a custom tool's input
  bool is_custom = false;                 // its only parameter, "input", is a text
};

struct ShownTool {
  Tool tool;
  std::string json;  // for the chat template: {"type": "function", "function": {…}}
};

// Reads the client's `tool`, with text `raw`. It may have "strict", and an object's schema in a member of this name.
// `description`: JSON; may be empty. Otherwise returns the error, to be put behind the tool's place.
std::variant<ShownTool, std::string> function_tool(std::string name, std::string_view description,
                                                   const nlohmann::json& tool, std::string_view raw,
                                                   const char* schema = "parameters");

// The Responses API writes a grammar's members into `format`, Chat Completions into an object inside it. Nothing:
// `format` has another form.
std::optional<ShownTool> custom_tool(std::string name, std::string description, const nlohmann::json& format);

// Extracts the text of a custom tool's call, piece by piece, from the model's arguments {"input": "…"}. Arguments of
// another form give their only text, or else themselves, at the end.
class CustomInput {
 public:
  std::string push(std::string_view arguments);
  std::string finish();

 private:
  enum class State { kHead, kText, kOver, kOther };

  void read_head();
  void read_text(std::string& out);

  State state_ = State::kHead;
  std::string pending_;  // undecided part of the head or an escape, or all of another form
};

// The arguments that stand for this input.
std::string custom_arguments(std::string_view input);

}  // namespace volley::serve
