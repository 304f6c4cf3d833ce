// Sends HTTP requests, one at a time, and reads answers as they arrive (libcurl). Threads: wake() on any; all else on
// the client's.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <functional>
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

struct HttpEnd {
  int status = 0;
  std::string failure;   // why the answer is not complete; empty if it is
  bool stopped = false;  // go_on() returned false
};

class HttpClient {
 public:
  using OnBytes = std::function<void(std::string_view bytes)>;

  explicit HttpClient(std::chrono::seconds timeout);  // for one answer, from start to end
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends the request and waits for its end. `go_on` is called a few times a second, and at once after wake(); false
  // drops the call.
  HttpEnd run(const HttpCall& call, const OnBytes& on_bytes, const std::function<bool()>& go_on);
  void wake();

 private:
  void* const multi_;  // CURLM: its connections outlive a call
  const std::chrono::seconds timeout_;
};

}  // namespace volley::apps
