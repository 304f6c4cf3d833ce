#include "serve/call_ids.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "serve/json_text.h"

namespace volley::serve {
namespace {

constexpr size_t kLength = 9;
constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// FNV-1a, and then every bit of it into every digit.
uint64_t hash(std::string_view text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
  return value ^ (value >> 33);
}

std::string member(std::string_view key, std::string_view value) {
  return nlohmann::json(key).dump() + ":" + std::string(value);
}

// `text`: the JSON text of an id; what is no string stays.
std::string short_id_text(std::string_view text) {
  if (!text.starts_with('"')) return std::string(text);
  return nlohmann::json(short_call_id(nlohmann::json::parse(text).get<std::string>())).dump();
}

// An object whose members are rewritten by `rewrite` (key, text).
template <class Rewrite>
std::string object_with(std::string_view object, const Rewrite& rewrite) {
  std::string out = "{";
  for (const auto& [key, value] : object_members(object)) {
    out.append(out.size() > 1 ? "," : "").append(member(key, rewrite(key, value)));
  }
  return out + "}";
}

std::string calls_with_short_ids(std::string_view calls) {
  if (!calls.starts_with('[')) return std::string(calls);
  std::string out = "[";
  for (const std::string_view call : array_elements(calls)) {
    if (out.size() > 1) out += ',';
    if (!call.starts_with('{')) {
      out += call;
      continue;
    }
    out += object_with(call, [](const std::string& key, std::string_view value) {
      return key == "id" ? short_id_text(value) : std::string(value);
    });
  }
  return out + "]";
}

}  // namespace

std::string short_call_id(std::string_view id) {
  const auto is_alphanumeric = [](unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; };
  if (id.size() == kLength && std::all_of(id.begin(), id.end(), is_alphanumeric)) return std::string(id);
  std::string made;
  for (uint64_t value = hash(id); made.size() < kLength; value /= kLetters.size()) {
    made += kLetters[value % kLetters.size()];
  }
  return made;
}

std::string with_short_call_ids(std::string_view messages_json) {
  std::string out = "[";
  for (const std::string_view message : array_elements(messages_json)) {
    if (out.size() > 1) out += ',';
    if (find_member(message, "tool_calls").empty() && find_member(message, "tool_call_id").empty()) {
      out += message;
      continue;
    }
    out += object_with(message, [](const std::string& key, std::string_view value) {
      if (key == "tool_calls") return calls_with_short_ids(value);
      return key == "tool_call_id" ? short_id_text(value) : std::string(value);
    });
  }
  return out + "]";
}

}  // namespace volley::serve
