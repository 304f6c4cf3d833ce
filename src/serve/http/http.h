// HTTP messages as plain values, and a response's bytes. No sockets: server.cc moves the bytes.
#pragma once

#include <chrono>
#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace volley::serve {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;        // upper case, as sent
  std::string target;        // path, as canonical_target() spells it, and query
  std::string content_type;  // this and the other headers: empty if not sent
  std::string body;
  std::string authorization = {};
  std::string origin = {};
  std::string if_none_match = {};
  std::string accept_encoding = {};
  std::string content_encoding = {};   // the body's coding; several headers are joined as one list
  std::string requested_headers = {};  // Access-Control-Request-Headers
  std::string request_id = {};         // the client's X-Request-Id, or one of ours
  std::string api_key = {};            // X-Api-Key
  std::string host = {};               // from the request line, else from Host; perhaps with a port
  std::string client = {};             // network_of() its address, or its batch's address; empty: none
  std::optional<std::chrono::steady_clock::time_point> arrived = {};  // when its last byte arrived over a connection
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // empty for a response without a body, 204 or 304
  HttpHeaders headers;                            // in addition to response_head()'s
  std::string body;
  std::shared_ptr<const OpenFile> file = {};  // replaces the body, `bytes` long
  std::string error = {};                     // for the log: an error's code, or its type if it has none
  std::string reason = {};                    // for the log: an error's message, without quotes of prompts
  std::string message = {};                   // an error's message, for APIs with an error form of their own
};

inline HttpResponse json_text(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// How a connection sends a response.
struct Framing {
  bool http_1_0 = false;
  bool keep_alive = true;
  bool chunked = false;  // a body of unknown length; HTTP/1.0 closes instead
  std::time_t now = 0;
};

// Status line, headers and the empty line. Content-Length is the body's size unless the body is chunked.
std::string response_head(const HttpResponse& response, const Framing& framing);

// One piece of a body of unknown length. `data` must not be empty, because an empty chunk would end the body.
std::string body_piece(std::string_view data, const Framing& framing);
// Ends a body of unknown length.
std::string_view body_end(const Framing& framing);

// A query parameter's value; empty if not sent.
std::string query_value(const HttpRequest& request, std::string_view name);

// A path with single slashes and none at the end, unless it is only "/".
std::string single_slashes(std::string_view path);

// "/v1/models/a%2Fb" → "/v1/models/a/b". An incomplete escape gives nothing.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace volley::serve
