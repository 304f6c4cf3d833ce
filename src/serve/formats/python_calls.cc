// A list of Python's calls, [f(s="text", n=[1, None]), g()]:
//   <|tool_call_start|>[…]<|tool_call_end|> with text around it: LFM2 and LFM2.5 (docs.liquid.ai, "Tool use")
//   the whole answer, perhaps in a fence, or lines of it: Gemma 3 (ai.google.dev, "Function calling with Gemma") and
//   Llama 3.2
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "serve/formats/call_grammar.h"
#include "serve/formats/tagged_calls.h"
#include "serve/formats/tool_parameters.h"
#include "serve/json/json_text.h"
#include "serve/json/python_literal.h"

namespace volley::serve {
namespace {

using State = ToolCallScanner::State;

constexpr std::string_view kBegin = "<|tool_call_start|>", kEnd = "<|tool_call_end|>", kCodeFence = "```",
                           kBracket = "[";
constexpr size_t kLongestName = 512;  // longer ones are text

// Reads one growing call, f(key=value, …) or {"name": "f", "arguments": {…}}. Texts go out as they come, other values
// once complete. It has ToolCallScanner's functions.
class PythonCallScanner {
 public:
  // known: if not null, the tool must be one of these.
  explicit PythonCallScanner(std::shared_ptr<const ToolTypes> known) : known_(std::move(known)) {}

  State push(char c) {
    if (place_ == Place::kName && name_.empty() && c == '{' && !known_) place_ = Place::kJson;
    switch (place_) {
      case Place::kJson:
        return json_.push(c);
      case Place::kName:
        if (c != '(') return grow(name_, c, ")[]{}=<\n");
        name_.resize(trim_end(name_).size());
        place_ = Place::kKey;
        return name_.empty() || (known_ && !known_->contains(name_)) ? State::kBroken : State::kReading;
      case Place::kKey:
        if (c == ')' && skip_space(key_).empty()) return end();
        if (c != '=') return grow(key_, c, "(){},'\"<");
        key_ = trim_end(skip_space(key_));
        if (key_.empty()) return State::kBroken;
        announce();
        arguments_ += (first_ ? "\"" : ", \"") + json_escape(std::exchange(key_, {})) + "\": ";
        first_ = false;
        place_ = Place::kValue;
        return State::kReading;
      case Place::kQuote:
        return quote(c);
      case Place::kText:
        return text(c);
      case Place::kValue:
        return value(c);
      case Place::kAfter:
        break;
    }
    if (c == ',') place_ = Place::kKey;
    if (c == ')') return end();
    return c == ',' || is_json_space(c) ? State::kReading : State::kBroken;
  }

  bool announced() const { return place_ == Place::kJson ? json_.announced() : announced_; }
  const std::string& name() const { return place_ == Place::kJson ? json_.name() : name_; }
  std::string take_arguments() {
    return place_ == Place::kJson ? json_.take_arguments() : std::exchange(arguments_, {});
  }
  // After kBroken (behind: the last byte is not part of them), or at the text's end: bytes of a key that led nowhere.
  std::string take_rest(bool behind) {
    std::string rest = std::exchange(key_, {});
    if (behind && !rest.empty()) rest.pop_back();
    return rest;
  }
  void finish(TextEnd end) {
    if (place_ == Place::kText) ending_.size() < static_cast<size_t>(quotes_) ? send_text() : end_text();
    if (place_ == Place::kValue && end == TextEnd::kModel && !value_.empty()) end_value();
  }

 private:
  enum class Place { kName, kKey, kQuote, kText, kValue, kAfter, kJson };

  static State grow(std::string& word, char c, std::string_view none) {
    word += c;
    return none.find(c) == std::string_view::npos && word.size() <= kLongestName ? State::kReading : State::kBroken;
  }

  void announce() {
    if (!std::exchange(announced_, true)) arguments_ = "{";
  }

  State end() {
    announce();
    arguments_ += '}';
    return State::kDone;
  }

