#include "serve/router.h"

#include "serve/errors.h"

namespace volley::serve {
namespace {

constexpr EndpointRow kRows[] = {
    // path, method, endpoint, needs_key, needs_engine, takes_long
    {"/v1/chat/completions", "POST", Endpoint::kChatCompletions, true, true, true},
    {"/v1/completions", "POST", Endpoint::kCompletions, true, true, true},
    {"/tokenize", "POST", Endpoint::kTokenize, true, true, true},
    {"/detokenize", "POST", Endpoint::kDetokenize, true, true, true},
    {"/v1/models", "GET", Endpoint::kModels, true, true, false},
    {"/v1/models/", "GET", Endpoint::kModel, true, true, false},  // names hold slashes
    {"/health", "GET", Endpoint::kHealth, false, true, false},    // healthy is who can be asked
    {"/ready", "GET", Endpoint::kReady, false, false, false},
    {"/version", "GET", Endpoint::kVersion, false, false, false},
    {"/metrics", "GET", Endpoint::kMetrics, false, true, false},
    {"/openapi.json", "GET", Endpoint::kOpenApi, false, false, false},
    {"/", "GET", Endpoint::kPage, false, false, false},
    {"/web/", "GET", Endpoint::kPage, false, false, false},
};

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target = request.target;
  return target.substr(0, target.find_first_of("?#"));
}

bool is_folder(std::string_view path) {
  return path.size() > 1 && path.back() == '/';
}

const EndpointRow* find_row(std::string_view path) {
  for (const EndpointRow& row : kRows) {
    if (is_folder(row.path) ? path.starts_with(row.path) && path.size() > row.path.size() : path == row.path) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const EndpointRow> endpoint_rows() {
  return kRows;
}

std::variant<Route, HttpResponse> route(const HttpRequest& request) {
  const std::string_view path = path_of(request);
  const EndpointRow* row = find_row(path);
  if (!row) return error_response(path_not_found(request.method, path.substr(0, 200)));
  const bool head = request.method == "HEAD" && row->method == "GET";
  if (request.method != row->method && !head) {
    HttpResponse response =
        error_response(http_error(405, std::string(path) + " takes " + std::string(row->method) + " only."));
    response.headers.emplace_back("Allow", row->method == "GET" ? "GET, HEAD" : "POST");
    return response;
  }
  Route result{row, ""};
  if (is_folder(row->path)) {
    const auto rest = percent_decode(path.substr(row->path.size()));
    if (!rest) return error_response(http_error(400, "The path holds a '%' that is not followed by two hex digits."));
    result.rest = *rest;
  }
  return result;
}

std::string_view path_label(const HttpRequest& request) {
  const EndpointRow* row = find_row(path_of(request));
  return row ? row->path : "other";
}

}  // namespace volley::serve
