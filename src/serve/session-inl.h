// One connection of the server. Included by server.cc alone: files with Asio and Beast in them are by far the slowest
// to compile, so there is one.
//
// Threads: each connection is a coroutine on a strand of its own, so a Session's members need no lock. Work that takes
// long goes to a pool.
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "serve/api.h"
#include "serve/exchange.h"
#include "serve/request_head.h"
#include "serve/text_body-inl.h"
#include "serve/tls-inl.h"
#include "serve/workers-inl.h"

namespace volley::serve::transport {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = asio::steady_timer::clock_type;
using Milliseconds = std::chrono::milliseconds;

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kWriteBytes = size_t{64} << 10;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr Milliseconds kLinger{2000};  // for a client to stop sending what nobody reads
constexpr Milliseconds kAskAgain{50};  // see Session::expire()

// While the server drains, in place of the limits of normal times:
constexpr Milliseconds kDrainIdle{0};
constexpr Milliseconds kDrainRead{500};  // for the rest of a request that has begun to arrive
constexpr Milliseconds kDrainLinger{500};
constexpr Milliseconds kDrainHandshake{0};
constexpr Milliseconds kGoodbye{500};  // for the end of TLS to be taken, at any time
// How often a client that has only an answer to take is looked at: one that takes nothing is noticed after one to two
// of these.
constexpr Milliseconds kDrainWrite{1000};

inline auto token(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

// All but the body.
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
  request.requested_headers = header(http::field::access_control_request_headers);
  request.request_id = header("X-Request-Id");
  request.api_key = header("X-Api-Key");
  return request;
}

// `request`: what request_head() made of the message.
template <typename Message>
HeadFields head_fields(const Message& message, const HttpRequest& request) {
  const auto values = [&](http::field name) {
    std::vector<std::string_view> found;
    const auto [begin, end] = message.equal_range(name);
    std::transform(begin, end, std::back_inserter(found), [](const auto& field) { return field.value(); });
    return found;
  };
  return {message.version() < 11, message.count(http::field::content_length) > 0,
          values(http::field::transfer_encoding), values(http::field::host), request.host};
}

// The rest of a request that is refused already is read, and the connection kept, where it costs no more than this.
template <typename Parser>
bool is_short(const Parser& parser) {
  return parser.is_done() || parser.content_length_remaining().value_or(kReadBytes + 1) <= kReadBytes;
}

inline HttpResponse stopping_response() {
  return error_response(http_error(503, "The server is stopping. Send the request again."));
}

// What every session shares.
struct Shared {
  explicit Shared(const ServerOptions& server_options)
      : options(server_options), api(options), workers(options.worker_threads) {}

  const ServerOptions options;
  std::shared_ptr<ssl::context> tls;  // null: plain HTTP; constant once the server listens
  Api api;
  AllowedHosts hosts;  // constant once the server listens
  std::atomic<bool> draining{false};
  std::atomic<size_t> body_bytes{0};  // see ServerOptions::max_total_body_bytes
  Workers workers;                    // last: what they still do uses the rest
};

// What one connection holds of a body, counted among all. Goes with the body to the worker that reads it.
class BodyShare {
 public:
  explicit BodyShare(Shared& shared) : shared_(shared) {}
  ~BodyShare() { release(); }
  BodyShare(BodyShare&& other) noexcept : shared_(other.shared_), held_(std::exchange(other.held_, 0)) {}
  BodyShare& operator=(BodyShare&&) = delete;

  // False: all connections together would hold too much. The share is given back then: the body is to be dropped.
  bool grow_to(size_t size) {
    const size_t limit = std::max(shared_.options.max_total_body_bytes, shared_.options.max_body_bytes);
    const size_t more = size - held_;
    size_t all = shared_.body_bytes.load();
    while (all + more <= limit) {
      if (!shared_.body_bytes.compare_exchange_weak(all, all + more)) continue;
      held_ = size;
      shared_.api.metrics().count_body_bytes(static_cast<int64_t>(more));
      return true;
    }
    release();
    return false;
  }
  void release() {
    if (held_ == 0) return;
    shared_.api.metrics().count_body_bytes(-static_cast<int64_t>(held_));
    shared_.body_bytes.fetch_sub(std::exchange(held_, 0));
  }

