// HTTP requests to a server: many at once on one thread, answers as they arrive (libcurl's multi interface).
// Threads: wake() from any; everything else from the one that owns the client.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace volley::apps {

struct HttpCall {
  std::string url;
  std::string body;                  // empty: a GET, else a POST
  std::vector<std::string> headers;  // "Name: value"
};

class HttpClient {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using OnBytes = std::function<void(std::string_view bytes, Time now)>;
  // `failure`: why there is no whole answer, a sentence; empty if there is one.
  using OnEnd = std::function<void(int status, const std::string& failure, Time now)>;

  // `timeout`: of one answer, from its start to its end. `connections`: that are kept open between calls.
  HttpClient(std::chrono::seconds timeout, int connections);
  ~HttpClient();  // drops what is open without calling anything

  // Both functions run inside poll(), on_end last and once.
  void start(HttpCall call, OnBytes on_bytes, OnEnd on_end);
  int open() const;
  // Moves bytes; returns after `limit`, or sooner when something has happened or wake() was called.
  void poll(std::chrono::milliseconds limit);
  void wake();
  // Drops what is open without calling anything.
  void cancel_all();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::apps
