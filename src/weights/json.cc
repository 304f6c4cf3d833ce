#include "weights/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace volley::weights {
namespace {

constexpr int kMaxDepth = 64;

// Reads the text without storing it, and refuses two things that the parser allows: a key twice in an object, and any
// depth. (A callback of json::parse() could see the same, but then each value that ends is looked for among all of its
// parent's.)
class Watcher final : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return deeper();
  }
  bool key(string_t& key) override { return keys_.back().insert(key).second || complain("has \"" + key + "\" twice"); }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return complain("is not valid JSON: the file is damaged or of another kind");
  }
  const std::string& complaint() const { return complaint_; }

 private:
  bool deeper() {
    return ++depth_ <= kMaxDepth || complain("is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }
  bool complain(std::string text) {
    complaint_ = std::move(text);
    return false;
  }

  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // keys of each open object
  std::string complaint_;
};

}  // namespace

Result<nlohmann::json> parse_json_object(std::span<const std::byte> text, const std::string& what) {
  const char* begin = reinterpret_cast<const char*>(text.data());
  Watcher watcher;
  nlohmann::json::sax_parse(begin, begin + text.size(), &watcher);
  if (!watcher.complaint().empty()) return data_loss(what + " " + watcher.complaint() + ".");
  nlohmann::json json = nlohmann::json::parse(begin, begin + text.size(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return data_loss(what + " is not a JSON object.");
  return json;
}

}  // namespace volley::weights
