#include "serve/access.h"

#include <algorithm>
#include <cctype>

namespace volley::serve {
namespace {

// Looks at all of `given` whatever it holds.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  size_t difference = given.size() ^ key.size();
  for (size_t i = 0; i < given.size() && !key.empty(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  return scheme.size() == kBearer.size() && std::equal(scheme.begin(), scheme.end(), kBearer.begin(),
                                                       [](unsigned char a, char b) { return std::tolower(a) == b; });
}

}  // namespace

std::optional<size_t> ApiKeys::find(std::string_view authorization) const {
  if (keys_.empty()) return 0;
  constexpr size_t kScheme = 7;
  if (!is_bearer(authorization.substr(0, kScheme))) return std::nullopt;
  authorization.remove_prefix(kScheme);
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (equal_in_constant_time(authorization, keys_[i])) found = i;
  }
  return found;
}

std::string Cors::allowed(const std::string& origin) const {
  const auto holds = [&](const std::string& text) {
    return std::find(origins_.begin(), origins_.end(), text) != origins_.end();
  };
  if (origin.empty()) return "";
  return holds("*") ? "*" : holds(origin) ? origin : "";
}

HttpHeaders Cors::headers(const HttpRequest& request) const {
  const std::string origin = allowed(request.origin);
  if (origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
          {"Vary", "Origin"}};
}

std::optional<HttpResponse> Cors::preflight(const HttpRequest& request) const {
  if (request.method != "OPTIONS" || allowed(request.origin).empty()) return std::nullopt;
  HttpResponse response;
  response.status = 204;
  response.content_type = "";
  response.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"}, {"Access-Control-Max-Age", "3600"}};
  // Client libraries send headers of their own making, so the list cannot be ours.
  if (!request.requested_headers.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", request.requested_headers);
  }
  return response;
}

}  // namespace volley::serve
