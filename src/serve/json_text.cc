#include "serve/json_text.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

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

// Without allocating. Recursive: the depth is bounded where the value was read.
void take_apart(nlohmann::json& value) noexcept {
  if (auto* array = value.get_ptr<nlohmann::json::array_t*>()) {
    for (; !array->empty(); array->pop_back()) take_apart(array->back());
  } else if (auto* object = value.get_ptr<nlohmann::json::object_t*>()) {
    for (; !object->empty(); object->erase(object->begin())) take_apart(object->begin()->second);
  }
}

}  // namespace

// Builds a value as the library's own parser does, but counts first, and what it has built when memory runs out has an
// owner.
class JsonBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(size_t max_values) : left_(max_values) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return open(nlohmann::json::value_t::object); }
  bool start_array(size_t) override { return open(nlohmann::json::value_t::array); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    member_ = &open_.back()->get_ref<nlohmann::json::object_t&>()[std::move(name)];
    take_apart(*member_);  // of an equal key
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    const bool range = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    complaint_ = (range ? "The body holds a number that is too large: " : "The body is not valid JSON: ") +
                 parser_message(error.what());
    return false;
  }

  // Empty: all was read.
  const std::string& complaint() const { return complaint_; }
  OwnedJson take() { return std::move(root_); }

 private:
  template <typename Value>
  bool add(Value&& value) {
    return place(std::forward<Value>(value)) != nullptr;
  }
  bool open(nlohmann::json::value_t kind) {
    nlohmann::json* placed = place(kind);
    if (placed != nullptr) open_.push_back(placed);
    return placed != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  template <typename Value>
  nlohmann::json* place(Value&& value) {
    if (left_ == 0) {
      complaint_ = "The body holds more than " + std::to_string(kMaxJsonValues) + " values. Send them in parts.";
      return nullptr;
    }
    --left_;
    if (!open_.empty() && open_.back()->is_array()) {
      return &open_.back()->get_ref<nlohmann::json::array_t&>().emplace_back(std::forward<Value>(value));
    }
    nlohmann::json* target = open_.empty() ? root_.value_.get() : member_;
    *target = nlohmann::json(std::forward<Value>(value));
    return target;
  }

  size_t left_;
  OwnedJson root_;
  std::vector<nlohmann::json*> open_;  // the arrays and objects that have begun, the innermost last
  nlohmann::json* member_ = nullptr;   // of the innermost object: what its key stands for
  std::string complaint_;
};

OwnedJson::OwnedJson() : OwnedJson(nullptr) {}
OwnedJson::OwnedJson(nlohmann::json value) : value_(std::make_unique<nlohmann::json>(std::move(value))) {}
OwnedJson::OwnedJson(OwnedJson&& other) noexcept = default;
OwnedJson::~OwnedJson() {
  if (value_) take_apart(*value_);
}

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

ApiResult<OwnedJson> parse_json(std::string_view body) {
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
  JsonBuilder builder(kMaxJsonValues);
  nlohmann::json::sax_parse(body, &builder);
  if (!builder.complaint().empty()) return invalid_body(builder.complaint());
  return builder.take();
}

ApiResult<OwnedJson> parse_json_object(std::string_view body) {
  auto parsed = parse_json(body);
  if (const auto* value = std::get_if<OwnedJson>(&parsed); value && !(*value)->is_object()) {
    return invalid_body("The body must be a JSON object.");
  }
  return parsed;
}

OwnedJson read_json(std::string_view text) {
  JsonBuilder builder(text.size());  // a value has a byte at least
  nlohmann::json::sax_parse(text, &builder);
  return builder.complaint().empty() ? builder.take() : OwnedJson();
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

}  // namespace volley::serve
