#include "serve/router.h"

#include "serve/errors.h"

namespace volley::serve {
namespace {

struct Entry {
  std::string_view path;
  std::string_view method;
  Endpoint endpoint;
};

constexpr Entry kEntries[] = {
    {"/v1/chat/completions", "POST", Endpoint::kChatCompletions},
    {"/v1/completions", "POST", Endpoint::kCompletions},
    {"/v1/models", "GET", Endpoint::kModels},
    {"/health", "GET", Endpoint::kHealth},
    {"/metrics", "GET", Endpoint::kMetrics},
};
// Model names hold slashes, so this one takes the whole rest of the path.
constexpr Entry kModelEntry = {"/v1/models/", "GET", Endpoint::kModel};

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target = request.target;
  return target.substr(0, target.find_first_of("?#"));
}

const Entry* find_entry(std::string_view path) {
  for (const Entry& entry : kEntries) {
    if (entry.path == path) return &entry;
  }
  const bool model = path.starts_with(kModelEntry.path) && path.size() > kModelEntry.path.size();
  return model ? &kModelEntry : nullptr;
}

}  // namespace

std::variant<Route, HttpResponse> route(const HttpRequest& request) {
  const std::string_view path = path_of(request);
  const Entry* entry = find_entry(path);
  if (!entry) return error_response(path_not_found(request.method, path.substr(0, 200)));
  const bool head = request.method == "HEAD" && entry->method == "GET";
  if (request.method != entry->method && !head) {
    HttpResponse response =
        error_response(http_error(405, std::string(path) + " takes " + std::string(entry->method) + " only."));
    response.headers.emplace_back("Allow", entry->method == "GET" ? "GET, HEAD" : "POST");
    return response;
  }
  Route result{entry->endpoint, ""};
  if (entry == &kModelEntry) {
    const auto name = percent_decode(path.substr(kModelEntry.path.size()));
    if (!name) return error_response(http_error(400, "The path holds a '%' that is not followed by two hex digits."));
    result.model = *name;
  }
  return result;
}

std::string_view path_label(const HttpRequest& request) {
  const Entry* entry = find_entry(path_of(request));
  return entry ? entry->path : "other";
}

}  // namespace volley::serve
