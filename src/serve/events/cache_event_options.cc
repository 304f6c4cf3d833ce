#include <limits>
#include <nlohmann/json.hpp>

#include "serve/events/cache_event_publisher.h"

namespace volley::serve {
namespace {

using nlohmann::json;

Error wrong(const std::string& what) {
  return invalid_argument(what);
}

// Each sets a field, or returns what its value must be.
const char* set(bool& field, const json& value) {
  if (!value.is_boolean()) return "true or false";
  field = value.get<bool>();
  return nullptr;
}

const char* set(std::string& field, const json& value) {
  if (!value.is_string()) return "a string";
  field = value.get<std::string>();
  return nullptr;
}

const char* set(int& field, const json& value) {
  constexpr int64_t kMost = 1'000'000'000;
  if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMost) {
    return "a whole number from 1 to 1000000000";
  }
  field = value.get<int>();
  return nullptr;
}

}  // namespace

Result<CacheEventOptions> parse_cache_event_options(std::string_view text) {
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object()) {
    return wrong(
        "it must be a JSON object, as in '{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}'.");
  }
  CacheEventOptions options;
  std::string publisher = "zmq";
  for (const auto& [name, value] : document.items()) {
    const char* must_be = nullptr;
    if (name == "enable_kv_cache_events") {
      must_be = set(options.enabled, value);
    } else if (name == "publisher") {
      must_be = value.is_null() ? nullptr : set(publisher, value);
    } else if (name == "endpoint") {
      must_be = set(options.endpoint, value);
    } else if (name == "replay_endpoint") {
      must_be = value.is_null() ? nullptr : set(options.replay_endpoint, value);
    } else if (name == "buffer_steps") {
      must_be = set(options.buffer_steps, value);
    } else if (name == "hwm") {
      must_be = set(options.hwm, value);
    } else if (name == "max_queue_size") {
      must_be = set(options.max_queue_size, value);
    } else if (name == "topic") {
      must_be = set(options.topic, value);
    } else {
      return wrong("there is no field \"" + name.substr(0, 100) +
                   "\": it takes enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, hwm, "
                   "max_queue_size and topic.");
    }
    if (must_be != nullptr) return wrong("\"" + name + "\" must be " + must_be + ".");
  }
  if (publisher != "zmq" && publisher != "null") return wrong("\"publisher\" must be \"zmq\" or \"null\".");
  if (publisher == "null") options.enabled = false;
  return options;
}

}  // namespace volley::serve
