// State that all connections share, and the handling of a request's head. Included by session-inl.h and
// tests/fuzz/http.cc.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fair_space.h"
#include "serve/api/api.h"
#include "serve/http/exchange.h"
#include "serve/http/request_head.h"
#include "serve/http/tls-inl.h"
#include "serve/http/workers-inl.h"

namespace volley::serve::transport {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = asio::steady_timer::clock_type;
using Milliseconds = std::chrono::milliseconds;

constexpr size_t kReadBytes = size_t{64} << 10;
// A body or answer of this size always has room.
constexpr size_t kSmallBytes = size_t{64} << 10;

template <typename Message>
std::vector<std::string_view> field_values(const Message& message, http::field name) {
  std::vector<std::string_view> found;
  const auto [begin, end] = message.equal_range(name);
  std::transform(begin, end, std::back_inserter(found), [](const auto& field) { return field.value(); });
  return found;
}

// Reads all but the body.
template <typename Message>
HttpRequest request_head(const Message& message) {
  const auto header = [&](auto name) { return std::string(message[name]); };
  HttpRequest request;
  request.method = std::string(message.method_string());
  Target target = split_target(message.target());
  request.target = std::move(target.path);
  request.host = target.authority.empty() ? header(http::field::host) : std::move(target.authority);
  request.content_type = header(http::field::content_type);
  request.authorization = header(http::field::authorization);
  request.origin = header(http::field::origin);
  request.if_none_match = header(http::field::if_none_match);
  request.accept_encoding = header(http::field::accept_encoding);
  for (const std::string_view value : field_values(message, http::field::content_encoding)) {
    request.content_encoding.append(request.content_encoding.empty() ? "" : ", ").append(value);
  }
  request.requested_headers = header(http::field::access_control_request_headers);
  request.request_id = header("X-Request-Id");
  request.api_key = header("X-Api-Key");
  return request;
}

// `request`: request_head()'s result for the message.
template <typename Message>
HeadFields head_fields(const Message& message, const HttpRequest& request) {
  return {message.version() < 11, message.count(http::field::content_length) > 0,
          field_values(message, http::field::transfer_encoding), field_values(message, http::field::host),
          request.host};
}

// The rest of a refused request is read, and the connection kept, if that costs no more than this.
template <typename Parser>
bool is_short(const Parser& parser) {
  return parser.is_done() || parser.content_length_remaining().value_or(kReadBytes + 1) <= kReadBytes;
}

inline HttpResponse stopping_response() {
  return error_response(http_error(503, "The server is stopping. Send the request again."));
}

// One body of the largest size fits wherever that much is free.
inline FairSpace::Limits room_for(size_t total, size_t largest) {
  return {.total = std::max(total, largest), .always = largest};
}

// Shared by all sessions.
struct Shared {
  explicit Shared(const ServerOptions& server_options)
      : options(server_options),
        api(options),
        bodies(room_for(options.max_total_body_bytes, options.max_body_bytes)),
        answers(room_for(options.max_total_response_bytes, options.max_response_bytes)),
        workers({.grammar = options.grammar_threads,
                 .disk = options.disk_threads,
                 .usual = options.worker_threads,
                 .pictures = options.worker_threads,
                 .large = options.worker_threads}) {}

  const ServerOptions options;
  std::shared_ptr<ssl::context> tls;  // null: plain HTTP; constant once the server listens
  Api api;
  AllowedHosts hosts;  // constant once the server listens
  std::atomic<bool> draining{false};
  SharedSpace bodies;   // see ServerOptions::max_total_body_bytes
  SharedSpace answers;  // see ServerOptions::max_total_response_bytes
  Workers workers;      // last, because running work uses the rest
};

// One connection's part of the bytes counted over all. It goes with the body to the worker that reads it.
class BodyShare {
 public:
  explicit BodyShare(Shared& shared) : shared_(shared), share_(shared.bodies) {}
  ~BodyShare() { release(); }
  BodyShare(BodyShare&& other) noexcept
      : shared_(other.shared_), share_(std::move(other.share_)), size_(std::exchange(other.size_, 0)) {}
  BodyShare& operator=(BodyShare&&) = delete;

  // False: all connections, or this client's, would hold too much. The share is given back; the body must be dropped.
  bool grow_to(const std::string& whose, size_t size) {
    if (size > kSmallBytes && !share_.grow_to(whose, size)) {
      release();
      return false;
    }
    shared_.api.metrics().count_body_bytes(static_cast<int64_t>(size - size_));
    size_ = size;
    return true;
  }
  void release() {
    if (size_ > 0) shared_.api.metrics().count_body_bytes(-static_cast<int64_t>(std::exchange(size_, 0)));
    share_.release();
  }

 private:
  Shared& shared_;
  SharedSpace::Hold share_;
  size_t size_ = 0;
};

}  // namespace volley::serve::transport
