#include "serve/formats/tool_call_scanner.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace volley::serve {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
}

// Models write these for no arguments.
constexpr std::string_view kNull = "null", kEmptyText = "\"\"";

}  // namespace

JsonValueScanner::Step JsonValueScanner::push(char c) {
  if (in_string_) {
    const bool ends = c == '"' && !escaped_;
    escaped_ = c == '\\' && !escaped_;
    in_string_ = !ends;
    return ends && closers_.empty() ? Step::kLast : Step::kMore;
  }
  const bool first = !std::exchange(begun_, true);
  if (!first && closers_.empty()) return is_word(c) ? Step::kMore : Step::kEndBefore;
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    closers_.push_back(c == '{' ? '}' : ']');
  } else if (!first && c == closers_.back()) {
    closers_.pop_back();
    if (closers_.empty()) return Step::kLast;
  } else if (!is_word(c) && (first || !(is_json_space(c) || c == ',' || c == ':'))) {
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
      if (member_ == Member::kArguments && c != '{') member_ = Member::kNoArguments;
      if (member_ == Member::kArguments) arguments_begun_ = true;
      value_text_.clear();
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
  // Models of both formats mix up the two names.
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
  if (member_ == Member::kArguments) arguments_ += c;
  if (member_ == Member::kName || member_ == Member::kNoArguments) value_text_ += c;
  if (member_ == Member::kNoArguments && !kNull.starts_with(value_text_) && !kEmptyText.starts_with(value_text_)) {
    return false;
  }
  return step == JsonValueScanner::Step::kMore || end_value();
}

bool ToolCallScanner::end_value() {
  place_ = Place::kAfterValue;
  if (member_ == Member::kNoArguments) {
    if (value_text_ != kNull && value_text_ != kEmptyText) return false;
    arguments_begun_ = true;
    arguments_ = "{}";
  }
  if (member_ != Member::kName) return true;
  const auto name = nlohmann::json::parse(value_text_, nullptr, /*allow_exceptions=*/false);
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
