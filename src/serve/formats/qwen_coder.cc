// <tool_call>\n<function=f>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>: Qwen3-Coder. Values are
// bare text, with types from the tools' schemas.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "serve/formats/call_grammar.h"
#include "serve/formats/tagged_calls.h"
#include "serve/formats/tool_call_scanner.h"
#include "serve/formats/tool_parameters.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
constexpr std::string_view kCallEnd = "</tool_call>";

bool ends_no_name(char c) {
  return c == '<' || c == '\n';
}

// Reads one growing call byte by byte and writes its arguments as JSON text. Text values go out as they come, others
// once complete. It has ToolCallScanner's functions.
class XmlCallScanner {
 public:
  using State = ToolCallScanner::State;

  // `types` may be null or lack the tool: then all values are text.
  explicit XmlCallScanner(std::shared_ptr<const ToolTypes> types) : types_(std::move(types)) {}

  State push(char c) {
    if (place_ == Place::kHead) return head(c);
    if (place_ == Place::kName) return name(c);
    if (place_ == Place::kAfter) return after_parameter(c);
    if (place_ == Place::kKey) return key(c);
    if (place_ == Place::kOtherEnd) return other_end(c);
    if (place_ == Place::kLineBreak) {
      place_ = Place::kValue;
      at_first_line_ = c == '\n';
      if (at_first_line_) return State::kReading;
    }
    return value(c);
  }

  // Replaces the first two bytes, "<f": the call has no marker before it, so its tool must be in `types`.
  void begin_bare() {
    only_known_ = true;
    held_ = "<f";
  }

  // True from the end of <function=f> on.
  bool announced() const { return announced_; }
  const std::string& name() const { return name_; }
  std::string take_arguments() { return std::exchange(arguments_, {}); }

  // After kBroken, or at the text's end: earlier bytes that are not part of the call either.
  std::string take_rest() { return std::exchange(held_, {}); }

  // Ends the text. Returns whether the call is whole: behind a whole value, or within one if the model ended the text.
  // A cut text value keeps what came.
  bool finish(TextEnd end) {
    const bool ends_value = place_ == Place::kOtherEnd && other_end_.starts_with(kFunctionEnd);
    if (ends_value) {
      end_value(std::exchange(before_other_end_, {}));
      return true;
    }
    if (place_ == Place::kOtherEnd) add_value(before_other_end_ + other_end_);
    if (place_ == Place::kLineBreak || place_ == Place::kValue || place_ == Place::kOtherEnd) {
      if (end == TextEnd::kCut) return false;
      const bool in_tag = value_end_.in_marker();
      std::string space = value_end_.take();
      if (in_tag) space.resize(space.rfind('<'));
      end_value(std::move(space));
      return true;
    }
    if (place_ == Place::kKey) held_ += std::exchange(key_, {});
    const std::string_view tag = skip_space(held_);
    if (place_ != Place::kAfter || !(tag.empty() || tag.starts_with("</"))) return false;
    held_.clear();
    return true;
  }

 private:
  // kAfter, kKey, kLineBreak, kValue, kOtherEnd: of a parameter.
  enum class Place { kHead, kName, kAfter, kKey, kLineBreak, kValue, kOtherEnd };

  State head(char c) {
    held_ += c;
    const std::string_view tag = skip_space(held_);
    if (!kFunction.starts_with(tag)) return State::kBroken;
    if (tag == kFunction) {
      held_.clear();
      place_ = Place::kName;
    }
    return State::kReading;
  }

  State name(char c) {
    if (c != '>') {
      name_ += c;
      return ends_no_name(c) ? State::kBroken : State::kReading;
    }
    if (name_.empty() || (only_known_ && (!types_ || !types_->contains(name_)))) return State::kBroken;
    announced_ = true;
    arguments_ = "{";
    place_ = Place::kAfter;
    return State::kReading;
  }

  State after_parameter(char c) {
    const bool blank = held_.empty() || is_json_space(held_.back());
    if (blank && is_json_space(c)) {
      held_ += c;
      return State::kReading;
    }
    const std::string tag = std::string(skip_space(held_)) + c;
    if (tag == kFunctionEnd) {
      held_.clear();
      return State::kDone;
    }
    if (!kFunctionEnd.starts_with(tag) && !kParameter.starts_with(tag)) return State::kBroken;
    held_ += c;
    if (tag == kParameter) place_ = Place::kKey;
    return State::kReading;
  }