 private:
  Shared& shared_;
  size_t held_ = 0;
};

// One connection: reads a request, answers it, and again. Created shared; kept alive by its coroutine.
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

  // The rest: on the strand.
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
  using PieceParser = http::request_parser<PieceBody>;
  // What is to be answered before the connection is closed, instead of reading the body.
  using Refusal = std::optional<HttpResponse>;

  asio::awaitable<bool> shake_hands();
  asio::awaitable<void> say_goodbye();
  asio::awaitable<bool> wait_for_bytes();
  asio::awaitable<std::optional<Exchange>> read_request();
  Refusal refusal(const Parser& parser, const HttpRequest& request, bool asks) const;
  asio::awaitable<Refusal> read_body(Parser& parser, error_code& error);
  asio::awaitable<Refusal> read_upload(Parser& head, const HttpRequest& request, error_code& error);
  template <typename Work>
  asio::awaitable<void> on_worker(Work work);
  asio::awaitable<bool> send_file(const OpenFile& file);
  asio::awaitable<void> refuse(error_code error, size_t body_limit);
  asio::awaitable<void> close_with(Exchange exchange, HttpResponse response);
  asio::awaitable<bool> answer(Exchange& exchange);
  asio::awaitable<Api::Reply> handle(Exchange& exchange);
  void cancel_job();
  asio::awaitable<bool> send_response(Exchange& exchange, HttpResponse response);
  asio::awaitable<bool> send_generation(Exchange& exchange);
  void limit_time();
  asio::awaitable<bool> write(std::string_view bytes);
  asio::awaitable<void> linger();

  void watch();
  void watch_for_reset();
  void send_interim();
  void end_of_watch(bool client_left);
  void leave();
  asio::awaitable<void> end_watch();  // after job_ and generation_ were reset
  asio::awaitable<void> wait_signal();
  void notify();
  // Every operation on the socket ends with an error.
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
  BodyShare body_share_;
  boost::beast::flat_buffer buffer_;  // bytes received and not yet parsed: the next request of a pipelining client
  asio::steady_timer deadline_;
  uint64_t deadline_turn_ = 0;                // a deadline that was set for an earlier turn does nothing
  std::optional<Clock::time_point> ends_at_;  // nothing: no deadline is set
  Milliseconds when_draining_{0};
  bool timed_out_ = false;
  bool writing_ = false;
  bool answer_begun_ = false;       // something of this request's answer was written
  bool interim_responses_ = false;  // its client understands them
  bool sending_interim_ = false;    // through TLS, which takes one write at a time
  int64_t written_bytes_ = 0;       // given to the kernel
  int64_t taken_before_ = 0;        // taken_bytes() when the deadline was scheduled, while draining
  asio::steady_timer time_limit_;   // of the request that is being answered
  uint64_t limit_turn_ = 0;
  bool over_time_ = false;     // it is past that
  asio::steady_timer signal_;  // never expires: cancelling it wakes the coroutine
  bool signalled_ = false;
  asio::cancellation_signal watch_cancel_;
  bool watching_ = false;
  bool gone_ = false;         // nobody to answer: the client left, or the server stops
  std::shared_ptr<Job> job_;  // while a worker has the request
  std::shared_ptr<Generation> generation_;
  std::shared_ptr<FileUpload> upload_;  // of the request that was read last
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

// False: there will be no TLS with this client. One that speaks plain HTTP is told so in its language.
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
  // Any other failure has sent the client an alert: it is read before a closed socket would reset the connection.
  if (is_plain_http(error)) {
    HttpResponse response = error_response(http_error(400, "This port takes HTTPS alone: write https:// in the URL."));
    co_await close_with(Exchange(shared_.api), std::move(response));
  } else if (!timed_out_ && !is_end_of_stream(error)) {
    co_await linger();
  }
  co_return false;
}

