#include "serve/json/python_literal.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "serve/formats/tool_call_scanner.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

void append_utf8(uint32_t code, std::string& to) {
  if (code >= 0xD800 && (code < 0xE000 || code > 0x10FFFF)) {
    to += kReplacement;
  } else if (code < 0x80) {
    to += static_cast<char>(code);
  } else if (code < 0x800) {
    (to += static_cast<char>(0xC0 | code >> 6)) += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    if (code < 0x10000) {
      to += static_cast<char>(0xE0 | code >> 12);
    } else {
      (to += static_cast<char>(0xF0 | code >> 18)) += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    }
    (to += static_cast<char>(0x80 | (code >> 6 & 0x3F))) += static_cast<char>(0x80 | (code & 0x3F));
  }
}

class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  std::optional<std::string> read() {
    std::string json;
    if (!value(0, json)) return std::nullopt;
    skip_space();
    if (!text_.empty()) return std::nullopt;
    return json;
  }

 private:
  // Each appends to `json`. False: no such value.
  bool value(int depth, std::string& json) {
    if (depth > kMaxJsonDepth) return false;
    skip_space();
    if (text_.empty()) return false;
    switch (text_.front()) {
      case '{':
        return dict_or_set(depth, json);
      case '[':
        return list(']', depth, json);
      case '(':
        return list(')', depth, json);
      case '\'':
      case '"':
        return string(json);
      default:
        return word(json);
    }
  }

  // A value in parentheses is itself, unless a comma makes it a tuple.
  bool list(char closer, int depth, std::string& json) {
    std::string elements;
    bool has_comma = false;
    size_t count = 0;
    for (text_.remove_prefix(1); !take(closer); ++count) {
      if (count > 0 && !has_comma) return false;
      if (count > 0) elements += ", ";
      if (!value(depth + 1, elements)) return false;
      has_comma = take(',');
    }
    if (closer == ')' && count == 1 && !has_comma) {
      json += elements;
    } else {
      json.append("[").append(elements).append("]");
    }
    return true;
  }

  bool dict_or_set(int depth, std::string& json) {
    std::string members;
    bool is_dict = true, has_comma = true;
    for (text_.remove_prefix(1); !take('}');) {
      const bool first = members.empty();
      if (!has_comma) return false;
      if (!first) members += ", ";
      std::string key;
      if (!value(depth + 1, key)) return false;
      const bool has_value = take(':');
      if (first) is_dict = has_value;
      if (has_value != is_dict) return false;
      if (!is_dict) {
        members += key;
      } else if (!append_key(key, members) || !value(depth + 1, members)) {
        return false;
      }
      has_comma = take(',');
    }
    json.append(is_dict ? "{" : "[").append(members).append(is_dict ? "}" : "]");
    return true;
  }

  static bool append_key(const std::string& json, std::string& members) {
    if (json.front() == '{' || json.front() == '[') return false;
    members.append(json.front() == '"' ? json : json_quote(json)).append(": ");
    return true;
  }

  bool string(std::string& json) {
    const char quote = text_.front();
    std::string inside;
    for (text_.remove_prefix(1); !text_.empty();) {
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == quote) {
        json += json_quote(inside);
        return true;
      }
      if (c != '\\') {
        inside += c;
      } else if (!escape(inside)) {
        return false;
      }
    }
    return false;
  }

  // Reads behind a backslash. One without an escape stands for itself.
  bool escape(std::string& to) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (text_.empty()) return false;
    const char c = text_.front();
    if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
      text_.remove_prefix(1);
      to += kMeanings[at];
      return true;
    }
    if (c >= '0' && c <= '7') return code_point(3, 8, to);
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      text_.remove_prefix(1);
      return code_point(digits, 16, to);
    }
    if (c == '\n') {
      text_.remove_prefix(1);
    } else {
      to += '\\';
    }
    return true;
  }

  bool code_point(size_t most_digits, uint32_t base, std::string& to) {
    const auto is_digit = [base](char c) {
      return base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c >= '0' && c < '8';
    };
    uint32_t code = 0;
    size_t count = 0;
    for (; count < most_digits && count < text_.size() && is_digit(text_[count]); ++count) {
      const char c = text_[count];
      code = code * base +
             static_cast<uint32_t>(std::isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (base == 16 && count < most_digits) return false;
    text_.remove_prefix(count);
    // Two halves of a pair, as in JSON.
    const bool high = code >= 0xD800 && code < 0xDC00;
    if (high && text_.starts_with("\\u") && text_.size() >= 6) {
      const std::string_view digits = text_.substr(2, 4);
      const bool hexadecimal = std::all_of(digits.begin(), digits.end(), is_digit);
      const unsigned long low = hexadecimal ? std::stoul(std::string(digits), nullptr, 16) : 0;
      if (low >= 0xDC00 && low < 0xE000) {
        text_.remove_prefix(6);
        code = 0x10000 + ((code - 0xD800) << 10) + static_cast<uint32_t>(low - 0xDC00);
      }
    }
    append_utf8(code, to);
    return true;
  }

  bool word(std::string& json) {
    const auto ends = [](char c) {
      return is_json_space(c) || std::string_view(",:()[]{}'\"").find(c) != std::string_view::npos;
    };
    const auto end = std::find_if(text_.begin(), text_.end(), ends);
    std::string word(text_.begin(), end);
    text_.remove_prefix(word.size());
    if (word == "True") word = "true";
    if (word == "False") word = "false";
    if (word == "None") word = "null";
    if (!is_json_text(word)) mend_number(word);
    if (!is_json_text(word)) return false;
    json += word;
    return true;
  }

  // Only Python has the numbers 1_000, .5, 5. and +5.
  static void mend_number(std::string& word) {
    std::erase(word, '_');
    if (word.starts_with('+')) word.erase(0, 1);
    const size_t point = word.find('.');
    if (point == std::string::npos) return;
    const auto is_digit = [&](size_t at) {
      return at < word.size() && std::isdigit(static_cast<unsigned char>(word[at]));
    };
    if (!is_digit(point + 1)) word.insert(point + 1, "0");
    if (point == 0 || !is_digit(point - 1)) word.insert(point, "0");
  }

  bool take(char c) {
    skip_space();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }

  void skip_space() {
    while (!text_.empty() && is_json_space(text_.front())) text_.remove_prefix(1);
  }

  std::string_view text_;
};

}  // namespace

std::optional<std::string> json_of_python(std::string_view text) {
  return LiteralReader(text).read();
}

}  // namespace volley::serve
