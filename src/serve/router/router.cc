#include "serve/router/router.h"

#include <optional>
#include <utility>

#include "serve/json/errors.h"

namespace volley::serve {
namespace {

constexpr EndpointRow kRows[] = {
    // path, method, endpoint, needs_key, needs_engine, wait
    {"/v1/chat/completions", "POST", Endpoint::kChatCompletions, true, true, Wait::kWork},
    {"/v1/completions", "POST", Endpoint::kCompletions, true, true, Wait::kWork},
    {"/v1/responses", "POST", Endpoint::kResponses, true, true, Wait::kWork},
    {"/v1/responses/*", "GET", Endpoint::kGetResponse, true, true, Wait::kWork},
    {"/v1/responses/*", "DELETE", Endpoint::kDeleteResponse, true, true, Wait::kWork},
    {"/v1/responses/*/input_items", "GET", Endpoint::kResponseInput, true, true, Wait::kWork},
    {"/v1/responses/*/cancel", "POST", Endpoint::kCancelResponse, true, true, Wait::kWork},
    {"/v1/files", "POST", Endpoint::kUploadFile, true, true, Wait::kDisk},
    {"/v1/files", "GET", Endpoint::kListFiles, true, true, Wait::kDisk},
    {"/v1/files/*", "GET", Endpoint::kGetFile, true, true, Wait::kNothing},
    {"/v1/files/*", "DELETE", Endpoint::kDeleteFile, true, true, Wait::kDisk},
    {"/v1/files/*/content", "GET", Endpoint::kFileContent, true, true, Wait::kDisk},
    {"/v1/batches", "POST", Endpoint::kCreateBatch, true, true, Wait::kDisk},
    {"/v1/batches", "GET", Endpoint::kListBatches, true, true, Wait::kDisk},
    {"/v1/batches/*", "GET", Endpoint::kGetBatch, true, true, Wait::kDisk},
    {"/v1/batches/*/cancel", "POST", Endpoint::kCancelBatch, true, true, Wait::kDisk},
    {"/v1/messages", "POST", Endpoint::kMessages, true, true, Wait::kWork},
    {"/v1/messages/count_tokens", "POST", Endpoint::kCountMessageTokens, true, true, Wait::kWork},
    {"/tokenize", "POST", Endpoint::kTokenize, true, true, Wait::kWork},
    {"/detokenize", "POST", Endpoint::kDetokenize, true, true, Wait::kWork},
    {"/v1/models", "GET", Endpoint::kModels, true, true, Wait::kNothing},
    {"/v1/models/", "GET", Endpoint::kModel, true, true, Wait::kNothing},  // names have slashes
    {"/health", "GET", Endpoint::kHealth, false, true, Wait::kNothing},    // healthy means ready for requests
    {"/ready", "GET", Endpoint::kReady, false, false, Wait::kNothing},
    {"/version", "GET", Endpoint::kVersion, false, false, Wait::kNothing},
    {"/metrics", "GET", Endpoint::kMetrics, false, true, Wait::kNothing},
    {"/load", "GET", Endpoint::kLoad, false, true, Wait::kNothing},
    {"/get_load", "GET", Endpoint::kReplicaLoads, false, true, Wait::kNothing},
    {"/server_info", "GET", Endpoint::kServerInfo, true, true, Wait::kNothing},
    {"/model_info", "GET", Endpoint::kModelInfo, true, true, Wait::kNothing},
    {"/openapi.json", "GET", Endpoint::kOpenApi, false, false, Wait::kNothing},
    {"/", "GET", Endpoint::kPage, false, false, Wait::kNothing},
    {"/web/", "GET", Endpoint::kPage, false, false, Wait::kNothing},
};

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target = request.target;
  return target.substr(0, target.find_first_of("?#"));
}

// The part of `path` that a row's pattern leaves open; nothing: no match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  const size_t star = pattern.find('*');
  if (star != std::string_view::npos) {
    const std::string_view end = pattern.substr(star + 1);
    if (path.size() <= pattern.size() - 1 || !path.starts_with(pattern.substr(0, star)) || !path.ends_with(end)) {
      return std::nullopt;
    }
    const std::string_view open = path.substr(star, path.size() - star - end.size());
    return open.find('/') == std::string_view::npos ? std::optional(open) : std::nullopt;
  }
  if (pattern.size() > 1 && pattern.back() == '/') {
    if (!path.starts_with(pattern) || path.size() == pattern.size()) return std::nullopt;
    return path.substr(pattern.size());
  }
  return path == pattern ? std::optional<std::string_view>("") : std::nullopt;
}

bool takes(const EndpointRow& row, std::string_view method) {
  return method == row.method || (method == "HEAD" && row.method == "GET");
}

// A path's methods, as Allow or a sentence lists them.
std::string methods_of(std::string_view path, bool with_head, std::string_view separator) {
  std::string list;
  for (const EndpointRow& row : kRows) {
    if (!match(row.path, path)) continue;
    list.append(list.empty() ? "" : separator).append(row.method);
    if (with_head && row.method == "GET") list.append(separator).append("HEAD");
  }
  return list;
}

}  // namespace

std::span<const EndpointRow> endpoint_rows() {
  return kRows;
}

std::variant<Route, HttpResponse> route(const HttpRequest& request) {
  const std::string_view path = path_of(request);
  if (!percent_decode(path)) {
    return error_response(http_error(400, "The path holds a '%' that is not followed by two hex digits."));
  }
  bool known = false;
  for (const EndpointRow& row : kRows) {
    const auto open = match(row.path, path);
    if (!open) continue;
    known = true;
    if (!takes(row, request.method)) continue;
    return Route{&row, *percent_decode(*open)};
  }
  if (!known) return error_response(path_not_found(request.method, path.substr(0, 200)));
  HttpResponse response = error_response(
      http_error(405, std::string(path.substr(0, 200)) + " takes " + methods_of(path, false, " and ") + " only."));
  response.headers.emplace_back("Allow", methods_of(path, true, ", "));
  return response;
}

std::string_view path_label(const HttpRequest& request) {
  const std::string_view path = path_of(request);
  for (const EndpointRow& row : kRows) {
    if (match(row.path, path)) return row.path;
  }
  return "other";
}

}  // namespace volley::serve
