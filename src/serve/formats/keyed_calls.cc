// Calls whose parameters stand between marks of their own, as bare text with types from the tools' schemas:
//   <tool_call>\n<function=f>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>: Qwen3-Coder
//   <tool_call>f\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>: GLM 4.5 and 4.6; later ones
//     write no line breaks
//   <minimax:tool_call>\n<invoke name="f">\n<parameter name="key">value</parameter>\n</invoke>\n
//     </minimax:tool_call>, with all calls inside: MiniMax M2
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

struct KeyedForm {
  CallMarks marks;
  std::string_view name_end;  // empty: a line's or the next mark's beginning ends the name
  std::string_view key, key_end, value, value_end;
  std::string_view end;         // ends the call
  std::string_view line = {};   // around a value, which then stands on lines of its own
  std::string_view space = {};  // behind the name, the key and the value
};

constexpr KeyedForm kCoder{.marks = {.section = "<tool_call>",
                                     .section_end = "</tool_call>",
                                     .call = "<function=",
                                     .only_known_alone = true,
                                     .lead = "\n",
                                     .trail = "\n",
                                     .between = "\n"},
                           .name_end = ">",
                           .key = "<parameter=",
                           .key_end = ">",
                           .value = "",
                           .value_end = "</parameter>",
                           .end = "</function>",
                           .line = "\n",
                           .space = "\n"};
constexpr KeyedForm kMiniMax{.marks = {.section = "<minimax:tool_call>",
                                       .section_end = "</minimax:tool_call>",
                                       .call = "<invoke name=\"",
                                       .several = true,
                                       .only_known_alone = true,
                                       .lead = "\n",
                                       .trail = "\n",
                                       .between = "\n"},
                             .name_end = "\">",
                             .key = "<parameter name=\"",
                             .key_end = "\">",
                             .value = "",
                             .value_end = "</parameter>",
                             .end = "</invoke>",
                             .space = "\n"};
constexpr KeyedForm kGlm{.marks = {.section = {}, .section_end = {}, .call = "<tool_call>"},
                         .name_end = "",
                         .key = "<arg_key>",
                         .key_end = "</arg_key>",
                         .value = "<arg_value>",
                         .value_end = "</arg_value>",
                         .end = "</tool_call>"};

KeyedForm glm_of(const FormatProbe& probe) {
  KeyedForm form = kGlm;
  if (probe.call.find("volley_probe<arg_key>") == std::string::npos) form.space = form.marks.between = "\n";
  return form;
}

// Reads one growing call byte by byte and writes its arguments as JSON text. Text values go out as they come, others
// once complete. It has ToolCallScanner's functions.
class KeyedCallScanner {
 public:
  using State = ToolCallScanner::State;

  // `types` may be null or lack the tool: then all values are text.
  KeyedCallScanner(const KeyedForm& form, std::shared_ptr<const ToolTypes> types)
      : form_(form), types_(std::move(types)), value_end_(form.value_end) {}

  State push(char c) {
    if (place_ == Place::kName) return name(c);
    if (place_ == Place::kAfter) return after_parameter(c);
    if (place_ == Place::kKey) return key(c);
    if (place_ == Place::kValueMark) return value_mark(c);
    if (place_ == Place::kOtherEnd) return other_end(c);
    if (place_ == Place::kLineBreak) {
      place_ = Place::kValue;
      at_first_line_ = c == '\n';
      if (at_first_line_) return State::kReading;
    }
    return value(c);
  }

  // The tool must be in `types`.
  void only_known() { only_known_ = true; }

  // True from the end of the name on; without a name_end, from the end of the next mark on.
  bool announced() const { return announced_; }
  const std::string& name() const { return name_; }
  std::string take_arguments() { return std::exchange(arguments_, {}); }

  // After kBroken, or at the text's end: earlier bytes that are not part of the call either.
  std::string take_rest() { return std::exchange(held_, {}); }

