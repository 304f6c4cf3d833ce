#include "serve/json/errors.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr const char* kInvalidRequest = "invalid_request_error";
constexpr const char* kServerError = "server_error";

struct Row {
  ErrorCode code;
  int status;
  const char* type;
  const char* api_code;
};

// Clients retry only 429 and 5xx. A lasting failure must not be one of these, so kUnimplemented is a 400. A cancelled
// request whose client still listens was ended by the server's stop.
constexpr Row kTable[] = {
    {ErrorCode::kInvalidArgument, 400, kInvalidRequest, nullptr},
    {ErrorCode::kNotFound, 404, kInvalidRequest, "not_found"},
    {ErrorCode::kFailedPrecondition, 400, kInvalidRequest, nullptr},
    {ErrorCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
    {ErrorCode::kUnimplemented, 400, kInvalidRequest, "unsupported"},
    {ErrorCode::kDataLoss, 500, kServerError, nullptr},
    {ErrorCode::kCancelled, 503, kServerError, "cancelled"},
    {ErrorCode::kUnavailable, 503, kServerError, "unavailable"},
    {ErrorCode::kInternal, 500, kServerError, nullptr},
};

// Cuts a message where it quotes the request, perhaps a prompt, which only the client may see.
std::string without_quotes(const std::string& message) {
  size_t end = message.size();
  for (const std::string_view quote : {"; last read: '", ", not \"", " holds \""}) {
    const size_t found = message.find(quote);
    if (found != std::string::npos) end = std::min(end, found + quote.size() - 1);
  }
  return end < message.size() ? message.substr(0, end) + "…" : message;
}

}  // namespace

ApiError api_error(const Error& error, std::optional<std::string> param) {
  const auto row =
      std::find_if(std::begin(kTable), std::end(kTable), [&](const Row& r) { return r.code == error.code; });
  if (row == std::end(kTable)) return {500, kServerError, error.message, std::move(param)};
  ApiError result{row->status, row->type, error.message, std::move(param)};
  if (row->api_code) result.code = row->api_code;
  return result;
}

ApiError run_error(Error error) {
  if (error.code == ErrorCode::kResourceExhausted) error.code = ErrorCode::kUnavailable;
  return api_error(error);
}

ApiError invalid_field(std::string_view field, std::string message) {
  return {400, kInvalidRequest, std::move(message), std::string(field), "invalid_value"};
}

ApiError unsupported_field(std::string_view field, std::string message) {
  return {400, kInvalidRequest, std::move(message), std::string(field), "unsupported_parameter"};
}

ApiError invalid_body(std::string message) {
  return {400, kInvalidRequest, std::move(message)};
}

ApiError context_too_long(std::string_view field, std::string message) {
  return {400, kInvalidRequest, std::move(message), std::string(field), "context_length_exceeded"};
}

ApiError model_not_found(std::string_view model) {
  return {404, kInvalidRequest,
          "The model \"" + std::string(model) + "\" is not served here. GET /v1/models lists the ones that are.",
          "model", "model_not_found"};
}

ApiError path_not_found(std::string_view method, std::string_view path) {
  return {404, kInvalidRequest, "Nothing answers " + std::string(method.substr(0, 32)) + " " + std::string(path) + ".",
          std::nullopt, "not_found"};
}

ApiError host_not_allowed(std::string_view host) {
  return {421, kInvalidRequest,
          "This server does not answer for the host \"" + std::string(host.substr(0, 200)) +
              "\". If it should, start it with --allowed-hosts and that name.",
          std::nullopt, "host_not_allowed"};
}

ApiError http_error(int status, std::string message) {
  return {status, status < 500 ? kInvalidRequest : kServerError, std::move(message)};
}

ApiError timeout_error() {
  ApiError error =
      http_error(504, "The request took longer than this server allows. Ask for fewer tokens or fewer choices.");
  error.code = "timeout";
  return error;
}

ApiError deadline_error() {
  ApiError error = http_error(504,
                              "The request's \"timeout\" was over before its first token. Allow it more time, or "
                              "try again when fewer requests wait.");
  error.code = "timeout";
  return error;
}

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::optional<std::string>& text) { return text ? json_quote(*text) : "null"; };
  return R"({"error":{"message":)" + json_quote(error.message) + R"(,"type":)" + json_quote(error.type) +
         R"(,"param":)" + or_null(error.param) + R"(,"code":)" + or_null(error.code) + "}}";
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(error);
  response.error = error.code.value_or(error.type);
  response.reason = without_quotes(error.message);
  response.message = error.message;
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace volley::serve
