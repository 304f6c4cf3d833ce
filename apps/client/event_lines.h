// Reads server-sent events in pieces, and an endpoint's error messages. Threads: one.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace volley::apps {

class EventLines {
 public:
  // Calls `on_data` with the text of each complete data line.
  void read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  std::string buffer_;  // an unfinished line
};

// The sentence in an error object, in the forms of several servers; else the object itself.
std::string endpoint_error(const nlohmann::json& json);

// "HTTP 429: …", from the body of a response that is not 200.
std::string status_error(int status, const std::string& body);

}  // namespace volley::apps