// Tells a client of TLS that nothing was cut off. Does not wait for its goodbye.
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

// False: the connection ended, timed out or is drained before a new request began. An empty line before it counts as
// nothing: some clients send one behind a body.
inline asio::awaitable<bool> Session::wait_for_bytes() {
  constexpr std::string_view kEmptyLine = "\r\n";
  const auto received = [this] {
    return std::string_view(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  };
  for (bool skipped = false;;) {
    if (!skipped && received().starts_with(kEmptyLine)) {
      buffer_.consume(kEmptyLine.size());
      skipped = true;
    }
    if (!received().empty() && (skipped || received() != kEmptyLine.substr(0, 1))) co_return true;
    if (shared_.draining) co_return false;
    error_code error;
    arm(shared_.options.idle_timeout, kDrainIdle);
    const size_t size = co_await stream_.async_read_some(buffer_.prepare(4096), token(error));
    buffer_.commit(size);
    if (error) co_return false;
  }
}

// Nothing: the connection is to be closed; what the client could be told, it was.
inline asio::awaitable<std::optional<Exchange>> Session::read_request() {
  if (!co_await wait_for_bytes()) co_return std::nullopt;
  arm(shared_.options.receive_timeout, kDrainRead);
  body_share_.release();
  upload_.reset();
  Parser parser;
  parser.header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  const size_t body_limit = shared_.options.max_body_bytes;
  parser.body_limit(std::max(body_limit, shared_.api.max_upload_bytes()));
  error_code error;
  co_await http::async_read_header(stream_, buffer_, parser, token(error));
  HttpRequest request;
  Refusal refused;
  bool upload = false, keep_alive = false;
  if (!error || error == http::error::body_limit) {  // what the limit is, the head says
    request = request_head(parser.get());
    upload = shared_.api.takes_upload(request);
  }
  if (!error) {
    keep_alive = parser.keep_alive();
    if (!upload) parser.body_limit(body_limit);
    if (!upload && parser.content_length().value_or(0) > body_limit) error = http::error::body_limit;
  }
  const bool http_1_0 = parser.get().version() < 11;
  if (!error) {
    const bool asks = boost::beast::iequals(parser.get()[http::field::expect], "100-continue") && !parser.is_done();
    refused = refusal(parser, request, asks);
    if (!refused && asks) {
      if (!co_await write(kContinue)) co_return std::nullopt;
      arm(shared_.options.receive_timeout, kDrainRead);
    }
    // Two statements: gcc 12 awaits both sides of a conditional expression.
    if (!refused && upload) refused = co_await read_upload(parser, request, error);
    if (!refused && !upload) refused = co_await read_body(parser, error);
  }
  disarm();
  if (refused || error) upload_.reset();
  if (refused) {
    co_await close_with({shared_.api, std::move(request), http_1_0, false}, std::move(*refused));
    co_return std::nullopt;
  }
  if (error) {
    co_await refuse(error, upload ? std::max(body_limit, shared_.api.max_upload_bytes()) : body_limit);
    co_return std::nullopt;
  }
  if (!upload) request.body = std::move(parser.get().body());
  co_return std::optional<Exchange>(std::in_place, shared_.api, std::move(request), http_1_0, keep_alive);
}

// By the head alone. What is refused although its end is known and near is not refused here, but when it is handled:
// then the connection can go on.
inline Session::Refusal Session::refusal(const Parser& parser, const HttpRequest& request, bool asks) const {
  if (const auto error = framing_error(head_fields(parser.get(), request))) return error_response(*error);
  if (!shared_.hosts.allow(request.host)) return error_response(host_not_allowed(request.host));
  auto admitted = shared_.api.admit(request);
  // Only a POST has a use for a body.
  if (std::holds_alternative<Route>(admitted) && request.method != "POST" && !is_short(parser)) {
    admitted = error_response(http_error(413, "This address takes no body. Send the request without one."));
  }
  auto* response = std::get_if<HttpResponse>(&admitted);
  return response && (asks || !is_short(parser)) ? Refusal(std::move(*response)) : std::nullopt;
}

inline asio::awaitable<Session::Refusal> Session::read_body(Parser& parser, error_code& error) {
  parser.eager(true);
  while (!error && !parser.is_done()) {
    co_await http::async_read_some(stream_, buffer_, parser, token(error));
    if (!body_share_.grow_to(parser.get().body().size())) {
      std::string().swap(parser.get().body());  // an assignment would keep its memory
      co_return error_response(http_error(503, "Too many large requests are arriving at once. Try again in a moment."));
    }
  }
  co_return std::nullopt;
}

// A file goes to the disk as it comes, a piece at a time, by a worker: a disk may be slow. A client that sends each
// piece in time may take as long as it needs.
inline asio::awaitable<Session::Refusal> Session::read_upload(Parser& head, const HttpRequest& request,
                                                              error_code& error) {
  auto begun = shared_.api.begin_upload(request);
  if (auto* refused = std::get_if<HttpResponse>(&begun)) co_return std::move(*refused);
  upload_ = std::get<0>(std::move(begun));
  if (!body_share_.grow_to(FileUpload::kPieceBytes)) {
    co_return error_response(http_error(503, "Too many large requests are arriving at once. Try again in a moment."));
  }
  PieceParser parser(std::move(head));
  parser.eager(true);
  std::string& piece = parser.get().body();
  while (!error) {
    if (!parser.is_done()) co_await http::async_read_some(stream_, buffer_, parser, token(error));
    if (error || (piece.size() < FileUpload::kPieceBytes && !parser.is_done())) continue;
    disarm();
    bool good = true;
    co_await on_worker([&] { good = upload_->feed(piece); });
    piece.clear();
    if (gone_) error = asio::error::operation_aborted;
    if (parser.is_done()) break;
    if (shared_.draining) co_return stopping_response();  // its end would get no other answer
    if (!good && !is_short(parser)) co_return upload_->failure();
    arm(shared_.options.receive_timeout, kDrainRead);
  }
  co_return std::nullopt;
}

// Waits for it, whatever becomes of the connection: `work` may use what the caller has.
template <typename Work>
asio::awaitable<void> Session::on_worker(Work work) {
  const auto done = std::make_shared<bool>(false);  // of the strand
  shared_.workers.post(true, [&work, done, weak = weak_from_this(), executor = executor()] {
    work();
    asio::post(executor, [done, weak] {
      *done = true;
      if (const auto self = weak.lock()) self->notify();
    });
  });
  while (!*done) co_await wait_signal();
}

// Answers what could not be read as a request, if anybody is left to listen. Where the next request would begin is not
// known after that, so the connection ends.
inline asio::awaitable<void> Session::refuse(error_code error, size_t body_limit) {
  HttpResponse response;
  if (timed_out_ && shared_.draining) {
    response = stopping_response();
  } else if (timed_out_) {
    response = error_response(http_error(408, "The request did not arrive in time. Send it again."));
  } else if (error == TextBody::no_memory()) {
    response = error_response(out_of_memory_error());
  } else if (error == http::error::body_limit) {
    response = error_response(http_error(413, "The body is larger than " + std::to_string(body_limit) + " bytes."));
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    response = error_response(
        http_error(431, "The headers are larger than " + std::to_string(shared_.options.max_header_bytes) + " bytes."));
  } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    response = error_response(http_error(400, "The bytes are not an HTTP request: " + error.message() + "."));
  } else {
    co_return;
  }
  co_await close_with(Exchange(shared_.api), std::move(response));
}