  // Reads quotes behind the first one: there may be none, one more for an empty text, or two more.
  State quote(char c) {
    if (c == quote_ && ++quotes_ < 3) return State::kReading;
    place_ = Place::kText;
    arguments_ += '"';
    if (c == quote_) return State::kReading;
    if (quotes_ == 2) ending_ = quote_;
    quotes_ = 1;
    return text(c);
  }

  // Templates print texts without escapes, and models copy that: a quote ends a text if a comma or the call's end
  // follows.
  State text(char c) {
    if (ending_.size() < static_cast<size_t>(quotes_) ? c == quote_ && !escaped_ : is_json_space(c)) {
      ending_ += c;
      return State::kReading;
    }
    if (ending_.size() >= static_cast<size_t>(quotes_) && (c == ',' || c == ')')) {
      end_text();
      return push(c);
    }
    for (const char held : std::exchange(ending_, {})) {
      add_text((held == quote_ ? "\\" : "") + std::string(1, held));
    }
    if (c == quote_ && !escaped_) return text(c);
    add_text(std::string(1, c));
    return State::kReading;
  }

  // Holds a text back from a backslash on, until its escape is over.
  void add_text(const std::string& more) {
    static constexpr size_t kLongestEscape = 12;  // two halves of a pair
    const bool continues = (static_cast<unsigned char>(more[0]) & 0xC0) == 0x80;
    const bool escapes = more[0] == '\\' && !escaped_, half = held_.size() == 6 && held_[1] == 'u';
    if (!escaped_ && !continues && (behind_escape_ > kLongestEscape || (escapes && !half))) send_text();
    behind_escape_ = escapes ? 1 : behind_escape_ + more.size();
    escaped_ = escapes && more.size() == 1;
    held_ += more;
    if (held_.find('\\') == std::string::npos) send_text();
  }

  void send_text() {
    const std::string literal = quote_ + held_ + quote_;
    const bool escapes = held_.find('\\') != std::string::npos;
    const auto json = escapes ? json_of_python(literal) : std::nullopt;
    arguments_ += json ? json->substr(1, json->size() - 2) : json_escape(held_);
    held_.clear();
  }

  void end_text() {
    send_text();
    arguments_ += '"';
    ending_.clear();
    place_ = Place::kAfter;
  }

  // Reads a value that is no text, up to what follows it.
  State value(char c) {
    if (value_.empty() && (is_json_space(c) || c == '"' || c == '\'')) {
      if (is_json_space(c)) return State::kReading;
      quote_ = c;
      quotes_ = 1;
      place_ = Place::kQuote;
      return State::kReading;
    }
    if (in_quotes_ != 0) {
      if (c == in_quotes_ && !escaped_) in_quotes_ = 0;
      escaped_ = c == '\\' && !escaped_;
    } else if (open_.empty() && (c == ',' || c == ')')) {
      if (value_.empty()) return State::kBroken;
      end_value();
      return push(c);
    } else if (c == '"' || c == '\'') {
      in_quotes_ = c;
    } else if (c == '(' || c == '[' || c == '{') {
      open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_.empty() || open_.back() != c) {
        arguments_ += std::exchange(value_, {});
        return State::kBroken;
      }
      open_.pop_back();
    }
    value_ += c;
    return State::kReading;
  }

  void end_value() {
    static constexpr unsigned kNoText = kJsonNumber | kJsonBoolean | kJsonNull | kJsonObject | kJsonArray;
    arguments_ += json_of_bare_value(trim_end(std::exchange(value_, {})), kNoText);
    open_.clear();
    in_quotes_ = 0;
    escaped_ = false;
    place_ = Place::kAfter;
  }

