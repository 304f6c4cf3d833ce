#include "serve/json_text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

// Length of the well-formed sequence at the start of `text`, 0 if there is none. The range of the second byte depends
// on the first: that is what rules out overlong forms, surrogates and values above U+10FFFF.
size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto tail = [&](size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xBF; };
  const uint8_t first = byte(0);
  const uint8_t second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint8_t low = first == 0xE0 ? 0xA0 : 0x80;
    const uint8_t high = first == 0xED ? 0x9F : 0xBF;
    return second >= low && second <= high && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

// Index past the string that starts at text[i] == '"'.
size_t skip_string(std::string_view text, size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i) {
    if (text[i] == '\\') ++i;
  }
  return std::min(i + 1, text.size());
}

bool too_deep(std::string_view text) {
  int depth = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      i = skip_string(text, i);
      continue;
    }
    if ((c == '[' || c == '{') && ++depth > kMaxJsonDepth) return true;
    if (c == ']' || c == '}') --depth;
    ++i;
  }
  return false;
}

// The library's messages start with "[json.exception.parse_error.101] " and may quote a whole string of the body.
std::string parser_message(std::string_view what) {
  constexpr size_t kMaxMessage = 300;
  if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
  if (what.size() <= kMaxMessage) return std::string(what);
  return std::string(what.substr(0, kMaxMessage)) + "…";
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// The pieces between the commas of the outermost array or object.
std::vector<std::string_view> split_items(std::string_view text) {
  text = trim(text);
  std::vector<std::string_view> items;
  int depth = 0;
  size_t begin = 1;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      i = skip_string(text, i);
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if ((c == ',' && depth == 1) || depth == 0) {
      const std::string_view item = trim(text.substr(begin, i - begin));
      if (!item.empty()) items.push_back(item);
      begin = i + 1;
    }
    ++i;
  }
  return items;
}

}  // namespace

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text.substr(i, 4));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

std::string escape_controls(std::string_view rest) {
  std::string shown;
  const auto escape = [&shown, &rest](size_t bytes) {
    for (; bytes > 0; --bytes, rest.remove_prefix(1)) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02X", static_cast<unsigned char>(rest.front()));
      shown += code;
    }
  };
  size_t valid = find_invalid_utf8(rest).value_or(rest.size());  // bytes of `rest` that are UTF-8
  while (!rest.empty()) {
    const auto byte = static_cast<unsigned char>(rest.front());
    const size_t before = rest.size();
    if (valid == 0) {
      escape(1);
      valid = find_invalid_utf8(rest).value_or(rest.size());
      continue;
    }
    const bool latin1_control = byte == 0xC2 && static_cast<unsigned char>(rest[1]) < 0xA0;
    if (byte < 0x20 || byte == 0x7F || latin1_control) {
      escape(latin1_control ? 2 : 1);
    } else {
      shown += rest.front();
      rest.remove_prefix(1);
    }
    valid -= before - rest.size();
  }
  return shown;
}

size_t count_code_points(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

ApiResult<nlohmann::json> parse_json(std::string_view body) {
  if (const auto offset = find_invalid_utf8(body)) {
    return invalid_body("The body is not valid UTF-8: byte " + std::to_string(*offset) + " cannot stand there.");
  }
  // The parser takes one for the end and does not look behind it, where others read on.
  if (const size_t offset = body.find('\0'); offset != body.npos) {
    return invalid_body("The body is not valid JSON: byte " + std::to_string(offset) + " is 0.");
  }
  if (body.starts_with("\xEF\xBB\xBF")) return invalid_body("The body starts with a byte order mark. Leave it out.");
  // Checked first: later steps, and chat templates after them, walk the value recursively.
  if (too_deep(body)) {
    return invalid_body("The body nests arrays and objects deeper than " + std::to_string(kMaxJsonDepth) + " levels.");
  }
  try {
    return nlohmann::json::parse(body);
  } catch (const nlohmann::json::parse_error& error) {
    return invalid_body("The body is not valid JSON: " + parser_message(error.what()));
  } catch (const nlohmann::json::out_of_range& error) {
    return invalid_body("The body holds a number that is too large: " + parser_message(error.what()));
  }
}

ApiResult<nlohmann::json> parse_json_object(std::string_view body) {
  auto parsed = parse_json(body);
  if (const auto* value = std::get_if<nlohmann::json>(&parsed); value && !value->is_object()) {
    return invalid_body("The body must be a JSON object.");
  }
  return parsed;
}

std::vector<std::pair<std::string, std::string_view>> object_members(std::string_view object) {
  std::vector<std::pair<std::string, std::string_view>> members;
  for (const std::string_view item : split_items(object)) {
    const size_t key_end = skip_string(item, 0);
    const std::string_view key = item.substr(0, key_end);
    const size_t colon = item.find(':', key_end);
    members.emplace_back(nlohmann::json::parse(key).get<std::string>(), trim(item.substr(colon + 1)));
  }
  return members;
}

std::vector<std::string_view> array_elements(std::string_view array) {
  return split_items(array);
}

std::string_view find_member(std::string_view object, std::string_view name) {
  std::string_view value;
  for (const auto& [key, text] : object_members(object)) {
    if (key == name) value = text;
  }
  return value;
}

}  // namespace volley::serve