// The answer to a client that may still be sending.
inline asio::awaitable<void> Session::close_with(Exchange exchange, HttpResponse response) {
  co_await send_response(exchange, std::move(response));
  co_await linger();
}

// True: the connection can take another request.
inline asio::awaitable<bool> Session::answer(Exchange& exchange) {
  if (shared_.draining) {
    upload_.reset();
    co_return co_await send_response(exchange, stopping_response());
  }
  limit_time();
  answer_begun_ = false;
  interim_responses_ = !exchange.http_1_0();
  auto reply = co_await handle(exchange);
  if (auto* response = std::get_if<HttpResponse>(&reply)) {
    time_limit_.cancel();
    co_await end_watch();
    if (!gone_) co_return co_await send_response(exchange, std::move(*response));
    exchange.end(false, nullptr);
    co_return false;
  }
  generation_ = std::get<std::shared_ptr<Generation>>(std::move(reply));
  if (over_time_) generation_->expire();
  watch();
  const bool sent = co_await send_generation(exchange);
  time_limit_.cancel();
  exchange.end(sent, generation_.get());
  generation_.reset();
  co_await end_watch();
  co_return (sent && exchange.reusable() && !gone_);
}

// The reply, or why there is none: the client left, the time is up, or the server stops. A worker that is not done by
// then goes on alone until it looks at the flag.
inline asio::awaitable<Api::Reply> Session::handle(Exchange& exchange) {
  auto wake = [weak = weak_from_this(), executor = executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->notify();
    });
  };
  if (!shared_.api.takes_long(exchange.request())) {
    auto reply = shared_.api.handle(exchange.request(), wake, nullptr);
    exchange.drop_body();
    body_share_.release();
    co_return reply;
  }
  const auto job = job_ = std::make_shared<Job>();
  job->request = exchange.hand_over();
  job->upload = std::move(upload_);
  watch();
  shared_.workers.post(job->request.body.size() > kLargeBody,
                       [job, share = std::move(body_share_), wake, api = &shared_.api, weak = weak_from_this(),
                        executor = executor()]() mutable {
                         if (!job->cancelled && job->upload) {
                           job->reply = job->upload->finish();
                         } else if (!job->cancelled) {
                           job->reply = api->handle(job->request, wake, &job->cancelled);
                         }
                         job->upload.reset();
                         std::string().swap(job->request.body);  // an assignment would keep its memory
                         share.release();
                         asio::post(executor, [job, weak] {
                           job->ready = true;
                           if (const auto self = weak.lock()) self->notify();
                         });
                       });
  while (!job->ready && !job->cancelled) co_await wait_signal();
  job_.reset();
  if (over_time_) co_return error_response(timeout_error());
  if (job->cancelled || !job->reply) co_return stopping_response();
  co_return std::move(*job->reply);
}

