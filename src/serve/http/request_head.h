// What the head of a request says about where the request ends and whom it is for. Whoever reads that in another way
// than a proxy in front of it takes a part of one client's body for another client's request. No sockets.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json/errors.h"

namespace volley::serve {

struct Target {
  std::string authority;  // empty: the request line names none
  std::string path;       // canonical_target() of the rest
};
// "/path?query", or "http://host/path?query" as clients of a proxy send it.
Target split_target(std::string_view target);

// One spelling for all that name one path, so that whatever looks at a path later sees the same: letters, digits, "-",
// ".", "_", "~" and "/" are not escaped, slashes stand alone, and none ends the path. Other escapes stay, and so do the
// query, "*" and what is no path. Dots mean nothing.
std::string canonical_target(std::string_view target);

// As sent: a value for each header of the name.
struct HeadFields {
  bool http_1_0 = false;
  bool content_length = false;  // there is at least one, and they agree
  std::vector<std::string_view> transfer_encodings = {};
  std::vector<std::string_view> hosts = {};
  std::string_view authority = {};  // of the request line, if it names one
};

// Why the request cannot be taken; the connection then ends with the answer. 400: it contradicts itself, or does not
// name one host. 501: a transfer coding other than chunked. Nothing: it can be.
std::optional<ApiError> framing_error(const HeadFields& head);

}  // namespace volley::serve
