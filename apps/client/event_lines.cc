#include "apps/client/event_lines.h"

#include <nlohmann/json.hpp>

namespace volley::apps {

using Json = nlohmann::json;

void EventLines::read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data) {
  buffer_ += bytes;
  size_t begin = 0;
  for (size_t end; (end = buffer_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    std::string_view line(buffer_.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    on_data(line);
  }
  buffer_.erase(0, begin);
}

std::string endpoint_error(const Json& json) {
  for (const char* path : {"/error/message", "/message", "/detail", "/error"}) {
    const Json::json_pointer pointer(path);
    if (json.contains(pointer) && json.at(pointer).is_string()) return json.at(pointer);
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string status_error(int status, const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  return "HTTP " + std::to_string(status) + ": " + (json.is_object() ? endpoint_error(json) : body);
}

}  // namespace volley::apps
