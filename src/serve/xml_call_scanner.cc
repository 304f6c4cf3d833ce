#include "serve/xml_call_scanner.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace volley::serve {
namespace {

constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

std::string_view skip_space(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

// No name has these.
bool ends_no_name(char c) {
  return c == '<' || c == '\n';
}

}  // namespace

XmlCallScanner::State XmlCallScanner::push(char c) {
  switch (place_) {
    case Place::kHead:
      return head(c);
    case Place::kName:
      return name(c);
    case Place::kAfter:
      return after_parameter(c);
    case Place::kKey:
      return key(c);
    case Place::kLineBreak:
      place_ = Place::kValue;
      return c == '\n' ? State::kReading : value(c);
    case Place::kValue:
      return value(c);
  }
  return State::kBroken;
}

std::string XmlCallScanner::take_arguments() {
  return std::exchange(arguments_, {});
}

std::string XmlCallScanner::take_rest() {
  return std::exchange(held_, {});
}

void XmlCallScanner::finish() {
  if (place_ == Place::kValue && !value_is_text_) arguments_ += skip_space(value_);
}

XmlCallScanner::State XmlCallScanner::head(char c) {
  held_ += c;
  const std::string_view tag = skip_space(held_);
  if (!kFunction.starts_with(tag)) return State::kBroken;
  if (tag == kFunction) {
    held_.clear();
    place_ = Place::kName;
  }
  return State::kReading;
}

XmlCallScanner::State XmlCallScanner::name(char c) {
  if (c != '>') {
    name_ += c;
    return ends_no_name(c) ? State::kBroken : State::kReading;
  }
  if (name_.empty()) return State::kBroken;
  announced_ = true;
  arguments_ = "{";
  place_ = Place::kAfter;
  return State::kReading;
}

XmlCallScanner::State XmlCallScanner::after_parameter(char c) {
  const bool blank = held_.empty() || is_json_space(held_.back());
  if (blank && is_json_space(c)) {
    held_ += c;
    return State::kReading;
  }
  const std::string tag = std::string(skip_space(held_)) + c;
  if (tag == kFunctionEnd) {
    held_.clear();
    return end_call(State::kDone);
  }
  if (!kFunctionEnd.starts_with(tag) && !kParameter.starts_with(tag)) return end_call(State::kBroken);
  held_ += c;
  if (tag == kParameter) place_ = Place::kKey;
  return State::kReading;
}

XmlCallScanner::State XmlCallScanner::key(char c) {
  if (c != '>') {
    if (ends_no_name(c)) {
      held_ += std::exchange(key_, {});
      return end_call(State::kBroken);
    }
    key_ += c;
    return State::kReading;
  }
  held_.clear();
  value_types_ = kNoJsonType;
  if (types_) {
    const auto tool = types_->find(name_);
    if (tool != types_->end()) {
      const auto found = tool->second.find(key_);
      if (found != tool->second.end()) value_types_ = found->second;
    }
  }
  value_is_text_ = value_types_ == kNoJsonType || value_types_ == kJsonString;
  arguments_ += (first_ ? "\"" : ", \"") + json_escape(std::exchange(key_, {})) + "\": ";
  if (value_is_text_) arguments_ += '"';
  first_ = false;
  place_ = Place::kLineBreak;
  return State::kReading;
}

XmlCallScanner::State XmlCallScanner::value(char c) {
  switch (value_end_.push(c)) {
    case MarkerHold::Step::kHeld:
      return State::kReading;
    case MarkerHold::Step::kFound:
      end_value();
      return State::kReading;
    case MarkerHold::Step::kOther:
      break;
  }
  const bool held = !value_end_.text().empty();
  add_value(value_end_.take());
  if (held) return value(c);
  add_value({&c, 1});
  return State::kReading;
}

void XmlCallScanner::add_value(std::string_view text) {
  if (value_is_text_) {
    arguments_ += json_escape(text);
  } else {
    value_ += text;
  }
}

void XmlCallScanner::end_value() {
  std::string space = value_end_.take();
  space.resize(space.size() - kParameterEnd.size());
  if (space.ends_with('\n')) space.pop_back();
  add_value(space);
  arguments_ += value_is_text_ ? "\"" : json_of_bare_value(std::exchange(value_, {}), value_types_);
  place_ = Place::kAfter;
}

XmlCallScanner::State XmlCallScanner::end_call(State state) {
  arguments_ += '}';
  return state;
}

}  // namespace volley::serve