  const std::shared_ptr<const ToolTypes> known_;
  ToolCallScanner json_{{.other_members = true, .arguments_may_miss = true}};
  Place place_ = Place::kName;
  std::string name_, key_, arguments_;
  bool announced_ = false, first_ = true;
  char quote_ = 0;            // a text's quote
  int quotes_ = 0;            // how many begin the text, and end it
  std::string ending_;        // may be the text's end
  std::string held_;          // a text's part with escapes, as written
  size_t behind_escape_ = 0;  // bytes since the last backslash
  bool escaped_ = false;      // the next byte is part of an escape
  std::string value_;         // a value that is no text, so far
  std::string open_;          // its closing brackets, innermost last
  char in_quotes_ = 0;        // the quote of a text inside it
};

class PythonStage final : public ByteStage {
 public:
  // bare: the list begins the answer or a line, and its tools are known.
  PythonStage(bool bare, std::shared_ptr<const ToolTypes> types)
      : bare_(bare), known_(bare ? std::move(types) : nullptr), place_(bare ? Place::kList : Place::kText) {}

  void finish(TextEnd end, OutputWriter& out) override {
    if (place_ == Place::kCall && scanner_->announced()) {
      scanner_->finish(end);
      out.arguments(scanner_->take_arguments());
      const std::string rest = scanner_->take_rest(false);
      if (end == TextEnd::kModel && !skip_space(rest).empty()) out.content(rest);
      return;
    }
    std::string rest = place_ == Place::kText ? begin_.take() : place_ == Place::kEnd ? end_.take() : held_;
    const std::string_view text = skip_space(rest);
    if (!after_call_ || !(text.empty() || text == "," || (place_ == Place::kEnd && kEnd.starts_with(text)))) {
      out.content(rest);
    }
  }

 private:
  enum class Place { kText, kList, kCall, kBetween, kEnd };

  std::string step(char c, OutputWriter& out) override {
    switch (place_) {
      case Place::kText:
        return text(c, out);
      case Place::kList:
        return list(c, out);
      case Place::kCall:
        return call(c, out);
      case Place::kBetween:
        held_ += c;
        if (is_json_space(c)) return {};
        place_ = c == ',' ? Place::kList : Place::kEnd;
        if (c == ']') held_.clear();
        return c == ',' ? std::string() : std::exchange(held_, {});
      case Place::kEnd:
        break;
    }
    const MarkerHold::Step step = end_.push(c);
    if (step == MarkerHold::Step::kHeld) return {};
    place_ = Place::kText;
    std::string held = end_.take();
    return step == MarkerHold::Step::kFound ? std::string() : held + c;
  }

  std::string text(char c, OutputWriter& out) {
    const MarkerHold::Step step = begin_.push(c);
    if (step == MarkerHold::Step::kHeld) return {};
    held_ = begin_.take();
    const bool found = step == MarkerHold::Step::kFound, begins_line = held_.find('\n') != std::string::npos;
    if (found && (!bare_ || begins_line)) {
      place_ = Place::kList;
      bracket_ = bare_;
      return {};
    }
    if (bare_ && begins_line && c == kCodeFence.front()) {
      place_ = Place::kList;
      bracket_ = false;
      held_ += c;
      return {};
    }
    after_call_ = false;
    const std::string before = std::exchange(held_, {});
    const bool again = !found && !before.empty() && (is_json_space(c) || c == (bare_ ? kBracket : kBegin).front());
    out.content(found || again ? before : before + c);
    return again ? std::string(1, c) : std::string();
  }

  // Reads what may come before a call: a fence, and a bracket.
  std::string list(char c, OutputWriter& out) {
    // More white space decides nothing: long runs of it are not looked through for each byte.
    const bool more_space = is_json_space(c) && !held_.empty() && is_json_space(held_.back());
    held_ += c;
    if (more_space) return {};
    const std::string_view text = skip_space(held_);
    const bool fence = bare_ && !bracket_ && (kCodeFence.starts_with(text) || text.starts_with(kCodeFence));
    if (fence && text.find('\n') == std::string_view::npos && text.size() < kLongestName) return {};
    if (is_json_space(c)) return {};
    if (c == '[' && !bracket_) {
      bracket_ = true;
      return {};
    }
    if (c == ']' && bracket_ && text.starts_with(',')) {
      held_.clear();
      place_ = Place::kEnd;
      return {};
    }
    if (bare_ && !bracket_) return no_call(out);
    held_.pop_back();
    scanner_.emplace(known_);
    place_ = Place::kCall;
    return call(c, out);
  }

