// A form of answers: how its prompts are written, what reads its answers, and the grammar that forces calls. Each form
// is a class, or a row of marks where several share one (keyed_calls.cc, named_calls.cc). Its file ends with its
// AnswerFormatKind; the table in output_format.cc has a row for each.
#pragma once

#include <volley/engine.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/formats/output_format.h"
#include "serve/formats/output_parser.h"
#include "serve/formats/reasoning_counter.h"

namespace volley::serve {

class CallGrammar;  // see serve/formats/call_grammar.h
struct Tool;
struct ToolRequest;

// The grammar's part that lets the model think first.
struct ThinkRules {
  std::string start;  // begins the rule `start`; empty: the model does not think
  std::string rules;  // rules that `start` uses
  // Behind the thoughts: leads to the answer's text, if that has a message of its own.
  std::string answer = {};
};

// Marks around the calls; empty: an answer has none.
struct CallTags {
  std::string_view begin, end;
};

// The class itself is the plain form: <think>thoughts</think>, if any, then content. Immutable; any thread.
class AnswerFormat : public std::enable_shared_from_this<AnswerFormat> {
 public:
  explicit AnswerFormat(bool calls = false) : calls_(calls) {}
  virtual ~AnswerFormat() = default;

  bool calls() const { return calls_; }  // calls are told from content
  virtual std::shared_ptr<const AnswerFormat> without_calls() const { return plain_answers(); }
  // The form of an output that follows this prompt.
  virtual std::shared_ptr<const AnswerFormat> after(const Engine&, std::span<const TokenId>) const {
    return shared_from_this();
  }

  // --- Prompts: pure, and slow for long ones ---

  // kInvalidArgument: the form lacks what the chat asks for.
  virtual Status check(const Conversation&) const { return {}; }
  // The template's text, for encode() alone. `cancelled` may be null.
  virtual Result<std::string> render(const Engine& engine, Conversation chat, const std::atomic<bool>* cancelled) const;
  virtual Result<std::vector<TokenId>> encode(const Engine& engine, std::string_view rendered, bool add_special_tokens,
                                              const EncodeLimits& limits) const {
    return engine.encode_within(rendered, add_special_tokens, limits);
  }
  // The rendered text, readable for people.
  virtual std::string shown(std::string_view rendered) const { return std::string(rendered); }

  // --- Outputs ---

  // Where the output begins. thinks: the model does. `continued`: the content of a final message that the model
  // continues (continue_final_message), whose open <think> counts, too.
  virtual ReasoningStart start(bool thinks, std::string_view prompt, std::string_view continued = {}) const;
  // Prepares a request, and how its output is read. thoughts: they are told from content. The request's grammar is
  // final (after_reasoning()), or absent.
  virtual void plan(bool /*thoughts*/, GenerateRequest&, OutputParser::Options&) const {}
  virtual std::unique_ptr<OutputStage> whole_stage(const OutputParser::Options& options) const;
  // Reads an output without its thoughts.
  virtual std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const;
  virtual std::unique_ptr<ThoughtCounter> counter(ReasoningStart start) const;
  // Control tokens that text does not show, and that the stage gets. None: an answer is one text.
  virtual std::span<const TokenId> marks() const { return {}; }
  // The marks among them that end an answer.
  virtual std::vector<TokenId> end_tokens() const { return {}; }
  // Not empty: the stage reads this mark as its text.
  virtual std::string_view spelling(TokenId) const { return {}; }
  virtual ThinkTags think_tags() const { return {}; }
  // Not empty: calls stand between these, in thoughts too.
  virtual CallTags call_tags() const { return {}; }
  // The stage needs the types of the tools' parameters.
  virtual bool reads_types() const { return false; }
  // Chat templates only take call ids of short_call_id().
  virtual bool short_call_ids() const { return false; }

  // --- Grammars, in llguidance's Lark dialect ---

  // think_tokens: OutputFormat's.
  virtual ThinkRules think_rules(ReasoningStart start, bool think_tokens) const;
  // Symbols for a text of these parts: a part that is a token is asked for as one. Here all are, by their names.
  virtual std::string spelt(std::initializer_list<std::string_view> parts) const;
  // The answer behind the thoughts. Adds the rules that it needs; a call's object is the rule `object`.
  virtual std::string answer_rule(CallGrammar& grammar) const;
  // The same for calls, or (free) for text that may have some.
  virtual std::string calls_rule(CallGrammar&, bool /*free*/) const { return {}; }
  // Adds the rule "tool_" + index, for the rule `object`.
  virtual void add_tool(CallGrammar& grammar, const Tool& tool, const std::string& index) const;
  // A call whose arguments are the rule of that name.
  virtual std::string call_rule(const Tool& tool, const std::string& arguments) const;
  // The grammar of an answer that calls may replace.
  virtual GrammarSpec beside_calls(GrammarSpec answer, const ToolRequest&) const { return answer; }
  // Inputs of custom tools are written unquoted, so they can follow a Lark grammar.
  virtual bool writes_bare_text() const { return false; }

 protected:
  bool calls_;
};

// A model's chat template, rendered for a few made-up conversations, and the markers that are tokens of its vocabulary.
// No template prints the probe's names by itself: the tool "volley_probe" with the argument "volley_place".
struct FormatProbe {
  explicit FormatProbe(const Engine& engine);

  // Empty if the template refuses the conversation, which tells nothing.
  std::string render(const char* messages, const char* tools, const char* kwargs, bool generation_prompt) const;
  // Renders a question, up to where the answer begins.
  std::string asked(const char* kwargs, const char* tools = "") const;
  std::optional<TokenId> token(std::string_view marker) const;  // the token that is exactly the marker
  bool shows(std::string_view marker) const;                    // it is one token, and visible in text
  bool shows_tools() const;                                     // the template prints them

  const Engine& engine;
  const std::string ask;   // asked() without arguments
  const std::string call;  // a call, with the tool and its result
};

extern const char* const kProbeTools;

// Whether `first` stands directly before `second` somewhere, but for white space and colons.
bool follows(std::string_view text, std::string_view first, std::string_view second);

// Adds a variable of the chat template, unless the client set it. value: JSON. kwargs_json may be empty.
void add_variable(std::string& kwargs_json, std::string_view name, const std::string& value);

// Tells the chat's tools in a message of the system, for a template that does not print them. form: how the model
// writes calls, with "name" and "parameter" in their places.
void tell_tools(Conversation& chat, std::string_view form);

// A row of the table: a format before it is made.
struct AnswerFormatKind {
  std::array<std::string_view, 4> names;            // for --tool-call-parser, its own name first
  std::array<std::string_view, 3> reasoning_names;  // for --reasoning-parser; none: thoughts are not the format's
  bool (*is_printed)(const FormatProbe&);           // the chat template writes calls or answers in this form
  // kFailedPrecondition: the vocabulary lacks a token that the form needs.
  Result<std::shared_ptr<const AnswerFormat>> (*make)(const FormatProbe&);
  bool tells_tools = false;  // prompts have the tools even if the chat template does not show them

  bool tells_thoughts() const { return !reasoning_names[0].empty(); }
};

// AnswerFormatKind::make for a class that takes any vocabulary.
template <class Format>
Result<std::shared_ptr<const AnswerFormat>> made(const FormatProbe& probe) {
  return std::shared_ptr<const AnswerFormat>(std::make_shared<const Format>(probe));
}

}  // namespace volley::serve
