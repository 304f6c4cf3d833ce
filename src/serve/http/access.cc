#include "serve/http/access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <utility>

namespace volley::serve {
namespace {

// Compares all of `given`, whatever it holds.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  size_t difference = given.size() ^ key.size();
  for (size_t i = 0; i < given.size() && !key.empty(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

// "Example.com.:8000" → "example.com", "[::1]:8000" → "::1".
std::string bare_host(std::string_view host) {
  if (const size_t end = host.find(']'); host.starts_with('[') && end != std::string_view::npos) {
    host = host.substr(1, end - 1);
  } else if (std::count(host.begin(), host.end(), ':') == 1) {
    host = host.substr(0, host.find(':'));
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  std::string bare(host);
  std::transform(bare.begin(), bare.end(), bare.begin(), [](unsigned char c) { return std::tolower(c); });
  return bare;
}

bool is_address(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

// `host`: bare.
bool is_loopback(const std::string& host) {
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool is_digit(unsigned char c) {
  return std::isdigit(c) != 0;
}

// Whether a browser may send this behind "://" and before a port, or as a host. Browsers write names in lower case, and
// other scripts as xn--…
bool is_sent_host(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return !host.empty() && !host.starts_with('.') && std::all_of(host.begin(), host.end(), [](unsigned char c) {
    return c > ' ' && c < 0x7f && std::string_view("/\\?#@*[]").find(static_cast<char>(c)) == std::string_view::npos;
  });
}

std::pair<std::string_view, std::optional<std::string_view>> split_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  if (colon == std::string_view::npos || (bracket != std::string_view::npos && bracket > colon)) {
    return {host, std::nullopt};
  }
  return {host.substr(0, colon), host.substr(colon + 1)};
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

std::string origin_problem(std::string_view origin) {
  if (origin == "*" || origin == "null") return "";
  const size_t end = origin.find("://");
  if (end != std::string_view::npos && end > 0) {
    const std::string_view scheme = origin.substr(0, end);
    const auto [host, port] = split_port(origin.substr(end + 3));
    const bool lower = std::none_of(origin.begin(), origin.end(), [](unsigned char c) { return std::isupper(c); });
    const bool sent_port = !port || (!port->empty() && std::all_of(port->begin(), port->end(), is_digit) &&
                                     *port != (scheme == "http"    ? "80"
                                               : scheme == "https" ? "443"
                                                                   : ""));
    if (lower && sent_port && is_sent_host(host)) return "";
  }
  return "\"" + std::string(origin) +
         "\" is no origin that a browser sends: write https://HOST or https://HOST:PORT, in lower case, without a path "
         "and without the scheme's own port";
}

std::string host_problem(std::string_view host) {
  const bool has_port = std::count(host.begin(), host.end(), ':') == 1 || host.find("]:") != std::string_view::npos;
  if (host == "*" || (is_sent_host(host) && !has_port)) return "";
  return "\"" + std::string(host) +
         "\" is no name of a host: write it in full, without a scheme, a port or a path, such as llm.example";
}

AllowedHosts::AllowedHosts(const std::vector<std::string>& names, bool loopback)
    : any_(names.empty() ? !loopback : std::find(names.begin(), names.end(), "*") != names.end()),
      addresses_(!loopback) {
  std::transform(names.begin(), names.end(), std::back_inserter(names_), bare_host);
}

bool AllowedHosts::allow(std::string_view host) const {
  if (any_ || host.empty()) return true;
  const std::string bare = bare_host(host);
  return is_loopback(bare) || (addresses_ && is_address(bare)) ||
         std::find(names_.begin(), names_.end(), bare) != names_.end();
}

std::string network_of(const std::string& address) {
  constexpr size_t kNetworkBytes = 8, kMappedBytes = 12;
  in6_addr v6{};
  if (inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), &v6) != 1) return address;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return inet_ntop(AF_INET, v6.s6_addr + kMappedBytes, text.data(), text.size());
  if (!IN6_IS_ADDR_LOOPBACK(&v6)) std::fill(v6.s6_addr + kNetworkBytes, std::end(v6.s6_addr), 0);
  return inet_ntop(AF_INET6, &v6, text.data(), text.size());
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
  response.headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE"}, {"Access-Control-Max-Age", "3600"}};
  // Client libraries send headers of their own, so no fixed list would do.
  if (!request.requested_headers.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", request.requested_headers);
  }
  return response;
}

}  // namespace volley::serve