inline void Session::cancel_job() {
  if (!job_) return;
  job_->cancelled = true;
  notify();
}

inline asio::awaitable<bool> Session::send_response(Exchange& exchange, HttpResponse response) {
  const auto file = exchange.request().method == "HEAD" ? nullptr : response.file;
  const std::string bytes = exchange.whole(std::move(response), shared_.draining);
  bool written = co_await write(bytes);
  if (written && file) written = co_await send_file(*file);
  exchange.end(written, nullptr);
  co_return (written && exchange.reusable());
}

// False: the client left, or the disk failed; the connection ends then, because more bytes were announced.
inline asio::awaitable<bool> Session::send_file(const OpenFile& file) {
  std::string piece;
  for (size_t sent = 0; sent < file.bytes && !gone_; sent += piece.size()) {
    size_t got = 0;
    piece.resize(std::min(file.bytes - sent, FileUpload::kPieceBytes));
    co_await on_worker([&] {
      const auto read = read_at(file, sent, piece.data(), piece.size(), "a file");
      got = read.ok() ? *read : 0;
    });
    if (got < piece.size() || !co_await write(piece)) co_return false;
  }
  co_return !gone_;
}

// The answer of a generation, until its end or until there is nobody to send it to.
inline asio::awaitable<bool> Session::send_generation(Exchange& exchange) {
  while (!gone_) {
    Generation::Output output = generation_->take();
    const bool done = output.done;
    const std::string bytes = exchange.piece(std::move(output), shared_.draining);
    if (!co_await write(bytes)) co_return false;
    if (done) co_return true;
    co_await wait_signal();
  }
  co_return false;
}

