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
constexpr std::string_view kCallEnd = "</tool_call>";

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
      at_first_line_ = c == '\n';
      return at_first_line_ ? State::kReading : value(c);
    case Place::kValue:
      return value(c);
    case Place::kOtherEnd:
      return other_end(c);
  }
  return State::kBroken;
}

void XmlCallScanner::begin_bare() {
  only_known_ = true;
  held_ = "<f";
}

std::string XmlCallScanner::take_arguments() {
  return std::exchange(arguments_, {});
}

std::string XmlCallScanner::take_rest() {
  return std::exchange(held_, {});
}

void XmlCallScanner::finish() {
  if (place_ == Place::kOtherEnd && other_end_.starts_with(kFunctionEnd)) {
    end_value(std::exchange(before_other_end_, {}));
    end_call(State::kDone);
    return;
  }
  if (place_ == Place::kOtherEnd) add_value(before_other_end_ + other_end_);
  if ((place_ == Place::kValue || place_ == Place::kOtherEnd) && !value_is_text_) arguments_ += skip_space(value_);
  const std::string_view tag = skip_space(held_);
  if (place_ == Place::kAfter && (tag.empty() || tag.starts_with("</"))) end_call(State::kDone);
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
  if (name_.empty() || (only_known_ && (!types_ || !types_->contains(name_)))) return State::kBroken;
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

bool XmlCallScanner::begins_line(std::string_view tag) const {
  const std::string_view held = value_end_.text();
  return held.ends_with(tag) &&
         (held.size() == tag.size() ? at_first_line_ : held[held.size() - tag.size() - 1] == '\n');
}

void XmlCallScanner::add_value(std::string_view text) {
  if (!text.empty()) at_first_line_ = false;
  if (value_is_text_) {
    arguments_ += json_escape(text);
  } else {
    value_ += text;
  }
}

XmlCallScanner::State XmlCallScanner::other_end(char c) {
  other_end_ += c;
  const std::string_view text = other_end_;
  if (text.starts_with(kFunctionEnd) && text.ends_with(kCallEnd)) {
    end_value(std::exchange(before_other_end_, {}));
    return end_call(State::kDone);
  }
  if (c == '>' && text.starts_with(kParameter)) {
    const std::string key_here(text.substr(kParameter.size(), text.size() - kParameter.size() - 1));
    if (is_parameter(key_here)) {
      end_value(std::exchange(before_other_end_, {}));
      key_ = key_here;
      return key(c);
    }
  } else if (may_end_value()) {
    return State::kReading;
  }
  // It is text. What comes behind its first byte is read again.
  const std::string again = std::exchange(other_end_, {}).substr(1);
  add_value(std::exchange(before_other_end_, {}) + "<");
  place_ = Place::kValue;
  for (const char next : again) push(next);
  return State::kReading;
}

bool XmlCallScanner::may_end_value() const {
  constexpr size_t kLongest = 256;
  const std::string_view text = other_end_;
  if (text.size() > kLongest) return false;
  if (kFunctionEnd.starts_with(text) || kParameter.starts_with(text)) return true;
  if (text.starts_with(kParameter)) return !ends_no_name(text.back());
  return text.starts_with(kFunctionEnd) && kCallEnd.starts_with(skip_space(text.substr(kFunctionEnd.size())));
}

bool XmlCallScanner::is_parameter(const std::string& key) const {
  if (!types_) return false;
  const auto tool = types_->find(name_);
  return tool != types_->end() && tool->second.contains(key);
}

void XmlCallScanner::end_value(std::string space) {
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