  std::string call(char c, OutputWriter& out) {
    const State state = scan_call(*scanner_, c, out);
    if (!scanner_->announced()) {
      held_ += c;
      return state == State::kBroken ? no_call(out) : std::string();
    }
    held_.clear();
    after_call_ = true;
    if (state == State::kDone) place_ = Place::kBetween;
    if (state != State::kBroken) return {};
    place_ = Place::kText;
    return scanner_->take_rest(true) + c;
  }

  // The held text is content, but a mark may begin behind its first byte.
  std::string no_call(OutputWriter& out) {
    const size_t taken = std::min(held_.size(), held_.size() - skip_space(held_).size() + 1);
    out.content(std::string_view(held_).substr(0, taken));
    after_call_ = false;
    place_ = Place::kText;
    return std::exchange(held_, {}).substr(taken);
  }

  const bool bare_;
  const std::shared_ptr<const ToolTypes> known_;
  Place place_;
  MarkerHold begin_{bare_ ? kBracket : kBegin}, end_{bare_ ? kCodeFence : kEnd};
  std::optional<PythonCallScanner> scanner_;
  std::string held_;         // undecided text
  bool bracket_ = false;     // the list began
  bool after_call_ = false;  // no content came since the last call
};

// A JSON value as Python writes it. One nested too deep stays JSON: a text may hold any depth.
std::string python_of(std::string_view json, int depth = 0) {
  if (depth > kMaxJsonDepth) return std::string(json);
  std::string text;
  const auto add = [&text, depth](std::string_view key, std::string_view value) {
    text += (text.empty() ? "" : ", ") + std::string(key) + python_of(value, depth + 1);
  };
  if (json.starts_with('[')) {
    for (const std::string_view element : array_elements(json)) add("", element);
    return "[" + text + "]";
  }
  if (json.starts_with('{')) {
    for (const auto& [key, value] : object_members(json)) add(json_quote(key) + ": ", value);
    return "{" + text + "}";
  }
  return json == "true" ? "True" : json == "false" ? "False" : json == "null" ? "None" : std::string(json);
}

// A history's calls, as the model writes them.
std::string written(const std::vector<std::string>& calls) {
  std::string list;
  for (const std::string& call : calls) {
    const nlohmann::json function = member_of(read_json(call), "function");
    std::string arguments = text_member(function, "arguments");
    if (member_of(function, "arguments").is_object()) {
      arguments = find_member(find_member(call, "function"), "arguments");
    }
    std::string keywords;
    if (skip_space(arguments).starts_with('{') && is_json_text(arguments)) {
      for (const auto& [key, value] : object_members(arguments)) {
        keywords += (keywords.empty() ? "" : ", ") + key + "=" + python_of(value);
      }
    }
    list += (list.empty() ? "" : ", ") + text_member(function, "name") + "(" + keywords + ")";
  }
  return "[" + list + "]";
}

class PythonCalls final : public LiteralCalls {
 public:
  PythonCalls(const FormatProbe& probe, bool bare)
      : LiteralCalls(probe, bare ? CallMarks{} : kMarks, kStyle),
        bare_(bare),
        shows_calls_(follows(probe.call, bare ? "[" : kBegin, bare ? "volley_probe(" : "[volley_probe(")),
        shows_tools_(probe.shows_tools()) {}

