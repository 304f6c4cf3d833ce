#include "serve/formats/call_ids.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr size_t kLength = 9;
constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// FNV-1a, whose bits are then mixed into every digit.
uint64_t hash(std::string_view text) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
  return value ^ (value >> 33);
}

// `text`: an id's JSON text; other JSON stays unchanged.
std::string short_id_text(std::string_view text) {
  if (!text.starts_with('"')) return std::string(text);
  return nlohmann::json(short_call_id(nlohmann::json::parse(text).get<std::string>())).dump();
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

void count_call_ids(std::vector<ChatMessage>& messages) {
  std::map<std::string, std::string> counted;
  size_t count = 0;
  for (ChatMessage& message : messages) {
    for (std::string& call : message.calls) {
      const auto parsed = read_json(call);
      if (!parsed.is_object()) continue;
      const std::string id =
          "functions." + text_member(member_of(parsed, "function"), "name") + ":" + std::to_string(count++);
      counted[text_member(parsed, "id")] = id;
      call = with_member(call, "id", [&](std::string_view) { return json_quote(id); });
    }
    const auto known = message.call_id ? counted.find(*message.call_id) : counted.end();
    if (known != counted.end()) message.call_id = known->second;
  }
}

void shorten_call_ids(std::vector<ChatMessage>& messages) {
  for (ChatMessage& message : messages) {
    for (std::string& call : message.calls) call = with_member(call, "id", short_id_text);
    if (message.call_id) message.call_id = short_call_id(*message.call_id);
  }
}

}  // namespace volley::serve
