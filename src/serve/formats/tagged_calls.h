// Calls between marks, any number, with text around them. The marks are data; a Scanner reads what stands between them.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/formats/answer_format.h"
#include "serve/formats/tool_call_stages.h"

namespace volley::serve {

struct TextGrammar;    // see serve/api/custom_tool.h
struct ToolParameter;  // see serve/formats/tool_parameters.h

// All are literals that begin with '<' (but `tail`), and marks that text hides are spelt for the parser.
struct CallMarks {
  std::string_view section, section_end;  // around each call, or around all; models may leave them out. Empty: none
  std::string_view call;                  // begins a call
  std::string_view call_end = {};         // ends one, where the scanner does not read the end itself
  std::string_view tail = {};             // may stand before call_end
  bool several = false;                   // a section holds all calls
  bool only_known_alone = false;          // without a section, a call counts if its tool is known
  // Grammars write these behind the first mark, before the last one and between calls, as models were trained.
  std::string_view lead = {}, trail = {}, between = {};
};

class TaggedCalls : public AnswerFormat {
 public:
  // others: further marks within calls; those that are tokens of the vocabulary are asked for and read as tokens.
  TaggedCalls(const FormatProbe& probe, const CallMarks& marks, std::initializer_list<std::string_view> others = {});

  std::shared_ptr<const AnswerFormat> without_calls() const override;
  CallTags call_tags() const override;
  void plan(bool thoughts, GenerateRequest& request, OutputParser::Options& options) const override;
  std::span<const TokenId> marks() const override { return hidden_; }
  std::string_view spelling(TokenId token) const override;
  std::string spelt(std::initializer_list<std::string_view> parts) const override;
  std::string calls_rule(CallGrammar& grammar, bool free) const override;

 protected:
  static constexpr std::string_view kAnyText = "(?s:.*)";

  bool hides(std::string_view mark) const;
  // A grammar's rule for text of the expression, which the mark ends.
  std::string ends_text(const std::string& rule, std::string_view expression, std::string_view mark) const;
  // The same for a custom tool's input. line: stands before the mark.
  std::string input_rule(const std::string& rule, const TextGrammar& input, std::string_view line,
                         std::string_view mark) const;

  const CallMarks marks_;

 private:
  std::map<std::string_view, TokenId> tokens_;
  std::vector<TokenId> hidden_;  // tokens that text does not show
};

// How a form writes values that are no JSON.
struct LiteralStyle {
  unsigned json;                // JsonTypes of the values that are written as JSON
  std::string_view prefix;      // before a tool's name
  std::string_view quote = {};  // around texts, unless they are JSON's
  std::string_view comma, colon;

  // Keyword arguments in parentheses; within values, keys are in quotes, and words are True, False and None.
  bool is_python() const { return quote.empty(); }
};

// Calls whose arguments are such values: a grammar of its own follows a tool's schema. Without a style they are JSON.
class LiteralCalls : public TaggedCalls {
 public:
  LiteralCalls(const FormatProbe& probe, const CallMarks& marks, std::optional<LiteralStyle> style,
               std::initializer_list<std::string_view> others = {})
      : TaggedCalls(probe, marks, others), style_(style) {}

  std::string calls_rule(CallGrammar& grammar, bool free) const override;
  void add_tool(CallGrammar& grammar, const Tool& tool, const std::string& index) const override;

 protected:
  // Adds the rules that all tools' arguments share.
  void add_values(CallGrammar& grammar) const;

 private:
  void add_members(CallGrammar& grammar, const Tool& tool, const std::string& schema, const std::string& rule,
                   int depth) const;
  void add_member(CallGrammar& grammar, const Tool& tool, const ToolParameter& parameter, const std::string& rule,
                  int depth) const;
  void add_value(CallGrammar& grammar, const Tool& tool, const ToolParameter& parameter, const std::string& rule,
                 int depth) const;

  const std::optional<LiteralStyle> style_;
};

template <class Scanner>
class TaggedStage final : public ByteStage {
 public:
  TaggedStage(const CallMarks& marks, Scanner unused) : marks_(marks), unused_(std::move(unused)) {}

  void finish(TextEnd end, OutputWriter& out) override {
    if (place_ == Place::kCall && !scanner_->announced()) {
      push(no_call(out), out);
      finish(end, out);
    } else if (place_ == Place::kCall) {
      const bool whole = scanner_->finish(end);
      out.arguments(scanner_->take_arguments());
      if (whole) out.end_call();
      if (end == TextEnd::kModel) out.content(scanner_->take_rest());
    } else if (place_ == Place::kText) {
      const std::string_view text = skip_space(held_);
      if (!after_call_ || !(text.empty() || (in_section_ && marks_.section_end.starts_with(text)))) out.content(held_);
    }
  }

