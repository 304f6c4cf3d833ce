#include "serve/api/hosted_tools.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using nlohmann::json;

constexpr size_t kMaxText = 4096;
constexpr size_t kMaxWord = 512;  // longer texts are pictures or encrypted

bool is_readable(const std::string& name, const json& value) {
  static constexpr std::string_view kFormal[] = {"id", "type", "status", "cache_control", "caller"};
  if (std::ranges::find(kFormal, name) != std::end(kFormal) || name.ends_with("_id")) return false;
  if (name.starts_with("encrypted") || value.is_null()) return false;
  return !value.is_string() || value.get_ref<const std::string&>().size() <= kMaxWord ||
         value.get_ref<const std::string&>().find_first_of(" \n") < kMaxWord;
}

json readable(const json& value) {
  if (value.is_array()) {
    json list = json::array();
    for (const json& item : value) {
      if (json inner = readable(item); !inner.empty()) list.push_back(std::move(inner));
    }
    return list;
  }
  if (!value.is_object()) return value;
  json members = json::object();
  for (const auto& [name, member] : value.items()) {
    if (!is_readable(name, member)) continue;
    if (json inner = readable(member); !inner.empty()) members[name] = std::move(inner);
  }
  return members;
}

// Cuts the text to the bound, without half a character.
std::string cut(std::string text) {
  if (text.size() <= kMaxText) return text;
  size_t end = kMaxText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "…";
}

}  // namespace

bool HostedTools::leave_out(std::string_view where, std::string_view type) {
  if (!refuse_) {
    types_.emplace(type);
    return true;
  }
  in_.fail(unsupported_field("tools", std::string(where) + " is of type " + in_quotes(type) +
                                          ", which cannot run here. Leave it out, or start the server without "
                                          "--refuse-hosted-tools."));
  return false;
}

bool is_hosted_type(std::string_view type, std::initializer_list<std::string_view> names) {
  constexpr size_t kLongest = 64;  // a header's notes may be many
  const auto plain = [](unsigned char c) { return c < 0x80 && (std::isalnum(c) != 0 || c == '_'); };
  if (type.size() > kLongest || !std::all_of(type.begin(), type.end(), plain)) return false;
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    return type.starts_with(name) && (type.size() == name.size() || type[name.size()] == '_');
  });
}

std::string foreign_text(const json& value) {
  const std::string type = value.at("type");
  const json rest = readable(value);
  if (rest.empty()) return "[" + type + " of another service]";
  return "[" + type + " of another service: " + cut(rest.dump(-1, ' ', false, json::error_handler_t::replace)) + "]";
}

void note_foreign(std::string_view type, Notes& notes) {
  notes.insert("of " + std::string(type) + " in the conversation, which ran elsewhere, the model reads a short text");
}

std::string left_out_text(std::string_view type, Notes& notes) {
  notes.insert(std::string(type) + "s in results of tools are left out: this model takes text only");
  return "[" + std::string(type) + " left out: this model takes text only]";
}

}  // namespace volley::serve