inline void Session::limit_time() {
  over_time_ = false;
  if (shared_.options.request_timeout.count() == 0) return;
  time_limit_.expires_after(shared_.options.request_timeout);
  // Cancelling comes too late for a call that is on its way already: it would find the next request.
  time_limit_.async_wait([self = shared_from_this(), turn = ++limit_turn_](error_code error) {
    if (error || turn != self->limit_turn_) return;
    self->over_time_ = true;
    if (self->generation_) self->generation_->expire();
    self->cancel_job();
    self->notify();
  });
}

// In slices, so that a slow but steady reader of a large answer has time in proportion to its size.
// True: the kernel has taken all of it, whatever became of the client since then.
inline asio::awaitable<bool> Session::write(std::string_view bytes) {
  error_code error;
  if (sending_interim_) {
    arm(shared_.options.write_timeout, kDrainWrite);  // a client that reads nothing keeps that one waiting, too
    while (sending_interim_) co_await wait_signal();
    disarm();
    notify();  // who waits next looks at what the signals were for
  }
  writing_ = true;
  if (!bytes.empty()) answer_begun_ = true;
  while (!bytes.empty() && !error && !gone_) {
    size_t slice = std::min(bytes.size(), kWriteBytes);
    arm(shared_.options.write_timeout, kDrainWrite);
    while (slice > 0 && !error && !gone_) {
      const size_t size = co_await stream_.async_write_some(asio::buffer(bytes.data(), slice), token(error));
      bytes.remove_prefix(size);
      slice -= size;
      written_bytes_ += static_cast<int64_t>(size);
    }
    disarm();
  }
  writing_ = false;
  co_return bytes.empty();
}

// Closing a socket while bytes arrive resets the connection, and the client may lose the answer it was sent. So read on
// for a moment, into nothing.
inline asio::awaitable<void> Session::linger() {
  error_code error;
  co_await say_goodbye();
  tcp::socket& socket = stream_.socket();  // TLS is over by now
  socket.shutdown(tcp::socket::shutdown_send, error);
  arm(kLinger, kDrainLinger);
  while (!error && !gone_) {
    buffer_.consume(buffer_.size());
    co_await socket.async_read_some(buffer_.prepare(kReadBytes), token(error));
  }
}

// While an answer is on its way, reads what the client sends: to learn at once that it is gone. What comes is kept as
// the start of the next request; a client that sends more than fits is no longer watched.
inline void Session::watch() {
  if (gone_ || watching_ || buffer_.max_size() - buffer_.size() < kReadBytes / 2) return;
  watching_ = true;
  stream_.async_read_some(
      buffer_.prepare(4096),
      asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](error_code error, size_t size) {
        self->watching_ = false;
        self->buffer_.commit(size);
        const bool answering = self->generation_ || self->job_;
        if (answering && !error) {
          self->watch();
        } else if (answering && is_end_of_stream(error)) {
          self->watch_for_reset();
        } else {
          // An end that comes when the answer is ready is no reason not to send it.
          self->end_of_watch(error && error != asio::error::operation_aborted && !is_end_of_stream(error));
        }
      }));
}

// The client sends nothing more. Whether it still reads, its end of stream does not say: it is gone if it resets the
// connection when bytes come. The answer's first bytes may be far, so one that has not begun is preceded by an interim
// response, which clients of HTTP/1.1 pass over.
inline void Session::watch_for_reset() {
  watching_ = true;
  stream_.socket().async_wait(
      tcp::socket::wait_error,
      asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](error_code error) {
        self->watching_ = false;
        self->end_of_watch(error != asio::error::operation_aborted);
      }));
  if (!answer_begun_ && interim_responses_) send_interim();
}

