// A form in which models write answers: how a prompt is written in it, what reads an answer, and the grammar that
// forces calls. Each form is a class in a file of its own (hermes.cc, llama.cc, qwen_coder.cc, mistral.cc, harmony.cc),
// which ends with its AnswerFormatKind; the table in output_format.cc has a row for each.
#pragma once

#include <volley/engine.h>

#include <array>
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

class CallGrammar;  // serve/formats/call_grammar.h
struct Tool;
struct ToolRequest;

// The part of a grammar that lets the model think first.
struct ThinkRules {
  std::string start;  // what stands at the beginning of the rule `start`; empty: the model does not think
  std::string rules;  // the rules that it needs
  // Behind the thoughts: what leads to the text of the answer, where a message of its own does.
  std::string answer = {};
};

// This class itself is the plain form: an answer is thoughts between <think> and </think>, if any, then content.
// Immutable; any thread.
class AnswerFormat : public std::enable_shared_from_this<AnswerFormat> {
 public:
  explicit AnswerFormat(bool calls = false) : calls_(calls) {}
  virtual ~AnswerFormat() = default;

  bool calls() const { return calls_; }  // calls are told from content
  // The form where none may be made.
  virtual std::shared_ptr<const AnswerFormat> without_calls() const { return plain_answers(); }
  // The form of an output that follows this prompt.
  virtual std::shared_ptr<const AnswerFormat> after(const Engine&, std::span<const TokenId>) const {
    return shared_from_this();
  }

  // --- Prompts: pure, and slow for long ones ---

  // kInvalidArgument: the chat asks for what the form has not.
  virtual Status check(const Conversation&) const { return {}; }
  // The template's text, for encode() alone. `cancelled` may be null.
  virtual Result<std::string> render(const Engine& engine, Conversation chat, const std::atomic<bool>* cancelled) const;
  virtual Result<std::vector<TokenId>> encode(const Engine& engine, std::string_view rendered, bool add_special_tokens,
                                              const EncodeLimits& limits) const {
    return engine.encode_within(rendered, add_special_tokens, limits);
  }
  // The rendered text for people.
  virtual std::string shown(std::string_view rendered) const { return std::string(rendered); }

  // --- Outputs ---

  // Where the output begins. thinks: the model does. `continued` is the content of the final message that the model
  // continues, if it does (continue_final_message): its open <think> counts too.
  virtual ReasoningStart start(bool thinks, std::string_view prompt, std::string_view continued = {}) const;
  // What a request needs so that its output can be read, and how it is. thoughts: they are told from content. The
  // request's grammar is the final one (after_reasoning()), or there is none.
  virtual void plan(bool /*thoughts*/, GenerateRequest&, OutputParser::Options&) const {}
  // Reads all of an output.
  virtual std::unique_ptr<OutputStage> whole_stage(const OutputParser::Options& options) const;
  // Reads an output without its thoughts.
  virtual std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const;
  virtual std::unique_ptr<ThoughtCounter> counter(ReasoningStart start) const;
  // Control tokens that text does not show, and that the stage is told of. None: an answer is one text.
  virtual std::span<const TokenId> marks() const { return {}; }
  // Those of them that end an answer, and belong to the form.
  virtual std::vector<TokenId> end_tokens() const { return {}; }
  // Calls stand between <tool_call> and </tool_call>, in thoughts too.
  virtual bool tags_calls() const { return false; }
  // The stage needs the types of the tools' parameters.
  virtual bool reads_types() const { return false; }
  // Chat templates take no call ids but short_call_id()'s.
  virtual bool short_call_ids() const { return false; }

  // --- Grammars, in llguidance's Lark dialect ---

  // think_tokens: of OutputFormat.
  virtual ThinkRules think_rules(ReasoningStart start, bool think_tokens) const;
  // What the answer is behind the thoughts. Adds the rules that it needs; a call's objects are the rule `object`.
  virtual std::string answer_rule(CallGrammar& grammar) const;
  // The same of calls, or (free) of text that may have some in it.
  virtual std::string calls_rule(CallGrammar&, bool /*free*/) const { return {}; }
  // Adds the rule "tool_" + index, for the rule `object`.
  virtual void add_tool(CallGrammar& grammar, const Tool& tool, const std::string& index) const;
  // A call whose arguments are a rule of that name.
  virtual std::string call_rule(const Tool& tool, const std::string& arguments) const;
  // The grammar of an answer that calls may take the place of.
  virtual GrammarSpec beside_calls(GrammarSpec answer, const ToolRequest&) const { return answer; }
  // Inputs of custom tools are written as they are, so that they can follow a Lark grammar.
  virtual bool writes_bare_text() const { return false; }

 protected:
  bool calls_;
};

// What a model's chat template prints for a few made-up conversations, and which markers are tokens of its vocabulary.
// Names and words that no template prints by itself: the tool "volley_probe", whose argument is "volley_place".
struct FormatProbe {
  explicit FormatProbe(const Engine& engine);

  // Empty if the template refuses the conversation: that says nothing.
  std::string render(const char* messages, const char* tools, const char* kwargs, bool generation_prompt) const;
  // A question, up to where the answer begins.
  std::string asked(const char* kwargs, const char* tools = "") const;
  std::optional<TokenId> token(std::string_view marker) const;  // that is all of the marker
  bool shows(std::string_view marker) const;                    // it is one token, and one that shows up in text

  const Engine& engine;
  const std::string ask;   // asked() of nothing
  const std::string call;  // a call, with the tool and its result
};

extern const char* const kProbeTools;

// Is there a place where `first` stands directly before `second`, but for white space and colons?
bool follows(std::string_view text, std::string_view first, std::string_view second);

// What the table of formats knows of one before it is made.
struct AnswerFormatKind {
  std::array<std::string_view, 4> names;            // as --tool-call-parser takes it, its own first
  std::array<std::string_view, 3> reasoning_names;  // as --reasoning-parser does; none: thoughts are not the form's
  bool (*is_printed)(const FormatProbe&);           // the chat template writes calls or answers so
  // kFailedPrecondition: the vocabulary lacks what the form needs.
  Result<std::shared_ptr<const AnswerFormat>> (*make)(const FormatProbe&);

  bool tells_thoughts() const { return !reasoning_names[0].empty(); }
};

// AnswerFormatKind::make of a class that takes any vocabulary.
template <class Format>
Result<std::shared_ptr<const AnswerFormat>> made(const FormatProbe& probe) {
  return std::shared_ptr<const AnswerFormat>(std::make_shared<const Format>(probe));
}

}  // namespace volley::serve
