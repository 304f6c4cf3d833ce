// Turns one request's answer into bytes: framing, common headers, count and log record. No sockets. One thread.
#pragma once

#include <chrono>
#include <string>

#include "serve/api/api.h"
#include "serve/api/generation.h"
#include "serve/http/http.h"

namespace volley::serve {

class Exchange {
 public:
  // Answers bytes that were no request; the connection then ends.
  explicit Exchange(Api& api);
  // `http_1_0` and `keep_alive`: from the client's request.
  Exchange(Api& api, HttpRequest request, bool http_1_0, bool keep_alive);
  Exchange(Exchange&&) = default;

  const HttpRequest& request() const { return request_; }
  bool http_1_0() const { return http_1_0_; }
  // The request with its body, which this object then no longer has.
  HttpRequest hand_over();
  void drop_body() { std::string().swap(request_.body); }  // an assignment would keep its memory

  // `draining`: the connection takes no further request.
  std::string whole(HttpResponse response, bool draining);
  // May be empty. A stream's head waits for its first news, so that an earlier failure gets a status of its own.
  std::string piece(Generation::Output output, bool draining);

  // Whether the connection can take another request after this answer.
  bool reusable() const { return reusable_; }

  // Logs the request. `generation`: may be null. Call once, last.
  void end(bool delivered, const Generation* generation) const;

 private:
  Framing framing(bool chunked, bool draining);
  std::string head(HttpResponse& response, const Framing& how);

  Api* api_;
  HttpRequest request_;
  std::string path_label_;
  bool http_1_0_ = false;
  bool keep_alive_ = false;
  bool streaming_ = false;
  bool reusable_ = false;
  int status_ = 0;
  std::string error_, reason_;  // the answer's, see HttpResponse
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace volley::serve