  // Ends the text. Returns whether the call is whole: behind a whole value, or within one if the model ended the text.
  // A cut text value keeps what came.
  bool finish(TextEnd end) {
    const bool ends_value = place_ == Place::kOtherEnd && other_end_.starts_with(form_.end);
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
  // kAfter and later belong to a parameter.
  enum class Place { kName, kAfter, kKey, kValueMark, kLineBreak, kValue, kOtherEnd };

  static constexpr size_t kLongestName = 512;

  State name(char c) {
    if (form_.name_end.empty() && name_.empty() && is_json_space(c)) return State::kReading;
    if (form_.name_end.empty() && (c == '<' || c == '\n')) {
      place_ = Place::kAfter;
      name_.resize(trim_end(name_).size());
      return name_.empty() ? State::kBroken : after_parameter(c);
    }
    name_ += c;
    if (!form_.name_end.empty() && name_.ends_with(form_.name_end)) {
      name_.resize(name_.size() - form_.name_end.size());
      place_ = Place::kAfter;
      return announce();
    }
    const bool is_object = form_.name_end.empty() && name_ == "{";
    return c == '<' || c == '\n' || is_object || name_.size() > kLongestName ? State::kBroken : State::kReading;
  }

  State announce() {
    if (name_.empty() || (only_known_ && (!types_ || !types_->contains(name_)))) return State::kBroken;
    announced_ = true;
    arguments_ = "{";
    return State::kReading;
  }

  State after_parameter(char c) {
    const bool blank = held_.empty() || is_json_space(held_.back());
    if (blank && is_json_space(c)) {
      held_ += c;
      return State::kReading;
    }
    const std::string tag = std::string(skip_space(held_)) + c;
    if (!form_.end.starts_with(tag) && !form_.key.starts_with(tag)) return State::kBroken;
    const bool is_end = tag == form_.end;
    if ((is_end || tag == form_.key) && !announced_ && announce() == State::kBroken) return State::kBroken;
    held_ += c;
    if (tag == form_.key) place_ = Place::kKey;
    if (is_end) held_.clear();
    return is_end ? State::kDone : State::kReading;
  }

  State key(char c) {
    key_ += c;
    if (!key_.ends_with(form_.key_end)) {
      const bool no_key = c == '\n' || (c == '<' && !form_.key_end.starts_with('<')) || key_.size() > kLongestName;
      if (!no_key) return State::kReading;
      key_.pop_back();
      held_ += std::exchange(key_, {});
      return State::kBroken;
    }
    held_ += key_;
    key_.resize(key_.size() - form_.key_end.size());
    if (form_.value.empty()) return begin_value();
    place_ = Place::kValueMark;
    mark_ = held_.size();
    return State::kReading;
  }

  State value_mark(char c) {
    const std::string text = held_.substr(mark_) + c;
    const std::string_view mark = skip_space(text);
    if (!form_.value.starts_with(mark)) return State::kBroken;
    held_ += c;
    return mark == form_.value ? begin_value() : State::kReading;
  }

  State begin_value() {
    held_.clear();
    const unsigned* types = types_of(key_);
    value_types_ = types ? *types : kNoJsonType;
    value_is_text_ = value_types_ == kNoJsonType || value_types_ == kJsonString;
    arguments_ += (first_ ? "\"" : ", \"") + json_escape(std::exchange(key_, {})) + "\": ";
    if (value_is_text_) arguments_ += '"';
    first_ = false;
    place_ = form_.line.empty() ? Place::kValue : Place::kLineBreak;
    return State::kReading;
  }

  State value(char c) {
    switch (value_end_.push(c)) {
      case MarkerHold::Step::kHeld:
        return State::kReading;
      case MarkerHold::Step::kFound: {
        std::string space = value_end_.take();
        space.resize(space.size() - form_.value_end.size());
        end_value(std::move(space));
        return State::kReading;
      }
      case MarkerHold::Step::kOther:
        break;
    }
    if (!form_.line.empty() && (c == form_.key[1] ? begins_line("<") : c == form_.end[2] && begins_line("</"))) {
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
    if (text.starts_with(form_.end) && text.ends_with(form_.marks.section_end)) {
      end_value(std::exchange(before_other_end_, {}));
      return State::kDone;
    }
    if (c == '>' && text.starts_with(form_.key)) {
      const std::string key_here(text.substr(form_.key.size(), text.size() - form_.key.size() - 1));
      if (types_of(key_here)) {
        end_value(std::exchange(before_other_end_, {}));
        key_ = key_here;
        return begin_value();
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
    if (form_.end.starts_with(text) || form_.key.starts_with(text)) return true;
    if (text.starts_with(form_.key)) return text.back() != '<' && text.back() != '\n';
    return text.starts_with(form_.end) &&
           form_.marks.section_end.starts_with(skip_space(text.substr(form_.end.size())));
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
    if (!form_.line.empty() && space.ends_with('\n')) space.pop_back();
    add_value(space);
    arguments_ += value_is_text_ ? "\"" : json_of_bare_value(std::exchange(value_, {}), value_types_);
    place_ = Place::kAfter;
  }

  const KeyedForm form_;
  const std::shared_ptr<const ToolTypes> types_;
  Place place_ = Place::kName;
  bool announced_ = false;
  std::string held_;  // white space and the beginning of a tag
  size_t mark_ = 0;   // kValueMark: where its text begins in held_
  std::string name_, key_;
  std::string value_;  // a value other than text, so far
  unsigned value_types_ = kNoJsonType;
  bool value_is_text_ = false;
  bool at_first_line_ = false;  // at the value's start, behind the form's line break
  MarkerHold value_end_;
  // Some models leave </parameter> out. A value then ends before "\n<parameter=key>" with a key of the tool, and before
  // "\n</function>" followed by "</tool_call>" or the end of the text. These hold a possible such end, and the white
  // space before it.
  std::string other_end_, before_other_end_;
  bool only_known_ = false;
  bool first_ = true;
  std::string arguments_;  // without the last bracket, which OutputWriter adds
};

class KeyedCalls final : public TaggedCalls {
 public:
  KeyedCalls(const FormatProbe& probe, const KeyedForm& form)
      : TaggedCalls(probe, form.marks, {form.key, form.key_end, form.value, form.value_end, form.end}), form_(form) {}

  CallTags call_tags() const override {
    return form_.marks.section.empty() ? CallTags{form_.marks.call, form_.end} : TaggedCalls::call_tags();
  }
  bool reads_types() const override { return true; }
  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    return marked_stage(
        options, std::make_unique<TaggedStage<KeyedCallScanner>>(form_.marks, KeyedCallScanner(form_, options.types)));
  }

  bool writes_bare_text() const override { return true; }
  std::string calls_rule(CallGrammar& grammar, bool free) const override {
    grammar.rules += ends_text("text_value", kAnyText, form_.value_end);
    grammar.rules += "any_parameter: " + spelt({form_.key}) + "/[^<>\\n\"]+/ " + behind_key() + "text_value " +
                     spelt({form_.space}) + "\n";
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
    const std::string_view mark = form_.marks.section.empty() ? "" : form_.marks.call;
    grammar.rules += "tool_" + index + ": " + spelt({mark, tool.name, form_.name_end, form_.space}) + bodies + " " +
                     spelt({form_.end}) + "\n";
  }

 private:
  std::string behind_key() const {
    return spelt({form_.key_end, form_.value.empty() ? "" : form_.space, form_.value, form_.line});
  }

  // Adds a rule for each parameter. Returns references to them in their order.
  std::string add_parameters(CallGrammar& grammar, const ToolParameters& parameters, const Tool& tool,
                             const std::string& prefix) const {
    std::string body;
    for (size_t i = 0; i < parameters.listed.size(); ++i) {
      const ToolParameter& parameter = parameters.listed[i];
      const std::string rule = prefix + std::to_string(i);
      body += " " + rule + (parameter.required ? "" : "?");
      if (tool.input) {
        grammar.rules += rule + ": " + spelt({form_.key, "input"}) + behind_key() + "input_" + rule + " " +
                         spelt({form_.space}) + "\n" +
                         input_rule("input_" + rule, *tool.input, form_.line, form_.value_end);
      } else {
        add_parameter(grammar, parameter, tool, rule);
      }
    }
    if (parameters.any_other) body += " any_parameter*";
    return body.empty() ? " \"\"" : body;
  }

  void add_parameter(CallGrammar& grammar, const ToolParameter& parameter, const Tool& tool,
                     const std::string& rule) const {
    static constexpr size_t kTooManyRules = size_t{1} << 20;
    grammar.rules += rule + ": " + spelt({form_.key, parameter.name}) + behind_key();
    if (!parameter.texts.empty()) {
      for (size_t i = 0; i < parameter.texts.size(); ++i) {
        grammar.rules +=
            (i == 0 ? " (" : " | ") + spelt({parameter.texts[i], form_.line, form_.value_end, form_.space});
      }
      grammar.rules += ")\n";
    } else if (parameter.is_text()) {
      grammar.rules += " text_value " + spelt({form_.space}) + "\n";
    } else if (grammar.rules.size() > kTooManyRules) {
      grammar.rules += "\n";  // the grammar is refused for its size: definitions need not repeat in every rule
    } else {
      grammar.rules += " value_" + rule + " " + spelt({form_.line, form_.value_end, form_.space}) + "\n";
      grammar.rules += "value_" + rule + ": %json " +
                       grammar.schema(with_definitions(parameter.schema_json, tool.parameters_json), tool,
                                      "the parameter " + json_quote(parameter.name), "{}") +
                       "\n";
    }
  }

  const KeyedForm form_;
};

template <const KeyedForm& form>
Result<std::shared_ptr<const AnswerFormat>> keyed(const FormatProbe& probe) {
  return std::shared_ptr<const AnswerFormat>(std::make_shared<const KeyedCalls>(probe, form));
}

}  // namespace

extern const AnswerFormatKind kQwenCoderFormat{
    {"qwen3_coder", "qwen3_xml"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<tool_call>", "<function=volley_probe"); },
    keyed<kCoder>};
extern const AnswerFormatKind kMiniMaxFormat{
    {"minimax_m2", "minimax-m2"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<minimax:tool_call>", "<invoke name=\"volley_probe"); },
    keyed<kMiniMax>};
extern const AnswerFormatKind kGlmFormat{
    {"glm45", "glm47"},
    {},
    [](const FormatProbe& probe) { return follows(probe.call, "<tool_call>", "volley_probe"); },
    [](const FormatProbe& probe) -> Result<std::shared_ptr<const AnswerFormat>> {
      return std::shared_ptr<const AnswerFormat>(std::make_shared<const KeyedCalls>(probe, glm_of(probe)));
    }};

}  // namespace volley::serve
