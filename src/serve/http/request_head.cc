#include "serve/http/request_head.h"

#include <algorithm>
#include <cctype>

namespace volley::serve {
namespace {

// `lower`: in lower case.
bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](unsigned char a, char b) { return std::tolower(a) == b; });
}

// A path's own signs, which an escape may hide.
bool is_path_sign(unsigned char c) {
  return std::isalnum(c) != 0 || std::string_view("-._~/").find(static_cast<char>(c)) != std::string_view::npos;
}

// Whether the text can be a name or an address, perhaps with a port. No reader may find a second host or a path in it.
bool can_be_host(std::string_view text) {
  return text.find_first_of(" \t,/\\?#@\"<>") == std::string_view::npos;
}

}  // namespace

Target split_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equals_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    const size_t end = std::min(target.find_first_of("/?#", scheme.size()), target.size());
    const std::string_view rest = target.substr(end);
    std::string path = rest.starts_with('/') ? "" : "/";
    path += rest;
    return {std::string(target.substr(scheme.size(), end - scheme.size())), canonical_target(path)};
  }
  return {"", canonical_target(target)};
}

std::string canonical_target(std::string_view target) {
  if (!target.starts_with('/')) return std::string(target);
  const size_t end = std::min(target.find_first_of("?#"), target.size());
  constexpr size_t kEscape = 3;
  std::string path;
  for (std::string_view rest = target.substr(0, end); !rest.empty();) {
    const auto decoded = rest.front() == '%' ? percent_decode(rest.substr(0, kEscape)) : std::nullopt;
    const bool shown = decoded && is_path_sign(static_cast<unsigned char>(decoded->front()));
    path += shown ? decoded->front() : rest.front();
    rest.remove_prefix(shown ? kEscape : 1);
  }
  return single_slashes(path).append(target.substr(end));
}

std::optional<ApiError> framing_error(const HeadFields& head) {
  const auto& codings = head.transfer_encodings;
  if (!codings.empty() && head.http_1_0) {
    return http_error(400, "HTTP/1.0 has no Transfer-Encoding: send Content-Length, or HTTP/1.1.");
  }
  if (!codings.empty() && head.content_length) {
    return http_error(400, "The request has Content-Length and Transfer-Encoding: send one of them.");
  }
  if (!codings.empty() && (codings.size() > 1 || !equals_ignoring_case(codings.front(), "chunked"))) {
    return http_error(501, "The only Transfer-Encoding that this server reads is chunked, alone.");
  }
  if (head.hosts.size() > 1 || (head.hosts.empty() && !head.http_1_0)) {
    return http_error(400, "A request names its host once: send one Host header.");
  }
  if (!can_be_host(head.authority) || (!head.hosts.empty() && !can_be_host(head.hosts.front()))) {
    return http_error(400, "The request's host is neither a name nor an address, with or without a port.");
  }
  return std::nullopt;
}

}  // namespace volley::serve
