// One connection of the server: its beginning and its end. session_read-inl.h reads requests, session_answer-inl.h
// answers them, session_watch-inl.h watches for the client's end and for deadlines. Only server.cc includes these,
// because files with Asio and Beast are by far the slowest to compile.
//
// Threads: each connection is a coroutine on its own strand, so a Session's members need no lock. A pool does long
// work.
#pragma once

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "serve/http/session_shared-inl.h"
#include "serve/http/text_body-inl.h"

namespace volley::serve::transport {

constexpr size_t kWriteBytes = size_t{64} << 10;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr Milliseconds kLinger{2000};  // for a client to stop sending unread bytes
constexpr Milliseconds kAskAgain{50};  // see Session::expire()

// Limits while the server drains:
constexpr Milliseconds kDrainIdle{0};
constexpr Milliseconds kDrainRead{500};  // for the rest of a request that has begun to arrive
constexpr Milliseconds kDrainLinger{500};
constexpr Milliseconds kDrainHandshake{0};
constexpr Milliseconds kGoodbye{500};  // for the end of TLS, at any time
// Interval of looks at a client that only takes its answer: one that takes nothing is noticed after one or two.
constexpr Milliseconds kDrainWrite{1000};

inline auto token(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

// One connection: reads a request, answers it, and repeats. Created shared; its coroutine keeps it alive.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared)
      : shared_(shared),
        stream_(std::move(socket), shared.tls.get()),
        body_share_(shared),
        buffer_(shared.options.max_header_bytes + kReadBytes),
        deadline_(stream_.get_executor()),
        time_limit_(stream_.get_executor()),
        signal_(stream_.get_executor(), asio::steady_timer::time_point::max()) {}

  asio::any_io_executor executor() { return stream_.get_executor(); }

  asio::awaitable<void> run();

  // The rest runs on the strand.
  void drain() {
    if (ends_at_) schedule();
  }
  void cancel_generation() {
    if (generation_) generation_->cancel();
    cancel_job();
  }
  void stop();

 private:
  using Parser = http::request_parser<TextBody>;
  // The answer to send before closing the connection, instead of reading the body.
  using Refusal = std::optional<HttpResponse>;

  asio::awaitable<bool> shake_hands();
  asio::awaitable<void> say_goodbye();
  asio::awaitable<void> look_again();
  asio::awaitable<bool> wait_for_bytes();
  asio::awaitable<std::optional<Exchange>> read_request();
  Refusal refusal(const Parser& parser, const HttpRequest& request, bool asks) const;
  asio::awaitable<Refusal> read_body(Parser& parser, error_code& error);
  asio::awaitable<Refusal> read_upload(Parser& parser, const HttpRequest& request, error_code& error);
  template <typename Work>
  asio::awaitable<void> on_worker(Work work);
  asio::awaitable<bool> send_file(const OpenFile& file);
  asio::awaitable<void> refuse(Exchange exchange, error_code error, size_t body_limit);
  asio::awaitable<void> close_with(Exchange exchange, HttpResponse response);
  asio::awaitable<bool> answer(Exchange& exchange);
  asio::awaitable<Api::Reply> handle(Exchange& exchange);
  std::string whose(const HttpRequest& request) const;
  void cancel_job();
  void take_room(HttpResponse& response, SharedSpace::Hold& room) const;
  asio::awaitable<bool> send_response(Exchange& exchange, HttpResponse response);
  asio::awaitable<bool> send_generation(Exchange& exchange);
  void limit_time();
  asio::awaitable<bool> write(std::string_view bytes);
  asio::awaitable<void> linger();

  void watch();
  void watch_for_reset();
  bool was_reset();
  void send_interim();
  void end_of_watch(bool client_left);
  void leave();
  asio::awaitable<void> end_watch();  // after job_ and generation_ were reset
  asio::awaitable<void> wait_signal();
  void notify();
  // Makes every operation on the socket fail.
  void interrupt() {
    error_code closed_already;
    stream_.socket().cancel(closed_already);
  }
  void arm(Milliseconds timeout, Milliseconds when_draining);
  void disarm();
  void schedule();
  void expire();
  int64_t taken_bytes();

  Shared& shared_;
  Stream stream_;
  std::string whose_;  // sender of the last request
  BodyShare body_share_;
  boost::beast::flat_buffer buffer_;  // received but unparsed bytes: a pipelining client's next request
  asio::steady_timer deadline_;
  uint64_t deadline_turn_ = 0;                // a deadline of an earlier turn does nothing
  std::optional<Clock::time_point> ends_at_;  // nothing: no deadline is set
  Milliseconds when_draining_{0};
  bool timed_out_ = false;
  bool writing_ = false;
  bool answer_begun_ = false;       // a part of this request's answer was written
  bool interim_responses_ = false;  // its client understands them
  bool sending_interim_ = false;    // through TLS, which takes one write at a time
  int64_t written_bytes_ = 0;       // given to the kernel
  int64_t taken_before_ = 0;        // taken_bytes() when the deadline was scheduled, while draining
  asio::steady_timer time_limit_;   // for the request that is being answered
  uint64_t limit_turn_ = 0;
  bool over_time_ = false;     // time_limit_ has passed
  asio::steady_timer signal_;  // never expires: cancelling it wakes the coroutine
  bool signalled_ = false;
  asio::cancellation_signal watch_cancel_;
  bool watching_ = false;
  bool end_seen_ = false;     // the watch saw that the client sends no more
  bool gone_ = false;         // the client left, or the server stops
  std::shared_ptr<Job> job_;  // while a worker has the request
  std::shared_ptr<Generation> generation_;
  std::shared_ptr<FileUpload> upload_;  // for the last request
};

inline asio::awaitable<void> Session::run() {
  if (!co_await shake_hands()) co_return;
  while (!gone_) {
    auto exchange = co_await read_request();
    if (!exchange) break;
    if (!co_await answer(*exchange)) break;
  }
  co_await say_goodbye();
}

// False: the TLS handshake failed. A client that speaks plain HTTP gets an answer in it.
inline asio::awaitable<bool> Session::shake_hands() {
  if (!stream_.encrypted()) co_return true;
  error_code error;
  arm(shared_.options.receive_timeout, kDrainHandshake);
  co_await stream_.tls().async_handshake(ssl::stream_base::server, token(error));
  disarm();
  if (!error) co_return true;
  if (gone_) co_return false;
  shared_.api.log().debug("a TLS handshake failed: " + (timed_out_ ? "it took too long" : openssl_reason(error)));
  stream_.give_up_tls();
  // The client was sent an alert for any other failure. Its bytes are read, because a closed socket would otherwise
  // reset the connection.
  if (is_plain_http(error)) {
    HttpResponse response = error_response(http_error(400, "This port takes HTTPS alone: write https:// in the URL."));
    co_await close_with(Exchange(shared_.api), std::move(response));
  } else if (!timed_out_ && !is_end_of_stream(error)) {
    co_await linger();
  }
  co_return false;
}

// Tells a TLS client that its data are complete, without waiting for its goodbye.
inline asio::awaitable<void> Session::say_goodbye() {
  if (!stream_.encrypted() || gone_) co_return;
  SSL* native = stream_.tls().native_handle();
  SSL_set_shutdown(native, SSL_get_shutdown(native) | SSL_RECEIVED_SHUTDOWN);
  error_code ignored;
  arm(kGoodbye, kDrainLinger);
  co_await stream_.tls().async_shutdown(token(ignored));
  disarm();
}

inline void Session::stop() {
  error_code ignored;
  gone_ = true;
  disarm();
  deadline_.cancel();
  time_limit_.cancel();
  stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  stream_.socket().close(ignored);
  cancel_job();
  notify();
}

}  // namespace volley::serve::transport
