// Decides from a request's head where the request ends and which host it names. A reader that disagrees with a proxy
// would take part of one client's body for another client's request. No sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json/errors.h"

namespace volley::serve {

struct Target {
  std::string authority;  // empty: not in the request line
  std::string path;       // canonical_target() of the rest
};
// "/path?query", or "http://host/path?query" as clients of a proxy send it.
Target split_target(std::string_view target);

// Gives all spellings of a path one form for later checks: letters, digits, "-", ".", "_", "~" and "/" are not escaped,
// slashes stand alone, and none ends the path. Other escapes, the query, "*" and other text stay. Dots mean nothing.
std::string canonical_target(std::string_view target);

// As sent: a value for each header of the name.
struct HeadFields {
  bool http_1_0 = false;
  bool content_length = false;  // at least one was sent, and all agree
  std::vector<std::string_view> transfer_encodings = {};
  std::vector<std::string_view> hosts = {};
  std::string_view authority = {};  // from the request line, if there
};

// Why the request is refused, which ends the connection. 400: it contradicts itself, or does not name one host. 501: a
// transfer coding other than chunked. No value: it is accepted.
std::optional<ApiError> framing_error(const HeadFields& head);

}  // namespace volley::serve