  State key(char c) {
    if (c != '>') {
      if (ends_no_name(c)) {
        held_ += std::exchange(key_, {});
        return State::kBroken;
      }
      key_ += c;
      return State::kReading;
    }
    held_.clear();
    const unsigned* types = types_of(key_);
    value_types_ = types ? *types : kNoJsonType;
    value_is_text_ = value_types_ == kNoJsonType || value_types_ == kJsonString;
    arguments_ += (first_ ? "\"" : ", \"") + json_escape(std::exchange(key_, {})) + "\": ";
    if (value_is_text_) arguments_ += '"';
    first_ = false;
    place_ = Place::kLineBreak;
    return State::kReading;
  }

  State value(char c) {
    switch (value_end_.push(c)) {
      case MarkerHold::Step::kHeld:
        return State::kReading;
      case MarkerHold::Step::kFound: {
        std::string space = value_end_.take();
        space.resize(space.size() - kParameterEnd.size());
        end_value(std::move(space));
        return State::kReading;
      }
      case MarkerHold::Step::kOther:
        break;
    }
    if ((c == 'p' && begins_line("<")) || (c == 'f' && begins_line("</"))) {
      before_other_end_ = value_end_.take();
      const size_t tag = before_other_end_.rfind('<');
      other_end_ = before_other_end_.substr(tag) + c;
      before_other_end_.resize(tag);
      place_ = Place::kOtherEnd;
      return State::kReading;
    }
    const bool held = !value_end_.text().empty();
    add_value(value_end_.take());
    if (held) return value(c);
    add_value({&c, 1});
    return State::kReading;
  }

  State other_end(char c) {
    other_end_ += c;
    const std::string_view text = other_end_;
    if (text.starts_with(kFunctionEnd) && text.ends_with(kCallEnd)) {
      end_value(std::exchange(before_other_end_, {}));
      return State::kDone;
    }
    if (c == '>' && text.starts_with(kParameter)) {
      const std::string key_here(text.substr(kParameter.size(), text.size() - kParameter.size() - 1));
      if (types_of(key_here)) {
        end_value(std::exchange(before_other_end_, {}));
        key_ = key_here;
        return key(c);
      }
    } else if (may_end_value()) {
      return State::kReading;
    }
    // The held bytes are text. All behind the first is read again.
    const std::string again = std::exchange(other_end_, {}).substr(1);
    add_value(std::exchange(before_other_end_, {}) + "<");
    place_ = Place::kValue;
    for (const char next : again) push(next);
    return State::kReading;
  }

  bool may_end_value() const {
    constexpr size_t kLongest = 256;
    const std::string_view text = other_end_;
    if (text.size() > kLongest) return false;
    if (kFunctionEnd.starts_with(text) || kParameter.starts_with(text)) return true;
    if (text.starts_with(kParameter)) return !ends_no_name(text.back());
    return text.starts_with(kFunctionEnd) && kCallEnd.starts_with(skip_space(text.substr(kFunctionEnd.size())));
  }

  // The allowed types of a parameter's values. Null: the tool has no such parameter.
  const unsigned* types_of(const std::string& key) const {
    const auto tool = types_ ? types_->find(name_) : ToolTypes::const_iterator();
    if (!types_ || tool == types_->end()) return nullptr;
    const auto found = tool->second.find(key);
    return found == tool->second.end() ? nullptr : &found->second;
  }

  // Whether value_end_ ends with the tag at the start of a line.
  bool begins_line(std::string_view tag) const {
    const std::string_view held = value_end_.text();
    return held.ends_with(tag) &&
           (held.size() == tag.size() ? at_first_line_ : held[held.size() - tag.size() - 1] == '\n');
  }

  void add_value(std::string_view text) {
    if (!text.empty()) at_first_line_ = false;
    if (value_is_text_) {
      arguments_ += json_escape(text);
    } else {
      value_ += text;
    }
  }

  void end_value(std::string space) {
    if (space.ends_with('\n')) space.pop_back();
    add_value(space);
    arguments_ += value_is_text_ ? "\"" : json_of_bare_value(std::exchange(value_, {}), value_types_);
    place_ = Place::kAfter;
  }

  const std::shared_ptr<const ToolTypes> types_;
  Place place_ = Place::kHead;
  bool announced_ = false;
  std::string held_;  // white space and the beginning of a tag
  std::string name_, key_;
  std::string value_;  // a value other than text, so far
  unsigned value_types_ = kNoJsonType;
  bool value_is_text_ = false;
  bool at_first_line_ = false;  // at the value's start, behind the form's line break
  MarkerHold value_end_{"</parameter>"};
  // Some models leave </parameter> out. A value then ends before "\n<parameter=key>" with a key of the tool, and before
  // "\n</function>" followed by "</tool_call>" or the end of the text. These hold a possible such end, and the white
  // space before it.
  std::string other_end_, before_other_end_;
  bool only_known_ = false;
  bool first_ = true;
  std::string arguments_;  // without the last bracket, which OutputWriter adds
};

