#include "serve/formats/call_arguments.h"

#include <cctype>
#include <utility>

#include "serve/formats/tool_call_scanner.h"
#include "serve/formats/tool_parameters.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr std::string_view kInvalidMember = R"("INVALID_JSON": ")";
constexpr size_t kMaxDepth = kMaxJsonDepth - 10;  // clients send arguments back inside a message
constexpr std::string_view kNull = "null";        // models write it for no arguments
constexpr std::string_view kReplacement = "\\ufffd";
constexpr size_t kCodeUnitSize = 6;  // length of \uXXXX

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
}

}  // namespace

size_t CallArguments::push(std::string_view text, std::string& json) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (ended_) return i;
    if (place_ == Place::kInvalid) {
      json += json_escape(text.substr(i));
      break;
    }
    step(text[i], json);
  }
  return text.size();
}

void CallArguments::step(char c, std::string& json) {
  switch (place_) {
    case Place::kKey:
      if (!string_.push(c, held_)) return;
      held_ += c;
      place_ = Place::kBetween;
      next_ = Next::kColon;
      return;
    case Place::kString:
      if (!string_.push(c, json)) return;
      json += c;
      place_ = Place::kBetween;
      next_ = Next::kCommaOrEnd;
      return;
    case Place::kWord:
      if (is_word(c)) {
        held_ += c;
        return;
      }
      if (!word_is_json()) {
        begin_invalid({&c, 1}, json);
        return;
      }
      send_held(json);
      place_ = Place::kBetween;
      next_ = Next::kCommaOrEnd;
      break;
    case Place::kBetween:
    case Place::kInvalid:
      break;
  }
  between(c, json);
}

// Reads a byte outside of strings and words.
void CallArguments::between(char c, std::string& json) {
  const bool in_list = is_in_list();
  if (is_json_space(c) || (next_ == Next::kObject && kNull.starts_with(held_ + c))) {
    if (next_ != Next::kObject || !is_json_space(c) || !held_.empty()) held_ += c;
  } else if (c == '{' && next_ == Next::kObject && held_.empty()) {
    open(c, json);
  } else if (c == '"' && (next_ == Next::kKey || next_ == Next::kKeyOrEnd)) {
    held_ += c;
    place_ = Place::kKey;
  } else if (c == ':' && next_ == Next::kColon) {
    held_ += c;
    next_ = Next::kValue;
  } else if (c == ',' && next_ == Next::kCommaOrEnd) {
    comma_ = held_.size();
    held_ += c;
    next_ = in_list ? Next::kValue : Next::kKey;
  } else if (!open_.empty() && c == open_.back() && next_ != Next::kColon && (next_ != Next::kValue || in_list)) {
    close(c, json);
  } else if (next_ == Next::kValue || next_ == Next::kValueOrEnd) {
    begin_value(c, json);
  } else {
    begin_invalid({&c, 1}, json);
  }
}

void CallArguments::begin_value(char c, std::string& json) {
  if ((c == '{' || c == '[') && open_.size() < kMaxDepth) {
    open(c, json);
  } else if (c == '"') {
    held_ += c;
    send_held(json);
    place_ = Place::kString;
  } else if (is_word(c)) {
    word_ = held_.size();
    held_ += c;
    place_ = Place::kWord;
  } else {
    begin_invalid({&c, 1}, json);
  }
}

void CallArguments::open(char bracket, std::string& json) {
  held_ += bracket;
  // Whether the object has a member is unknown until begin_invalid().
  if (!open_.empty()) send_held(json);
  open_ += bracket == '{' ? '}' : ']';
  next_ = bracket == '{' ? Next::kKeyOrEnd : Next::kValueOrEnd;
}

void CallArguments::close(char bracket, std::string& json) {
  if (next_ == Next::kKey || next_ == Next::kValue) held_.erase(comma_, 1);
  held_ += bracket;
  send_held(json);
  open_.pop_back();
  next_ = Next::kCommaOrEnd;
  ended_ = open_.empty();
}