 private:
  enum class Place { kText, kCall, kAfter };
  enum class Head { kMore, kCall, kEnd, kNone };

  std::string step(char c, OutputWriter& out) override {
    if (place_ == Place::kCall) return call(c, out);
    // More white space decides nothing: long runs of it are not looked through for each byte.
    const bool more_space = is_json_space(c) && !held_.empty() && is_json_space(held_.back());
    held_ += c;
    if (more_space) return {};
    return place_ == Place::kAfter ? after() : text(out);
  }

  static bool begins(std::string_view text, std::string_view mark) { return !mark.empty() && mark.starts_with(text); }

  // Whether held_ may become [section] call, or a section's end. REQUIRES: all shorter texts gave kMore.
  Head head() {
    std::string_view text = skip_space(held_);
    alone_ = marks_.section.empty() || !text.starts_with(marks_.section);
    if (!alone_) text = skip_space(text.substr(marks_.section.size()));
    if (text == marks_.call) return Head::kCall;
    if (text.empty() || begins(text, marks_.call) || (alone_ && begins(text, marks_.section))) return Head::kMore;
    if (!alone_ || !in_section_ || !begins(text, marks_.section_end)) return Head::kNone;
    return text == marks_.section_end ? Head::kEnd : Head::kMore;
  }

  std::string text(OutputWriter& out) {
    const Head head = this->head();
    if (head == Head::kMore) return {};
    if (head == Head::kNone) return no_mark(out);
    if (head == Head::kEnd) {
      in_section_ = false;
      held_.clear();
      return {};
    }
    marker_ = std::exchange(held_, {});
    scanner_.emplace(unused_);
    if constexpr (requires { scanner_->only_known(); }) {
      if (alone_ && !in_section_ && marks_.only_known_alone) scanner_->only_known();
    }
    place_ = Place::kCall;
    return {};
  }

  // held_ is content up to where another mark may begin. Returns the rest.
  std::string no_mark(OutputWriter& out) {
    after_call_ = in_section_ = false;
    size_t end = held_.size() - skip_space(held_).size() + 1;
    while (end < held_.size() && held_[end] != '<' && !is_json_space(held_[end])) ++end;
    out.content(std::string_view(held_).substr(0, end));
    return std::exchange(held_, {}).substr(end);
  }

  std::string call(char c, OutputWriter& out) {
    const ToolCallScanner::State state = scan_call(*scanner_, c, out);
    if (!scanner_->announced()) {
      body_ += c;
      return state == ToolCallScanner::State::kBroken ? no_call(out) : std::string();
    }
    marker_.clear();
    body_.clear();
    after_call_ = in_section_ = true;
    if (state != ToolCallScanner::State::kReading) place_ = marks_.call_end.empty() ? Place::kText : Place::kAfter;
    return state == ToolCallScanner::State::kBroken ? scanner_->take_rest() + c : std::string();
  }

  // The text was no call, so its marker is content. Returns the rest.
  std::string no_call(OutputWriter& out) {
    out.content(std::exchange(marker_, {}));
    after_call_ = in_section_ = false;
    place_ = Place::kText;
    return std::exchange(body_, {});
  }

  // A missing or misspelt end mark does not undo the call.
  std::string after() {
    std::string_view text = skip_space(held_);
    if (begins(text, marks_.tail)) return {};
    if (!marks_.tail.empty() && text.starts_with(marks_.tail)) text = skip_space(text.substr(marks_.tail.size()));
    if (text != marks_.call_end && marks_.call_end.starts_with(text)) return {};
    place_ = Place::kText;
    if (text == marks_.call_end) held_.clear();
    return std::exchange(held_, {});
  }

  const CallMarks marks_;
  const Scanner unused_;  // the state at each call's beginning
  std::optional<Scanner> scanner_;
  Place place_ = Place::kText;
  std::string held_;         // undecided text
  std::string marker_;       // marks of a call that is not announced yet, with white space before them
  std::string body_;         // behind these, until the call is announced
  bool alone_ = false;       // the call's mark stands without its section's
  bool after_call_ = false;  // no content came since the last call
  bool in_section_ = false;  // the same, and no section ended since
};

}  // namespace volley::serve