// Writes a regular expression between a Lark terminal's slashes.
std::string between_slashes(std::string_view expression) {
  std::string escaped;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] == '/') escaped += '\\';
    escaped += expression[i];
    if (expression[i] == '\\' && i + 1 < expression.size()) escaped += expression[++i];
  }
  return escaped;
}

class QwenCoder final : public TaggedCalls {
 public:
  using TaggedCalls::TaggedCalls;

  bool reads_types() const override { return true; }
  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    return marked_stage(options, std::make_unique<TaggedStage<XmlCallScanner>>(XmlCallScanner(options.types)));
  }

  bool writes_bare_text() const override { return true; }
  std::string calls_rule(CallGrammar& grammar, bool free) const override {
    grammar.rules += "text_value[lazy]: /(?s:.*)<\\/parameter>/\n";
    grammar.rules += "any_parameter: \"<parameter=\" /[^<>\\n]+/ \">\\n\" text_value \"\\n\"\n";
    return TaggedCalls::calls_rule(grammar, free);
  }

  void add_tool(CallGrammar& grammar, const Tool& tool, const std::string& index) const override {
    const std::vector<ToolParameters> signatures = tool_signatures(tool.parameters_json);
    std::string bodies;
    for (size_t i = 0; i < signatures.size(); ++i) {
      const std::string prefix = "parameter_" + index + (i == 0 ? "" : "_or_" + std::to_string(i)) + "_";
      bodies += (i == 0 ? "" : " |") + add_parameters(grammar, signatures[i], tool, prefix);
    }
    if (signatures.size() > 1) bodies = " (" + bodies + ")";
    grammar.rules +=
        "tool_" + index + ": " + json_quote("<function=" + tool.name + ">\n") + bodies + " \"</function>\"\n";
  }

 private:
  static void add_input(CallGrammar& grammar, const TextGrammar& input, const std::string& rule) {
    grammar.rules += rule + R"(: "<parameter=input>\n" )";
    if (input.syntax == TextGrammar::Syntax::kLark) {
      grammar.rules += "%lark {\n" + input.definition + "\n} \"\\n</parameter>\\n\"\n";
    } else {
      grammar.rules += "text_" + rule + " \"\\n\"\n";
      grammar.rules += "text_" + rule + "[lazy]: /(?:" + between_slashes(input.definition) + ")\\n<\\/parameter>/\n";
    }
  }

  // Adds a rule for each parameter. Returns references to them in their order.
  static std::string add_parameters(CallGrammar& grammar, const ToolParameters& parameters, const Tool& tool,
                                    const std::string& prefix) {
    std::string body;
    for (size_t i = 0; i < parameters.listed.size(); ++i) {
      const ToolParameter& parameter = parameters.listed[i];
      const std::string rule = prefix + std::to_string(i);
      body += " " + rule + (parameter.required ? "" : "?");
      if (tool.input) {
        add_input(grammar, *tool.input, rule);
      } else {
        add_parameter(grammar, parameter, tool, rule);
      }
    }
    if (parameters.any_other) body += " any_parameter*";
    return body.empty() ? " \"\"" : body;
  }

  static void add_parameter(CallGrammar& grammar, const ToolParameter& parameter, const Tool& tool,
                            const std::string& rule) {
    static constexpr std::string_view kEnd = "\n</parameter>\n";
    static constexpr size_t kTooManyRules = size_t{1} << 20;
    grammar.rules += rule + ": " + json_quote("<parameter=" + parameter.name + ">\n");
    if (!parameter.texts.empty()) {
      for (size_t i = 0; i < parameter.texts.size(); ++i) {
        grammar.rules += (i == 0 ? " (" : " | ") + json_quote(parameter.texts[i] + std::string(kEnd));
      }
      grammar.rules += ")\n";
    } else if (parameter.is_text()) {
      grammar.rules += R"( text_value "\n")"
                       "\n";
    } else if (grammar.rules.size() > kTooManyRules) {
      grammar.rules += "\n";  // the grammar is refused for its size: definitions need not repeat in every rule
    } else {
      grammar.rules += " value_" + rule + " " + json_quote(kEnd) + "\n";
      grammar.rules += "value_" + rule + ": %json " +
                       grammar.schema(with_definitions(parameter.schema_json, tool.parameters_json), tool,
                                      "the parameter " + json_quote(parameter.name), "{}") +
                       "\n";
    }
  }
};

}  // namespace

extern const AnswerFormatKind kQwenCoderFormat{
    {"qwen3_coder", "qwen3_xml"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<tool_call>", "<function=volley_probe"); },
    made<QwenCoder>};

}  // namespace volley::serve
