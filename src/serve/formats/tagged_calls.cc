#include "serve/formats/tagged_calls.h"

#include <algorithm>

#include "serve/formats/call_grammar.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

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

}  // namespace

TaggedCalls::TaggedCalls(const FormatProbe& probe, const CallMarks& marks,
                         std::initializer_list<std::string_view> others)
    : AnswerFormat(true), marks_(marks) {
  const ThinkTags think;  // these are no marks of calls, but grammars ask for them, too
  std::vector<std::string_view> all = {marks.section,  marks.section_end, marks.call,
                                       marks.call_end, think.begin,       think.end};
  all.insert(all.end(), others);
  for (const std::string_view mark : all) {
    // Ends of names and keys, such as ">", are letters like others.
    const bool is_mark = mark.starts_with('<') && mark.ends_with('>');
    const auto token = is_mark ? probe.token(mark) : std::nullopt;
    if (!token || !tokens_.emplace(mark, *token).second) continue;
    if (!probe.shows(mark)) hidden_.push_back(*token);
  }
}

// Thoughts between marks that text hides are still told from content.
std::shared_ptr<const AnswerFormat> TaggedCalls::without_calls() const {
  if (hidden_.empty()) return AnswerFormat::without_calls();
  auto same = std::make_shared<TaggedCalls>(*this);
  same->calls_ = false;
  return same;
}

CallTags TaggedCalls::call_tags() const {
  if (!calls_) return {};
  if (!marks_.section.empty()) return {marks_.section, marks_.section_end};
  return {marks_.call, marks_.call_end};
}

bool TaggedCalls::hides(std::string_view mark) const {
  const auto token = tokens_.find(mark);
  return token != tokens_.end() && std::ranges::count(hidden_, token->second) > 0;
}

void TaggedCalls::plan(bool, GenerateRequest& request, OutputParser::Options&) const {
  if (!hidden_.empty()) request.parts.emplace().marks = hidden_;
}

std::string_view TaggedCalls::spelling(TokenId token) const {
  const auto found = std::ranges::find(tokens_, token, [](const auto& mark) { return mark.second; });
  return found == tokens_.end() ? std::string_view() : found->first;
}

std::string TaggedCalls::spelt(std::initializer_list<std::string_view> parts) const {
  std::string symbols, letters;
  const auto end_letters = [&] {
    if (!letters.empty()) symbols += json_quote(std::exchange(letters, {})) + " ";
  };
  for (const std::string_view part : parts) {
    if (const auto token = tokens_.find(part); token != tokens_.end()) {
      end_letters();
      symbols += token_terminal(token->second) + " ";
    } else {
      letters += part;
    }
  }
  end_letters();
  return symbols;
}

std::string TaggedCalls::ends_text(const std::string& rule, std::string_view expression, std::string_view mark) const {
  // A mark that text hides has no letters.
  if (hides(mark)) {
    const std::string text = expression == kAnyText ? "/(?s:.+)/?" : "/" + std::string(expression) + "/";
    return rule + ": " + text + " " + spelt({mark}) + "\n";
  }
  return rule + "[lazy]: /" + std::string(expression) + regex_escape(mark) + "/\n";
}

std::string TaggedCalls::input_rule(const std::string& rule, const TextGrammar& input, std::string_view line,
                                    std::string_view mark) const {
  if (input.syntax == TextGrammar::Syntax::kLark) {
    return rule + ": %lark {\n" + input.definition + "\n} " + spelt({line, mark}) + "\n";
  }
  return ends_text(rule, "(?:" + between_slashes(input.definition) + ")" + (line.empty() ? "" : "\\n"), mark);
}

std::string TaggedCalls::calls_rule(CallGrammar& grammar, bool free) const {
  const std::string_view first = marks_.section.empty() ? marks_.call : marks_.section;
  const std::string_view last = marks_.section.empty() ? marks_.call_end : marks_.section_end;
  // Allows any text, but a mark must be followed by a call. Without a token for it, the mark ends the text.
  const bool lazy = free && !tokens_.contains(first);
  if (free) grammar.text_without(first);
  if (lazy) grammar.text_up_to(first);
  // `trail` is a symbol of its own: the lexer could not tell one that begins with `between` from it.
  const std::string between = spelt({marks_.between});
  const bool more = marks_.several && grammar.parallel;
  grammar.rules += "call: " + (lazy ? "to_call " + spelt({marks_.lead}) : spelt({first, marks_.lead})) + "object " +
                   (more ? "(" + between + "object)* " : "") + spelt({marks_.trail}) + spelt({last}) + "\n";
  if (!free) return marks_.several ? "call" : grammar.calls(between);
  if (lazy) return grammar.parallel ? "call* TEXT?" : "(call | TEXT)?";
  return grammar.parallel ? "TEXT? (call TEXT?)*" : "TEXT? call?";
}

}  // namespace volley::serve
