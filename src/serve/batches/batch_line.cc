#include "serve/batches/batch_line.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kUrls[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses"};

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A string field of a parsed line; empty if it is missing or has another type.
std::string text_of(const nlohmann::json& line, const char* name) {
  const auto field = line.find(name);
  return field != line.end() && field->is_string() ? field->get<std::string>() : std::string();
}

LineError invalid_line(std::string message) {
  return {"invalid_line", std::move(message)};
}

std::string envelope(const std::string& id, const std::string& custom_id) {
  return R"({"id":)" + dump(id) + R"(,"custom_id":)" + dump(custom_id);
}

}  // namespace

Result<std::string> read_custom_id(std::string_view line) {
  const auto parsed = parse_json(line);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    std::string message = error->message;
    if (message.starts_with("The body")) message.replace(0, 8, "The line");
    return invalid_argument(std::move(message));
  }
  const auto& json = std::get<nlohmann::json>(parsed);
  if (!json.is_object()) return invalid_argument("The line is not a JSON object.");
  std::string id = text_of(json, "custom_id");
  if (id.empty()) {
    return invalid_argument(
        "The line has no \"custom_id\" that is a text: give each line one of its own, such as \"request-1\".");
  }
  return id;
}

bool is_batch_url(std::string_view url) {
  return std::find(std::begin(kUrls), std::end(kUrls), url) != std::end(kUrls);
}

std::string batch_urls() {
  std::string list;
  for (size_t i = 0; i < std::size(kUrls); ++i) {
    if (i > 0) list += i + 1 < std::size(kUrls) ? ", " : " or ";
    list.append("\"").append(kUrls[i]).append("\"");
  }
  return list;
}

std::variant<HttpRequest, LineError> read_batch_request(std::string_view line) {
  const nlohmann::json json = read_json(line);
  HttpRequest request;
  request.method = text_of(json, "method");
  request.target = text_of(json, "url");
  request.content_type = "application/json";
  if (request.method != "POST") return invalid_line("The line's \"method\" is not \"POST\".");
  if (!is_batch_url(request.target)) {
    return LineError{"unsupported_url", "The line's \"url\" is not one that a batch can ask: " + batch_urls() + "."};
  }
  const auto body = json.find("body");
  if (body == json.end() || !body->is_object()) {
    return invalid_line("The line has no \"body\": a JSON object with the request.");
  }
  const auto stream = body->find("stream");
  if (stream != body->end() && *stream == true) {
    return LineError{"unsupported_parameter", "A batch has no streams: leave \"stream\" out of the body."};
  }
  request.body = std::string(find_member(line, "body"));
  return request;
}

int32_t queue_priority(int32_t stated, bool is_batch_line) {
  constexpr int32_t kMiddle = std::numeric_limits<int32_t>::max() / 2, kQuarter = kMiddle / 2;
  if (!is_batch_line) return std::min(stated, kMiddle - 1);
  return kMiddle + kQuarter + std::clamp(stated, -kQuarter, kQuarter);
}

bool is_failure(std::string_view result_line) {
  const nlohmann::json json = read_json(result_line);
  const auto response = json.find("response");
  if (response == json.end() || !response->is_object()) return true;
  const auto status = response->find("status_code");
  return status == response->end() || *status != 200;
}

std::string response_line(const std::string& id, const std::string& custom_id, const HttpResponse& response) {
  // The body is JSON, so a newline, which would end the line, can only be white space between values.
  std::string body = response.body;
  std::ranges::replace(body, '\n', ' ');
  return envelope(id, custom_id) + R"(,"response":{"status_code":)" + std::to_string(response.status) +
         R"(,"request_id":)" + dump(id) + R"(,"body":)" + body + R"(},"error":null})";
}

std::string error_line(const std::string& id, const std::string& custom_id, const LineError& error) {
  return envelope(id, custom_id) + R"(,"response":null,"error":)" +
         dump({{"code", error.code}, {"message", error.message}}) + "}";
}

}  // namespace volley::serve
