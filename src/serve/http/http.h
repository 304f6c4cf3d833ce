// HTTP messages as plain values and the bytes of a response. No sockets: server.cc moves the bytes.
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
  std::string content_type;  // this and the other headers: empty if none was sent
  std::string body;
  std::string authorization = {};
  std::string origin = {};
  std::string if_none_match = {};
  std::string accept_encoding = {};
  std::string content_encoding = {};   // of the body; several headers are joined as one list
  std::string requested_headers = {};  // Access-Control-Request-Headers
  std::string request_id = {};         // X-Request-Id: the client's, or one of ours
  std::string api_key = {};            // X-Api-Key
  std::string host = {};               // that it is for, maybe with a port: of the request line, else of Host
  std::string client = {};             // network_of() the address that it came from, or its batch did; empty: from none
  std::optional<std::chrono::steady_clock::time_point> arrived = {};  // all of it, on a connection
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // empty: of a response without a body, 204 or 304
  HttpHeaders headers;                            // beside the ones that response_head() writes
  std::string body;
  std::shared_ptr<const OpenFile> file = {};  // the body is this file instead, as long as `bytes` says
  std::string error = {};                     // for the log: of an error its code, or its type where it has none
  std::string reason = {};                    // for the log: of an error its message, without what it quotes of prompts
  std::string message = {};                   // of an error, for APIs that write it in a form of their own
};

inline HttpResponse json_text(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// How a response is sent over one connection.
struct Framing {
  bool http_1_0 = false;
  bool keep_alive = true;
  bool chunked = false;  // a body of unknown length; HTTP/1.0 ends it by closing instead
  std::time_t now = 0;
};

// Status line, headers and the empty line. Content-Length is the body's size unless the body is chunked.
std::string response_head(const HttpResponse& response, const Framing& framing);

// One piece of a body of unknown length. `data` must not be empty: an empty chunk would end the body.
std::string body_piece(std::string_view data, const Framing& framing);
// What ends a body of unknown length.
std::string_view body_end(const Framing& framing);

// The value of a parameter behind "?"; empty: it was not sent.
std::string query_value(const HttpRequest& request, std::string_view name);

// A path in which every slash stands alone and none is the last, unless it is all there is.
std::string single_slashes(std::string_view path);

// "/v1/models/a%2Fb" → "/v1/models/a/b". An incomplete escape gives nothing.
std::optional<std::string> percent_decode(std::string_view text);

}  // namespace volley::serve