  std::shared_ptr<const AnswerFormat> without_calls() const override {
    auto same = std::make_shared<PythonCalls>(*this);
    same->calls_ = false;
    return same;
  }
  // The messages hold the calls and tools that the template does not show.
  Result<std::string> render(const Engine& engine, Conversation chat,
                             const std::atomic<bool>* cancelled) const override {
    for (ChatMessage& message : chat.messages) {
      if (shows_calls_ || message.calls.empty()) continue;
      const std::string list = written(std::exchange(message.calls, {}));
      const std::string said = message.content.value_or("");
      message.content =
          said + (bare_ ? (said.empty() ? "" : "\n") + list : std::string(kBegin) + list + std::string(kEnd));
    }
    if (!shows_tools_) {
      tell_results(chat);
      tell_tools(chat, "a list of calls as Python writes them: [name(parameter=value, other=value), name()]");
    }
    return AnswerFormat::render(engine, std::move(chat), cancelled);
  }
  bool reads_types() const override { return bare_; }  // for the tools' names
  std::unique_ptr<OutputStage> stage(const OutputParser::Options& options) const override {
    if (!calls_) return content_stage();
    return marked_stage(options, std::make_unique<PythonStage>(bare_, options.types));
  }
  std::string calls_rule(CallGrammar& grammar, bool free) const override {
    if (!bare_) return LiteralCalls::calls_rule(grammar, free);
    add_values(grammar);
    grammar.rules += R"(call: "[" object )" + std::string(grammar.parallel ? R"((", " object)* )" : "") + "\"]\"\n";
    if (!free) return "call";
    // Text that cannot begin a list, and in which no line begins one of calls.
    std::string names;
    for (const Tool& tool : grammar.request.tools) names += (names.empty() ? "" : "|") + regex_escape(tool.name);
    grammar.rules += R"(TEXT: /[ \t\r\n]*[^\[ \t\r\n](?s:.*)/ & ~/(?s:.*)\n[ \t\r\n]*\[[ \t\r\n]*(?:)" + names +
                     R"()[ \t\r\n]*\((?s:.*)/)"
                     "\n";
    return "(call | TEXT)?";
  }

 private:
  static constexpr CallMarks kMarks{
      .section = kBegin, .section_end = kEnd, .call = "[", .several = true, .lead = "[", .trail = "]", .between = ", "};
  static constexpr LiteralStyle kStyle{.json = kJsonString | kJsonNumber, .prefix = {}, .comma = ", ", .colon = ": "};

  // Tells results to a model whose template lets user and assistant take turns.
  static void tell_results(Conversation& chat) {
    std::vector<ChatMessage> messages;
    bool results = false;  // the last message has some
    for (ChatMessage& message : chat.messages) {
      const bool is_result = message.role == "tool";
      if (is_result) {
        message.role = "user";
        message.call_id.reset();
        message.content = "```tool_output\n" + message.content.value_or("") + "\n```";
      }
      if (results && message.role == "user") {
        append_part(*messages.back().content, message.content.value_or(""));
        std::ranges::move(message.pictures, std::back_inserter(messages.back().pictures));
      } else {
        messages.push_back(std::move(message));
      }
      results = is_result || (results && messages.back().role == "user");
    }
    chat.messages = std::move(messages);
  }

  const bool bare_, shows_calls_, shows_tools_;
};

template <bool bare>
Result<std::shared_ptr<const AnswerFormat>> python(const FormatProbe& probe) {
  return std::shared_ptr<const AnswerFormat>(std::make_shared<const PythonCalls>(probe, bare));
}

}  // namespace

extern const AnswerFormatKind kLfmFormat{{"lfm2"},
                                         {},
                                         [](const FormatProbe& probe) {
                                           if (follows(probe.call, kBegin, "[volley_probe(")) return true;
                                           // Most of these models' templates show tools alone.
                                           return probe.token(kBegin) &&
                                                  probe.call.find("volley_probe") != std::string::npos;
                                         },
                                         python<false>};
// Gemma 3's template shows neither tools nor calls.
extern const AnswerFormatKind kPythonFormat{{"pythonic", "gemma3"},
                                            {},
                                            [](const FormatProbe& probe) {
                                              return probe.ask.find("<start_of_turn>") != std::string::npos &&
                                                     !probe.shows_tools();
                                            },
                                            python<true>,
                                            /*tells_tools=*/true};

}  // namespace volley::serve
