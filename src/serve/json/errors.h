// The one place that turns a failure into an HTTP status and an OpenAI error object: {"error": {"message", "type",
// "param", "code"}}.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "serve/http/http.h"

namespace volley::serve {

struct ApiError {
  int status = 500;
  std::string type;                                 // "invalid_request_error", "rate_limit_error", "server_error"
  std::string message;                              // what is wrong and what to do about it
  std::optional<std::string> param = std::nullopt;  // the request's wrong field
  std::optional<std::string> code = std::nullopt;   // for programs: "model_not_found", "context_length_exceeded", …
};

template <typename T>
using ApiResult = std::variant<T, ApiError>;

// An engine's refusal of a request. kResourceExhausted means a full queue (429): lengths are checked before submit.
ApiError api_error(const Error& error, std::optional<std::string> param = std::nullopt);
// The end of an accepted request. kResourceExhausted means that memory or threads ran out (503).
ApiError run_error(Error error);

// 400 that names a field.
ApiError invalid_field(std::string_view field, std::string message);
// 400 for a valid field that asks for what this server cannot do.
ApiError unsupported_field(std::string_view field, std::string message);
// 400 for a body that cannot be read at all.
ApiError invalid_body(std::string message);
// 400: the tokens do not fit into the context.
ApiError context_too_long(std::string_view field, std::string message);
ApiError model_not_found(std::string_view model);
ApiError path_not_found(std::string_view method, std::string_view path);
ApiError host_not_allowed(std::string_view host);
// A failure of the HTTP exchange itself: 400, 405, 408, 413, 415, 421, 431, 501, 503.
ApiError http_error(int status, std::string message);

// 504: past the server's time limit.
ApiError timeout_error();
// 504: the request's own "timeout" came before its first token.
ApiError deadline_error();

std::string error_json(const ApiError& error);
// With Retry-After for 429 and 503. Its text for the log quotes no prompt.
HttpResponse error_response(const ApiError& error);

}  // namespace volley::serve
