// The whole answer is {"name": "f", "parameters": {…}}, or several with "; " between them, perhaps behind
// <|python_tag|>: Llama 3.1, 3.2 and 3.3.
#include <optional>
#include <utility>

#include "serve/formats/call_grammar.h"
#include "serve/formats/tool_call_stages.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using State = ToolCallScanner::State;

class LlamaStage final : public ByteStage {
 public:
  void finish(TextEnd, OutputWriter& out) override {
    const bool open_call = place_ == Place::kCall && !scanner_->announced();
    const bool separator = place_ == Place::kBetween && held_.find(';') != std::string::npos;
    if (place_ == Place::kTag) held_ = tag_.take();
    if (place_ == Place::kTag || place_ == Place::kObject || open_call || separator) answer(out);
  }

 private:
  enum class Place { kTag, kObject, kCall, kBetween, kAnswer };

  std::string step(char c, OutputWriter& out) override {
    if (place_ == Place::kTag) {
      tag(c, out);
    } else if (place_ == Place::kCall) {
      call(c, out);
    } else if (place_ == Place::kAnswer) {
      out.content({&c, 1});
    } else {
      before_object(c, out);
    }
    return {};
  }

  void tag(char c, OutputWriter& out) {
    const MarkerHold::Step step = tag_.push(c);
    if (step == MarkerHold::Step::kHeld) return;
    const bool blank = !tag_.in_marker();
    held_ = tag_.take();
    place_ = Place::kObject;
    if (step == MarkerHold::Step::kFound) return;
    if (blank) {
      before_object(c, out);
    } else {
      held_ += c;
      answer(out);
    }
  }

  void before_object(char c, OutputWriter& out) {
    const bool separator = place_ == Place::kBetween && c == ';' && held_.find(';') == std::string::npos;
    if (c == '{') {
      scanner_.emplace(ToolCallScanner::Rules{});
      place_ = Place::kCall;
      call(c, out);
      return;
    }
    held_ += c;
    if (!is_json_space(c) && !separator) answer(out);
  }

  void call(char c, OutputWriter& out) {
    const State state = scan_call(*scanner_, c, out);
    if (!scanner_->announced() || state == State::kBroken) held_ += c;
    if (state == State::kBroken) {
      answer(out);
      return;
    }
    if (scanner_->announced()) held_.clear();
    if (state == State::kDone) place_ = Place::kBetween;
  }

  // No call can follow.
  void answer(OutputWriter& out) {
    out.content(std::exchange(held_, {}));
    place_ = Place::kAnswer;
  }

  std::optional<ToolCallScanner> scanner_;
  Place place_ = Place::kTag;
  MarkerHold tag_{"<|python_tag|>"};
  std::string held_;
};

class Llama final : public AnswerFormat {
 public:
  explicit Llama(const FormatProbe&) : AnswerFormat(true) {}

  std::unique_ptr<OutputStage> stage(const OutputParser::Options&) const override {
    return std::make_unique<LlamaStage>();
  }

  std::string calls_rule(CallGrammar& grammar, bool free) const override {
    grammar.rules += "call: object\n";
    const std::string calls = grammar.calls("\"; \"");
    if (!free) return calls;
    // Text that cannot begin a call.
    grammar.rules += "TEXT: /[ \\t\\r\\n]*[^{ \\t\\r\\n](?s:.*)/\n";
    return "(" + calls + " | TEXT)?";
  }

  // The answer may be another object. The lexer takes the longest possible token, so these are that object's own.
  std::string call_rule(const Tool& tool, const std::string& arguments) const override {
    return R"("{" "\"name\"" ": " )" + json_quote(json_quote(tool.name)) + R"( ", " "\"parameters\"" ": " )" +
           arguments + " \"}\"";
  }

  // A call is an object, too: with free white space, the lexer would not see the call's.
  GrammarSpec beside_calls(GrammarSpec answer, const ToolRequest& request) const override {
    if (answer.kind == GrammarSpec::Kind::kJsonObject) {
      answer = {GrammarSpec::Kind::kJsonSchema, R"({"type": "object"})", {}};
    }
    if (answer.kind == GrammarSpec::Kind::kJsonSchema) answer.text = plain_schema(answer.text, request);
    return answer;
  }
};

}  // namespace

extern const AnswerFormatKind kLlamaFormat{{"llama", "llama3", "llama3_json"},
                                           {},
                                           [](const FormatProbe& probe) {
                                             return follows(probe.call, "\"parameters\"", "{\"volley_place\"") &&
                                                    !follows(probe.call, "<tool_call>", "{");  // that is Hermes' form
                                           },
                                           made<Llama>};

}  // namespace volley::serve
