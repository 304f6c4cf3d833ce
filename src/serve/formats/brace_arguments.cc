#include "serve/formats/brace_arguments.h"

#include <utility>

#include "serve/formats/tool_parameters.h"

namespace volley::serve {
namespace {

constexpr size_t kLongestKey = 512;
constexpr unsigned kAnyWord = kJsonString | kJsonNumber | kJsonBoolean | kJsonNull;

std::string_view without_quotes(std::string_view key) {
  key = trim_end(skip_space(key));
  for (const std::string_view quote : {kBraceQuote, std::string_view("\"")}) {
    if (key.size() >= 2 * quote.size() && key.starts_with(quote) && key.ends_with(quote)) {
      return key.substr(quote.size(), key.size() - 2 * quote.size());
    }
  }
  return key;
}

}  // namespace

BraceArguments::State BraceArguments::push(char c, std::string& json) {
  switch (place_) {
    case Place::kKey:
      if (c == '}' && skip_space(held_).empty()) return close(c, json);
      if (c != ':') {
        held_ += c;
        return held_.size() > kLongestKey ? State::kBroken : State::kReading;
      }
      json += "\"" + json_escape(without_quotes(std::exchange(held_, {}))) + "\": ";
      place_ = Place::kValue;
      return State::kReading;
    case Place::kValue:
      return value(c, json);
    case Place::kText:
      text(c, json);
      return State::kReading;
    case Place::kQuoted:
      json += c;
      if (c == '"' && !escaped_) place_ = Place::kAfter;
      escaped_ = c == '\\' && !escaped_;
      return State::kReading;
    case Place::kWord:
      if (c != ',' && c != '}' && c != ']') {
        held_ += c;
        if (held_ != kBraceQuote) return State::kReading;
        held_.clear();
        json += '"';
        place_ = Place::kText;
        return State::kReading;
      }
      end_word(json);
      break;
    case Place::kAfter:
      break;
  }
  if (is_json_space(c)) return State::kReading;
  if (c != ',') return close(c, json);
  json += ", ";
  place_ = open_.back() == '}' ? Place::kKey : Place::kValue;
  return State::kReading;
}

BraceArguments::State BraceArguments::value(char c, std::string& json) {
  if (is_json_space(c)) return State::kReading;
  if (c == ']' || c == '}') return close(c, json);
  if (c == '{' || c == '[') {
    json += c;
    open_ += c == '{' ? '}' : ']';
    place_ = c == '{' ? Place::kKey : Place::kValue;
  } else if (c == '"') {
    json += c;
    place_ = Place::kQuoted;
  } else {
    held_ = c;
    place_ = Place::kWord;
  }
  return State::kReading;
}

BraceArguments::State BraceArguments::close(char c, std::string& json) {
  if (c != open_.back()) return State::kBroken;
  held_.clear();
  json += c;
  open_.pop_back();
  place_ = Place::kAfter;
  return open_.empty() ? State::kDone : State::kReading;
}

void BraceArguments::text(char c, std::string& json) {
  if (kBraceQuote.starts_with(held_ + c)) {
    held_ += c;
    if (held_ != kBraceQuote) return;
    held_.clear();
    json += '"';
    place_ = Place::kAfter;
    return;
  }
  json += json_escape(std::exchange(held_, {}));
  if (c == kBraceQuote.front()) {
    held_ = c;
  } else {
    json += json_escape({&c, 1});
  }
}

void BraceArguments::end_word(std::string& json) {
  json += json_of_bare_value(trim_end(std::exchange(held_, {})), kAnyWord);
  place_ = Place::kAfter;
}

void BraceArguments::end(std::string& json) {
  if (place_ == Place::kWord) end_word(json);
  if (place_ == Place::kText) json += json_escape(std::exchange(held_, {}));
}

}  // namespace volley::serve
