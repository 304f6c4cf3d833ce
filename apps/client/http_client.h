// Sends HTTP requests, many at once on one thread, and reads answers as they arrive (libcurl's multi interface).
// Threads: wake() on any; all else on the client's.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace volley::apps {

// Sets libcurl's global state up once, before its first use; it is never torn down. Any thread.
void prepare_curl();

struct HttpCall {
  std::string url;
  std::string body;                  // empty: a GET, else a POST
  std::vector<std::string> headers;  // "Name: value"
};

class HttpClient {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using OnBytes = std::function<void(std::string_view bytes, Time now)>;
  // `failure`: a sentence why the answer is not complete; empty if it is.
  using OnEnd = std::function<void(int status, const std::string& failure, Time now)>;

  // `timeout`: for one answer, from start to end. `connections`: number kept open between calls.
  HttpClient(std::chrono::seconds timeout, int connections);
  ~HttpClient();  // drops open calls without callbacks

  // Both callbacks run inside poll(); on_end runs last and once.
  void start(HttpCall call, OnBytes on_bytes, OnEnd on_end);
  int open() const;
  // Transfers bytes. Returns after `limit`, or sooner when bytes came or wake() was called.
  void poll(std::chrono::milliseconds limit);
  void wake();
  // Drops open calls without callbacks.
  void cancel_all();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::apps
