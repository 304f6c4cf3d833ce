// Server-sent events, in pieces as they arrive, and what an endpoint says when it refuses. Threads: one.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace volley::apps {

class EventLines {
 public:
  // Calls `on_data` with the text of each data line that is whole now.
  void read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  std::string buffer_;  // of an unfinished line
};

// The sentence in an endpoint's error object, in the forms that servers have; else the object itself.
std::string endpoint_error(const nlohmann::json& json);

// "HTTP 429: …" from the body of a response that is not 200.
std::string status_error(int status, const std::string& body);

}  // namespace volley::apps
