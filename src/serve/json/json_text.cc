#include "serve/json/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace volley::serve {
namespace {

// Length of the well-formed sequence at the start of `text`, 0 if there is none. The second byte's range depends on the
// first, which rules out overlong forms, surrogates and values above U+10FFFF.
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

// The sequence must be well-formed.
uint32_t code_point(std::string_view sequence) {
  const auto first = static_cast<uint8_t>(sequence.front());
  uint32_t point = sequence.size() == 1 ? first : first & (0x7Fu >> sequence.size());
  for (const char c : sequence.substr(1)) point = point << 6 | (static_cast<uint8_t>(c) & 0x3Fu);
  return point;
}

bool is_control(uint32_t point) {
  return point < 0x20 || (point >= 0x7F && point < 0xA0);
}

// See escape_unseen().
bool is_unseen(uint32_t point) {
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x00AD, 0x00AD}, {0x034F, 0x034F}, {0x061C, 0x061C},   {0x115F, 0x1160},   {0x17B4, 0x17B5},  {0x180B, 0x180F},
      {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},   {0x3164, 0x3164},   {0xFE00, 0xFE0F},  {0xFEFF, 0xFEFF},
      {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}};
  return std::ranges::any_of(kRanges, [&](const auto& range) { return range.first <= point && point <= range.second; });
}

void append_escaped(std::string_view sequence, Escapes escapes, std::string& out) {
  char code[16];
  const auto add = [&](const char* format, uint32_t value) {
    std::snprintf(code, sizeof code, format, value);
    out += code;
  };
  if (escapes == Escapes::kBytes) {
    for (const char c : sequence) add("\\x%02X", static_cast<uint8_t>(c));
    return;
  }
  const uint32_t point = code_point(sequence);
  if (point > 0xFFFF) add("\\u%04x", 0xD7C0 + (point >> 10));
  add("\\u%04x", point > 0xFFFF ? 0xDC00 + (point & 0x3FF) : point);
}

template <typename Predicate>
std::string escape_if(Predicate predicate, std::string_view text, Escapes escapes) {
  std::string shown;
  while (!text.empty()) {
    const size_t length = utf8_sequence(text.substr(0, 4));
    const std::string_view sequence = text.substr(0, std::max<size_t>(length, 1));
    if (length == 0 || predicate(code_point(sequence))) {
      append_escaped(sequence, escapes, shown);
    } else {
      shown += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return shown;
}

// Index past the string that starts at text[i] == '"'.
size_t skip_string(std::string_view text, size_t i) {
  size_t quote = 0, slash = 0;  // the next ones
  for (++i; i < text.size(); i = slash + 2) {
    if (quote <= i) quote = std::min(text.find('"', i), text.size());
    slash = text.substr(0, quote).find('\\', i);
    if (slash == text.npos) return std::min(quote + 1, text.size());
  }
  return text.size();
}

struct Measure {
  int depth = 0;
  size_t values = 1;
};

// Measures valid JSON. For other text a parser builds no more before it fails.
Measure measure(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  Measure most;
  int depth = 0;
  char last = 0;  // before this one
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const bool opens = c == '[' || c == '{', closes = c == ']' || c == '}';
    if (kSpace.find(c) == kSpace.npos) {
      if (c == ',' || (!closes && (last == '[' || last == '{'))) ++most.values;
      if (opens) most.depth = std::max(most.depth, ++depth);
      if (closes) --depth;
      last = c;
    }
    i = c == '"' ? skip_string(text, i) : i + 1;
  }
  return most;
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

// Length of the JSON number that the text begins with, 0 if there is none.
size_t number_length(std::string_view text) {
  size_t at = 0;
  const auto take = [&](std::string_view any_of) {
    const bool taken = at < text.size() && any_of.find(text[at]) != std::string_view::npos;
    at += taken ? 1 : 0;
    return taken;
  };
  const auto take_digits = [&] {
    const size_t begin = at;
    at = std::min(text.find_first_not_of("0123456789", at), text.size());
    return at > begin;
  };
  take("-");
  if (!take("0") && !take_digits()) return 0;
  size_t end = at;
  if (take(".")) {
    if (!take_digits()) return end;
    end = at;
  }
  if (take("eE")) {
    take("+-");
    if (take_digits()) end = at;
  }
  return end;
}

// The library refuses numbers that no double holds. In their places the largest ones stand here.
std::string with_numbers_in_range(std::string_view text) {
  constexpr std::string_view kLargest = "1.7976931348623157e308";
  std::string out;
  while (!text.empty()) {
    const size_t number = number_length(text);
    const size_t length = text.front() == '"' ? skip_string(text, 0) : std::max<size_t>(number, 1);
    const std::string piece(text.substr(0, length));
    if (number > 0 && std::isinf(std::strtod(piece.c_str(), nullptr))) {
      out.append(piece.front() == '-' ? "-" : "").append(kLargest);
    } else {
      out += piece;
    }
    text.remove_prefix(length);
  }
  return out;
}

// Throws nlohmann's exceptions for what is not JSON.
nlohmann::json parse_whole(std::string_view text) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::out_of_range&) {
    return nlohmann::json::parse(with_numbers_in_range(text));
  }
}

// Whether a string's text stands for itself.
bool is_plain(std::string_view text) {
  bool plain = true;
  for (const char c : text) plain &= c >= ' ' && c < 0x7F && c != '\\';
  return plain;
}