void CallArguments::close_all(size_t depth, std::string& json) {
  while (open_.size() > depth) {
    json += open_.back();
    open_.pop_back();
  }
}

// Makes the held text, `more`, and all that follows the text of a member of the outermost object.
void CallArguments::begin_invalid(std::string_view more, std::string& json) {
  if (sent_) {
    close_all(1, json);
    json += ", ";
  } else {
    open_ = '}';
    json += '{';
  }
  held_ += more;
  json.append(kInvalidMember).append(json_escape(std::exchange(held_, {})));
  sent_ = true;
  place_ = Place::kInvalid;
}

bool CallArguments::word_is_json() const {
  return is_json_text(std::string_view(held_).substr(word_));
}

void CallArguments::send_held(std::string& json) {
  json += std::exchange(held_, {});
  sent_ = true;
}

void CallArguments::end(std::string& json) {
  if (std::exchange(ended_, true)) return;
  if (place_ == Place::kString) {
    string_.end(json);
    json += '"';
  }
  if (place_ == Place::kKey) string_.end(held_);
  const bool is_whole_word = place_ == Place::kWord && word_is_json();
  const size_t null = !sent_ && held_.starts_with(kNull) ? kNull.size() : 0;
  const bool leads_to_nothing =
      place_ == Place::kString || held_.find_first_not_of(sent_ ? " \t\r\n," : " \t\r\n{", null) == std::string::npos;
  if (is_whole_word) {
    send_held(json);
  } else if (place_ != Place::kInvalid && !leads_to_nothing) {
    begin_invalid({}, json);
  }
  if (place_ == Place::kInvalid) json += '"';
  if (!sent_) {
    json += "{}";
  } else {
    close_all(0, json);
  }
}

bool CallArguments::StringText::push(char c, std::string& to) {
  if (!escape_.empty()) return push_escape(c, to);
  if (c == '\\') {
    escape_ = c;
    return false;
  }
  end_pair(to);
  if (c == '"') return true;
  to += static_cast<unsigned char>(c) < 0x20 ? json_escape({&c, 1}) : std::string(1, c);
  return false;
}

bool CallArguments::StringText::push_escape(char c, std::string& to) {
  static constexpr std::string_view kEscapes = "\"\\/bfnrt";
  const bool second = escape_.size() == 1;
  if (second ? c == 'u' : std::isxdigit(static_cast<unsigned char>(c)) != 0) {
    escape_ += c;
    if (escape_.size() == kCodeUnitSize) add_code_unit(to);
    return false;
  }
  end_pair(to);
  const std::string begun = std::exchange(escape_, {});
  if (second && kEscapes.find(c) != std::string_view::npos) {
    (to += '\\') += c;
    return false;
  }
  // Models escape line breaks and quotes that need no escape.
  if (!second || !(c == '\'' || static_cast<unsigned char>(c) < 0x20)) to += "\\" + begun;
  return push(c, to);
}

void CallArguments::StringText::add_code_unit(std::string& to) {
  const std::string escape = std::exchange(escape_, {});
  const unsigned long unit = std::stoul(escape.substr(2), nullptr, 16);
  const bool high = unit >= 0xD800 && unit < 0xDC00, low = unit >= 0xDC00 && unit < 0xE000;
  if (low && !high_surrogate_.empty()) {
    to += std::exchange(high_surrogate_, {}) + escape;
    return;
  }
  end_pair(to);
  if (high) {
    high_surrogate_ = escape;
  } else {
    to += low ? std::string(kReplacement) : escape;
  }
}

void CallArguments::StringText::end_pair(std::string& to) {
  if (!std::exchange(high_surrogate_, {}).empty()) to += kReplacement;
}

void CallArguments::StringText::end(std::string& to) {
  end_pair(to);
  if (!escape_.empty()) to += "\\" + std::exchange(escape_, {});
}

}  // namespace volley::serve