inline void Session::send_interim() {
  if (stream_.encrypted()) {
    sending_interim_ = true;
    stream_.async_write_some(asio::buffer(kContinue), [self = shared_from_this()](error_code error, size_t size) {
      self->sending_interim_ = false;
      self->written_bytes_ += static_cast<int64_t>(size);
      if (error) self->leave();
      self->notify();
    });
    return;
  }
  const ssize_t sent =
      ::send(stream_.socket().native_handle(), kContinue.data(), kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) written_bytes_ += sent;
  // Without room for so little the client reads nothing; with room for a part of it, nothing can follow.
  if (sent >= 0 ? static_cast<size_t>(sent) != kContinue.size() : errno != EAGAIN) leave();
}

// end_watch() may be waiting for this very call, which cancelling came too late for.
inline void Session::end_of_watch(bool client_left) {
  if (client_left) leave();
  notify();
}

// There is nobody to answer any more.
inline void Session::leave() {
  gone_ = true;
  interrupt();  // a write that waits for the client
  if (generation_) generation_->abandon();
  cancel_job();
}

// A read through TLS has several steps, and a cancellation that comes between two of them is lost. Then the deadline
// interrupts it: the client may send the rest of what it has begun much later, or never.
inline asio::awaitable<void> Session::end_watch() {
  if (!watching_) co_return;
  arm(kAskAgain, kAskAgain);
  while (watching_) {
    watch_cancel_.emit(asio::cancellation_type::terminal);
    co_await wait_signal();
  }
  disarm();
}

inline asio::awaitable<void> Session::wait_signal() {
  while (!signalled_) {
    error_code error;
    co_await signal_.async_wait(token(error));
  }
  signalled_ = false;
}

inline void Session::notify() {
  signalled_ = true;
  signal_.cancel();
}

// Ends the socket's operations with an error if they last longer than `timeout`, or than `when_draining` from the
// moment the server drains. A write may take more of the second limit, see expire().
inline void Session::arm(Milliseconds timeout, Milliseconds when_draining) {
  timed_out_ = false;
  ends_at_ = Clock::now() + timeout;
  when_draining_ = when_draining;
  schedule();
}

inline void Session::disarm() {
  ++deadline_turn_;
  ends_at_.reset();
}

inline void Session::schedule() {
  const uint64_t turn = ++deadline_turn_;
  auto next = *ends_at_;
  if (shared_.draining) {
    next = std::min(next, Clock::now() + when_draining_);
    taken_before_ = taken_bytes();
  }
  deadline_.expires_at(next);
  deadline_.async_wait([self = shared_from_this(), turn](error_code error) {
    if (!error && turn == self->deadline_turn_) self->expire();
  });
}

// Draining waits for clients that take their answer, however slowly, and for requests that still run, but not for a
// client that only keeps the server from ending.
inline void Session::expire() {
  const bool worth_waiting = writing_ && ((generation_ && generation_->running()) || taken_bytes() != taken_before_);
  if (!worth_waiting || Clock::now() >= *ends_at_) {
    timed_out_ = true;
    interrupt();
    // An operation that is just over was not interrupted, and the next one may have no end: so until disarm().
    ends_at_ = Clock::now() + kAskAgain;
  }
  schedule();
}

// What the client's kernel has acknowledged. A socket takes the next write only when much of its buffer is free again,
// which says too late that a slow client does read.
inline int64_t Session::taken_bytes() {
  int queued = 0;
  if (!stream_.socket().is_open() || ::ioctl(stream_.socket().native_handle(), SIOCOUTQ, &queued) != 0) queued = 0;
  return written_bytes_ - queued;
}

}  // namespace volley::serve::transport
