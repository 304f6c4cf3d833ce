#include "weights/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace volley::weights {
namespace {

constexpr int kMaxDepth = 64;

// Watches the parser for what the parser itself allows: one key twice in an object, and any depth.
class Watcher {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (!complaint_.empty()) return false;  // keep nothing more: an error is the answer already
    if (depth > kMaxDepth) return complain("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
    switch (event) {
      case Event::object_start:
        keys_.emplace_back();
        break;
      case Event::object_end:
        keys_.pop_back();
        break;
      case Event::key:
        if (const auto& key = parsed.get_ref<const std::string&>(); !keys_.back().insert(key).second) {
          return complain("has \"" + key + "\" twice");
        }
        break;
      default:
        break;
    }
    return true;
  }
  const std::string& complaint() const { return complaint_; }

 private:
  bool complain(std::string text) {
    complaint_ = std::move(text);
    return false;
  }

  std::vector<std::set<std::string>> keys_;  // of each object that is open
  std::string complaint_;
};

}  // namespace

Result<nlohmann::json> parse_json_object(std::span<const std::byte> text, const std::string& what) {
  const char* begin = reinterpret_cast<const char*>(text.data());
  Watcher watcher;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    return watcher(depth, event, parsed);
  };
  nlohmann::json json = nlohmann::json::parse(begin, begin + text.size(), watch, /*allow_exceptions=*/false);
  if (!watcher.complaint().empty()) return data_loss(what + " " + watcher.complaint() + ".");
  if (json.is_discarded()) return data_loss(what + " is not valid JSON: the file is damaged or of another kind.");
  if (!json.is_object()) return data_loss(what + " is not a JSON object.");
  return json;
}

}  // namespace volley::weights
