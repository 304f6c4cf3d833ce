#include "serve/tool_call_scanner.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "serve/tool_parameters.h"

namespace volley::serve {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
}

}  // namespace

JsonValueScanner::Step JsonValueScanner::push(char c) {
  last_ = c;
  last_was_escaped_ = escaped_;
  if (!begun_) return begin(c);
  if (!in_string_) return outside_string(c);
  if (escaped_) {
    escaped_ = false;
  } else if (c == '\\') {
    escaped_ = true;
  } else if (c == '"') {
    in_string_ = false;
    if (closers_.empty()) return Step::kLast;
  }
  return Step::kMore;
}

void JsonValueScanner::append_last(std::string& json) const {
  if (!in_string_ || static_cast<unsigned char>(last_) >= 0x20) {
    json += last_;
    return;
  }
  json.append(json_escape({&last_, 1}), last_was_escaped_ ? 1 : 0);  // its backslash has gone out
}

JsonValueScanner::Step JsonValueScanner::begin(char c) {
  begun_ = true;
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    closers_.push_back(c == '{' ? '}' : ']');
  } else if (!is_word(c)) {
    return Step::kBroken;
  }
  return Step::kMore;
}

JsonValueScanner::Step JsonValueScanner::outside_string(char c) {
  if (closers_.empty()) return is_word(c) ? Step::kMore : Step::kEndBefore;
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    closers_.push_back(c == '{' ? '}' : ']');
  } else if (c == '}' || c == ']') {
    if (closers_.back() != c) return Step::kBroken;
    closers_.pop_back();
    if (closers_.empty()) return Step::kLast;
  } else if (!is_word(c) && !is_json_space(c) && c != ',' && c != ':') {
    return Step::kBroken;
  }
  return Step::kMore;
}

ToolCallScanner::State ToolCallScanner::push(char c) {
  if (!step(c)) return State::kBroken;
  return done_ ? State::kDone : State::kReading;
}

std::string ToolCallScanner::take_arguments() {
  return std::exchange(arguments_, {});
}

bool ToolCallScanner::step(char c) {
  switch (place_) {
    case Place::kBefore:
      if (c == '{') place_ = Place::kFirstKey;
      return c == '{' || is_json_space(c);
    case Place::kFirstKey:
    case Place::kNextKey:
      if (c == '"') {
        key_ = c;
        scanner_ = {};
        scanner_.push(c);
        place_ = Place::kKey;
      }
      return c == '"' || is_json_space(c);
    case Place::kKey:
      key_ += c;
      if (scanner_.push(c) == JsonValueScanner::Step::kLast) place_ = Place::kColon;
      return true;
    case Place::kColon:
      if (c != ':') return is_json_space(c);
      place_ = Place::kValueStart;
      return begin_member();
    case Place::kValueStart:
      if (is_json_space(c)) return true;
      place_ = Place::kValue;
      if (member_ == Member::kName && c != '"') return false;
      if (member_ == Member::kArguments) {
        if (c != '{') return false;
        arguments_begun_ = true;
      }
      return value(c);
    case Place::kValue:
      return value(c);
    case Place::kAfterValue:
      return after_value(c);
  }
  return false;
}

bool ToolCallScanner::begin_member() {
  scanner_ = {};
  if (key_ == "\"name\"") {
    member_ = Member::kName;
    return name_.empty();
  }
  // Models of both formats are seen to mix up the two names.
  if (key_ == "\"arguments\"" || key_ == "\"parameters\"") {
    member_ = Member::kArguments;
    return !arguments_begun_;
  }
  member_ = Member::kOther;
  return rules_.other_members || key_ == "\"type\"" || key_ == "\"id\"";
}

bool ToolCallScanner::value(char c) {
  const JsonValueScanner::Step step = scanner_.push(c);
  if (step == JsonValueScanner::Step::kBroken) return false;
  if (step == JsonValueScanner::Step::kEndBefore) return end_value() && after_value(c);
  if (member_ == Member::kName) name_text_ += c;
  if (member_ == Member::kArguments) scanner_.append_last(arguments_);
  return step == JsonValueScanner::Step::kMore || end_value();
}

bool ToolCallScanner::end_value() {
  place_ = Place::kAfterValue;
  if (member_ != Member::kName) return true;
  const auto name = nlohmann::json::parse(name_text_, nullptr, /*allow_exceptions=*/false);
  if (name.is_string()) name_ = name.get<std::string>();
  return !name_.empty();
}

bool ToolCallScanner::after_value(char c) {
  if (c == ',') {
    place_ = Place::kNextKey;
    return true;
  }
  if (c != '}') return is_json_space(c);
  if (!arguments_begun_ && rules_.arguments_may_miss) {
    arguments_begun_ = true;
    arguments_ = "{}";
  }
  done_ = announced();
  return done_;
}

}  // namespace volley::serve