// Puts the long strings back, in whose places marks with their numbers stand. Without recursion, because read_json()
// takes values of any depth.
void put_back(const std::vector<std::string_view>& strings, std::string_view mark, nlohmann::json& value) {
  std::vector<nlohmann::json*> left = {&value};
  while (!left.empty()) {
    nlohmann::json& one = *left.back();
    left.pop_back();
    if (auto* text = one.get_ptr<std::string*>()) {
      if (text->starts_with(mark)) *text = strings.at(std::stoul(text->substr(mark.size())));
    } else if (one.is_structured()) {
      for (nlohmann::json& member : one) left.push_back(&member);
    }
  }
}

// The library takes a letter at a time, 14 ms for a picture of a megabyte. So it does not see long strings of plain
// letters that are values. Throws as above.
nlohmann::json parse_any(std::string_view text) {
  constexpr size_t kLong = size_t{1} << 15;
  // A single character, because a longer mark could be written with escapes. This one can be written in two ways alone.
  constexpr std::string_view kMark = "\x7F";
  if (text.size() <= kLong || text.find(kMark) != text.npos || text.find("\\u007") != text.npos) {
    return parse_whole(text);  // a string could be a mark
  }
  std::string rest;
  std::vector<std::string_view> strings;
  size_t copied = 0;
  for (size_t begin = text.find('"'); begin != text.npos;) {
    const size_t behind = skip_string(text, begin);
    const size_t next = text.find_first_not_of(" \t\r\n", behind);
    const std::string_view letters = text.substr(begin + 1, behind - begin - 2);
    if (letters.size() >= kLong && next != text.npos && text[next] != ':' && is_plain(letters)) {
      rest.append(text.substr(copied, begin + 1 - copied)).append(kMark).append(std::to_string(strings.size()));
      copied = behind - 1;
      strings.push_back(letters);
    }
    begin = text.find('"', behind);
  }
  if (strings.empty()) return parse_whole(text);
  rest.append(text.substr(copied));
  nlohmann::json value;
  try {
    value = parse_whole(rest);
  } catch (const nlohmann::json::exception&) {
    return parse_whole(text);  // for its message
  }
  put_back(strings, kMark, value);
  return value;
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
    uint64_t eight = 0;  // letters at once, if all are ASCII's
    if (text.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const size_t length = utf8_sequence(text.substr(i, 4));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

std::string escape_controls(std::string_view text) {
  return escape_if(is_control, text, Escapes::kBytes);
}

std::string escape_unseen(std::string_view text, Escapes escapes) {
  return escape_if([](uint32_t point) { return is_control(point) || is_unseen(point); }, text, escapes);
}

size_t count_code_points(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

ApiResult<nlohmann::json> parse_json(std::string_view body) {
  if (const auto offset = find_invalid_utf8(body)) {
    return invalid_body("The body is not valid UTF-8: byte " + std::to_string(*offset) + " cannot stand there.");
  }
  // The parser takes a zero byte for the end, where other readers read on.
  if (const size_t offset = body.find('\0'); offset != body.npos) {
    return invalid_body("The body is not valid JSON: byte " + std::to_string(offset) + " is 0.");
  }
  if (body.starts_with("\xEF\xBB\xBF")) return invalid_body("The body starts with a byte order mark. Leave it out.");
  // Checked first: a value takes many times the memory of its text, and later steps walk it recursively.
  const auto [depth, values] = measure(body);
  if (depth > kMaxJsonDepth) {
    return invalid_body("The body nests arrays and objects deeper than " + std::to_string(kMaxJsonDepth) + " levels.");
  }
  if (values > kMaxJsonValues) {
    return invalid_body("The body holds more than " + std::to_string(kMaxJsonValues) + " values. Send them in parts.");
  }
  try {
    return parse_any(body);
  } catch (const nlohmann::json::exception& error) {
    return invalid_body("The body is not valid JSON: " + parser_message(error.what()));
  }
}

ApiResult<nlohmann::json> parse_json_object(std::string_view body) {
  auto parsed = parse_json(body);
  if (const auto* value = std::get_if<nlohmann::json>(&parsed); value && !value->is_object()) {
    return invalid_body("The body must be a JSON object.");
  }
  return parsed;
}

nlohmann::json read_json(std::string_view text) {
  try {
    return parse_any(text);
  } catch (const nlohmann::json::exception&) {
    return nullptr;
  }
}

bool is_json_text(std::string_view text) {
  return nlohmann::json::accept(text) || nlohmann::json::accept(with_numbers_in_range(text));
}

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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

HttpResponse json_response(const nlohmann::ordered_json& json) {
  return json_text(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

const nlohmann::json& member_of(const nlohmann::json& object, std::string_view name) {
  static const nlohmann::json kNull;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found == object.end() ? kNull : *found;
}

std::string text_member(const nlohmann::json& object, std::string_view name) {
  const nlohmann::json& text = member_of(object, name);
  return text.is_string() ? text.get<std::string>() : "";
}

std::string with_member(std::string_view object, std::string_view name,
                        const std::function<std::string(std::string_view)>& rewrite) {
  if (!object.starts_with('{')) return std::string(object);
  std::string out = "{";
  for (const auto& [key, value] : object_members(object)) {
    out.append(out.size() > 1 ? "," : "").append(json_quote(key)).append(":");
    out.append(key == name ? rewrite(value) : std::string(value));
  }
  return out + "}";
}

}  // namespace volley::serve
