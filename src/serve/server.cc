// The transport. All of Asio and Beast is in this file, which is by far the slowest one to compile.
//
// Threads: `io_threads` run one io_context. Each connection is a coroutine on a strand of its own, so a Session's
// members need no lock. The listener and the set of sessions live on the control strand. Work that takes long goes to a
// pool.
#include "serve/server.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "serve/api.h"

namespace volley::serve {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Milliseconds = std::chrono::milliseconds;

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kWriteBytes = size_t{64} << 10;
// The kernel would take megabytes for a client that reads nothing, and hide for long that it does not read.
constexpr int kSendBufferBytes = 256 << 10;
constexpr Milliseconds kLinger{2000};        // for a client to stop sending what nobody reads
constexpr Milliseconds kCancelGrace{1000};   // for cancelled requests to tell their clients
constexpr Milliseconds kAcceptBackoff{100};  // when the process is out of file descriptors

auto token(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

// What every session shares.
struct Shared {
  Shared(Engine& engine, const ServerOptions& server_options)
      : options(server_options), api(engine, options), workers(static_cast<size_t>(options.worker_threads)) {}

  const ServerOptions options;
  Api api;
  asio::thread_pool workers;
  std::atomic<bool> draining{false};
};

// One connection: reads a request, answers it, and again. Created shared; kept alive by its coroutine.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared)
      : shared_(shared),
        socket_(std::move(socket)),
        buffer_(shared.options.max_header_bytes + kReadBytes),
        deadline_(socket_.get_executor()),
        signal_(socket_.get_executor(), asio::steady_timer::time_point::max()) {}

  asio::any_io_executor executor() { return socket_.get_executor(); }

  asio::awaitable<void> run();

  // The rest: on the strand.
  void drain() {
    if (idle_) interrupt();
  }
  void cancel_generation() {
    if (generation_) generation_->cancel();
  }
  void stop();

 private:
  asio::awaitable<bool> wait_for_bytes();
  asio::awaitable<std::optional<HttpRequest>> read_request();
  asio::awaitable<void> refuse(error_code error);
  asio::awaitable<bool> answer(HttpRequest request);
  asio::awaitable<Api::Reply> handle(const HttpRequest& request);
  asio::awaitable<bool> send_response(HttpResponse response);
  asio::awaitable<bool> send_generation();
  asio::awaitable<bool> send_output(Generation::Output output, bool& streaming);
  asio::awaitable<bool> write(std::string_view bytes);
  asio::awaitable<void> linger();

  void watch();
  asio::awaitable<void> end_watch();  // after generation_ was reset
  asio::awaitable<void> wait_signal();
  void notify();
  // Every operation on the socket ends with an error.
  void interrupt() {
    error_code closed_already;
    socket_.cancel(closed_already);
  }
  void arm(Milliseconds timeout);
  void disarm() { ++deadline_turn_; }
  Framing framing(bool chunked) const;

  Shared& shared_;
  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;  // bytes received and not yet parsed: the next request of a pipelining client
  asio::steady_timer deadline_;
  uint64_t deadline_turn_ = 0;  // a deadline that was set for an earlier turn does nothing
  bool timed_out_ = false;
  asio::steady_timer signal_;  // never expires: cancelling it wakes the coroutine
  bool signalled_ = false;
  asio::cancellation_signal watch_cancel_;
  bool watching_ = false;
  bool idle_ = false;       // between requests
  bool gone_ = false;       // nobody to answer: the client left, or the server stops
  bool keep_alive_ = true;  // of the request being answered
  bool http_1_0_ = false;
  bool head_only_ = false;
  std::string path_label_ = "other";
  std::shared_ptr<Generation> generation_;
};

asio::awaitable<void> Session::run() {
  while (!gone_) {
    auto request = co_await read_request();
    if (!request) break;
    if (!co_await answer(std::move(*request))) break;
  }
}

void Session::stop() {
  error_code ignored;
  gone_ = true;
  deadline_.cancel();
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  notify();
}

// False: the connection ended, timed out or is drained before a new request began.
asio::awaitable<bool> Session::wait_for_bytes() {
  if (buffer_.size() > 0) co_return true;
  if (shared_.draining) co_return false;
  error_code error;
  idle_ = true;
  arm(shared_.options.idle_timeout);
  const size_t size = co_await socket_.async_read_some(buffer_.prepare(4096), token(error));
  idle_ = false;
  buffer_.commit(size);
  co_return !error;
}

// Nothing: the connection is to be closed; what the client could be told, it was.
asio::awaitable<std::optional<HttpRequest>> Session::read_request() {
  if (!co_await wait_for_bytes()) co_return std::nullopt;
  arm(shared_.options.request_timeout);
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  parser.body_limit(shared_.options.max_body_bytes);
  error_code error;
  co_await http::async_read_header(socket_, buffer_, parser, token(error));
  if (!error) {
    http_1_0_ = parser.get().version() < 11;
    if (boost::beast::iequals(parser.get()[http::field::expect], "100-continue") && !parser.is_done()) {
      if (!co_await write("HTTP/1.1 100 Continue\r\n\r\n")) co_return std::nullopt;
      arm(shared_.options.request_timeout);
    }
    co_await http::async_read(socket_, buffer_, parser, token(error));
  }
  disarm();
  if (error) {
    co_await refuse(error);
    co_return std::nullopt;
  }
  keep_alive_ = parser.keep_alive();
  auto& message = parser.get();
  HttpRequest request{std::string(message.method_string()), std::string(message.target()),
                      std::string(message[http::field::content_type]), std::move(message.body())};
  head_only_ = request.method == "HEAD";
  path_label_ = path_label(request);
  co_return std::optional<HttpRequest>(std::move(request));
}

// Answers what could not be read as a request, if anybody is left to listen. Where the next request would begin is not
// known after that, so the connection ends.
asio::awaitable<void> Session::refuse(error_code error) {
  HttpResponse response;
  if (timed_out_) {
    response = error_response(http_error(408, "The request did not arrive in time. Send it again."));
  } else if (error == http::error::body_limit) {
    response = error_response(
        http_error(413, "The body is larger than " + std::to_string(shared_.options.max_body_bytes) + " bytes."));
  } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    response = error_response(
        http_error(431, "The headers are larger than " + std::to_string(shared_.options.max_header_bytes) + " bytes."));
  } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
             error != http::error::end_of_stream && error != http::error::partial_message) {
    response = error_response(http_error(400, "The bytes are not an HTTP request: " + error.message() + "."));
  } else {
    co_return;
  }
  keep_alive_ = false;
  head_only_ = false;
  path_label_ = "other";
  co_await send_response(std::move(response));
  co_await linger();
}

// True: the connection can take another request.
asio::awaitable<bool> Session::answer(HttpRequest request) {
  if (shared_.draining) {
    co_return co_await send_response(
        error_response(http_error(503, "The server is stopping. Send the request again.")));
  }
  auto reply = co_await handle(request);
  request = {};
  if (auto* response = std::get_if<HttpResponse>(&reply)) co_return co_await send_response(std::move(*response));
  generation_ = std::get<std::shared_ptr<Generation>>(std::move(reply));
  watch();
  const bool sent = co_await send_generation();
  generation_.reset();
  co_await end_watch();
  co_return sent && !gone_;
}

asio::awaitable<Api::Reply> Session::handle(const HttpRequest& request) {
  auto wake = [weak = weak_from_this(), executor = executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->notify();
    });
  };
  if (!Api::takes_long(request)) co_return shared_.api.handle(request, wake);
  std::optional<Api::Reply> reply;
  bool ready = false;  // of the strand
  asio::post(shared_.workers, [&, self = shared_from_this()] {
    reply = shared_.api.handle(request, wake);
    asio::post(self->executor(), [&ready, self] {
      ready = true;
      self->notify();
    });
  });
  // Even if the connection ends meanwhile: the worker uses this frame's variables.
  while (!ready) co_await wait_signal();
  co_return std::move(*reply);
}

asio::awaitable<bool> Session::send_response(HttpResponse response) {
  const Framing how = framing(false);
  std::string bytes = response_head(response, how);
  if (!head_only_) bytes += response.body;
  shared_.api.metrics().count_response(path_label_, response.status);
  response = {};
  const bool written = co_await write(bytes);
  co_return (written && how.keep_alive);
}

// The answer of a generation, until its end or until there is nobody to send it to.
asio::awaitable<bool> Session::send_generation() {
  bool streaming = false;
  while (!gone_) {
    Generation::Output output = generation_->take();
    const bool done = output.done;
    if (!co_await send_output(std::move(output), streaming)) co_return false;
    if (done) co_return keep_alive_ && !(streaming && http_1_0_);
    co_await wait_signal();
  }
  co_return false;
}

// The head of a stream waits for its first news: what fails before gets a status of its own.
asio::awaitable<bool> Session::send_output(Generation::Output output, bool& streaming) {
  if (output.response) co_return co_await send_response(std::move(*output.response));
  if (output.events.empty() && !output.done) co_return true;
  const Framing how = framing(true);
  std::string bytes;
  if (!streaming) {
    streaming = true;
    HttpResponse response;
    response.content_type = "text/event-stream; charset=utf-8";
    response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    bytes = response_head(response, how);
    shared_.api.metrics().count_response(path_label_, response.status);
  }
  if (!output.events.empty()) bytes += body_piece(output.events, how);
  output.events = {};
  if (output.done) bytes += body_end(how);
  co_return co_await write(bytes);
}

// In slices, so that a slow but steady reader of a large answer has time in proportion to its size.
asio::awaitable<bool> Session::write(std::string_view bytes) {
  error_code error;
  while (!bytes.empty() && !error && !gone_) {
    const std::string_view slice = bytes.substr(0, kWriteBytes);
    arm(shared_.options.write_timeout);
    co_await asio::async_write(socket_, asio::buffer(slice.data(), slice.size()), token(error));
    disarm();
    bytes.remove_prefix(slice.size());
  }
  co_return !error && !gone_;
}

// Closing a socket while bytes arrive resets the connection, and the client may lose the answer it was sent. So read on
// for a moment, into nothing.
asio::awaitable<void> Session::linger() {
  error_code error;
  socket_.shutdown(tcp::socket::shutdown_send, error);
  arm(kLinger);
  while (!error && !gone_) {
    buffer_.consume(buffer_.size());
    co_await socket_.async_read_some(buffer_.prepare(kReadBytes), token(error));
  }
}

// While an answer is on its way, reads what the client sends: to learn at once that it is gone. What comes is kept as
// the start of the next request; a client that sends more than fits is no longer watched.
void Session::watch() {
  if (gone_ || buffer_.max_size() - buffer_.size() < kReadBytes / 2) return;
  watching_ = true;
  socket_.async_read_some(
      buffer_.prepare(4096),
      asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](error_code error, size_t size) {
        self->watching_ = false;
        self->buffer_.commit(size);
        if (!error && self->generation_) {
          self->watch();
          return;
        }
        // Otherwise end_watch() may be waiting for this very call, which cancelling came too late for.
        if (error && error != asio::error::operation_aborted) {
          self->gone_ = true;
          self->interrupt();  // a write that waits for the client
          if (self->generation_) self->generation_->abandon();
        }
        self->notify();
      }));
}

asio::awaitable<void> Session::end_watch() {
  while (watching_) {
    watch_cancel_.emit(asio::cancellation_type::terminal);
    co_await wait_signal();
  }
}

asio::awaitable<void> Session::wait_signal() {
  while (!signalled_) {
    error_code error;
    co_await signal_.async_wait(token(error));
  }
  signalled_ = false;
}

void Session::notify() {
  signalled_ = true;
  signal_.cancel();
}

// Ends the socket's operations with an error if they last longer.
void Session::arm(Milliseconds timeout) {
  const uint64_t turn = ++deadline_turn_;
  timed_out_ = false;
  deadline_.expires_after(timeout);
  deadline_.async_wait([self = shared_from_this(), turn](error_code error) {
    if (error || turn != self->deadline_turn_) return;
    self->timed_out_ = true;
    self->interrupt();
  });
}

Framing Session::framing(bool chunked) const {
  Framing how;
  how.http_1_0 = http_1_0_;
  how.keep_alive = keep_alive_ && !shared_.draining && !(chunked && http_1_0_);
  how.chunked = chunked;
  how.now = std::time(nullptr);
  return how;
}

Result<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return invalid_argument("\"" + host + "\" is not an address to listen on: " + error.message() + ".");
  }
  return found.begin()->endpoint();
}

}  // namespace

class Server::Impl {
 public:
  Impl(Engine& engine, const ServerOptions& options)
      : shared_(engine, options), control_(asio::make_strand(io_)), acceptor_(control_), timer_(control_) {}

  ~Impl() {
    stop();
    wait();
  }

  Status listen();
  uint16_t port() const { return port_; }
  void drain(Milliseconds deadline);
  void stop();
  void wait();

 private:
  asio::awaitable<void> accept();
  void add(tcp::socket socket);
  void refuse(tcp::socket socket);
  void stop_accepting();
  void log_failure(std::exception_ptr failure) const;
  // Runs `action` for each session, on the session's strand.
  void for_sessions(void (Session::*action)());

  asio::io_context io_;
  Shared shared_;
  asio::any_io_executor control_;
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;  // of drain
  uint64_t next_session_ = 0;
  std::unordered_map<uint64_t, std::weak_ptr<Session>> sessions_;  // of the control strand
  uint16_t port_ = 0;
  std::mutex join_mutex_;
  std::vector<std::thread> threads_;  // guarded by join_mutex_
};

Status Server::Impl::listen() {
  const ServerOptions& options = shared_.options;
  VOLLEY_ASSIGN(const tcp::endpoint endpoint, resolve(io_, options.host, options.port));
  error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error{ErrorCode::kUnavailable, "cannot listen on " + options.host + ":" + std::to_string(options.port) +
                                              ": " + error.message() + ". Choose another port or stop what uses it."};
  }
  port_ = acceptor_.local_endpoint().port();
  asio::co_spawn(control_, accept(), asio::detached);
  const std::lock_guard lock(join_mutex_);
  for (int i = 0; i < options.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  if (options.log) options.log->info("listening on {}:{}", options.host, port_);
  return {};
}

asio::awaitable<void> Server::Impl::accept() {
  while (acceptor_.is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor_.async_accept(asio::any_io_executor(asio::make_strand(io_)), token(error));
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) co_return;
    if (error) {
      if (shared_.options.log) shared_.options.log->warn("cannot accept a connection: {}", error.message());
      asio::steady_timer backoff(control_, kAcceptBackoff);
      co_await backoff.async_wait(token(error));
    } else if (sessions_.size() >= static_cast<size_t>(shared_.options.max_connections)) {
      refuse(std::move(socket));
    } else {
      add(std::move(socket));
    }
  }
}

void Server::Impl::add(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);                  // every token of a stream is a small write
  socket.set_option(asio::socket_base::keep_alive(true), ignored);  // finds dead clients of requests that still wait
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  const uint64_t id = next_session_++;
  const auto session = std::make_shared<Session>(std::move(socket), shared_);
  sessions_.emplace(id, session);
  shared_.api.metrics().count_connections(1);
  const auto ended = [this, id, session](std::exception_ptr failure) {
    session->stop();
    shared_.api.metrics().count_connections(-1);
    if (failure) log_failure(failure);
    asio::post(control_, [this, id] {
      sessions_.erase(id);
      if (shared_.draining && sessions_.empty()) timer_.cancel();
    });
  };
  asio::co_spawn(
      session->executor(), [session] { return session->run(); }, ended);
}

// One write that fits into the socket's buffer, without waiting for the client.
void Server::Impl::refuse(tcp::socket socket) {
  error_code ignored;
  Framing how;
  how.keep_alive = false;
  how.now = std::time(nullptr);
  const HttpResponse response = error_response(http_error(503, "Too many connections are open. Try again later."));
  const std::string bytes = response_head(response, how) + response.body;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(bytes), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  shared_.api.metrics().count_response("other", response.status);
}

// Only this connection is lost: out of memory, or a bug.
void Server::Impl::log_failure(std::exception_ptr failure) const {
  try {
    std::rethrow_exception(std::move(failure));
  } catch (const std::exception& error) {
    if (shared_.options.log) shared_.options.log->error("a connection was ended by an exception: {}", error.what());
  }
}

void Server::Impl::for_sessions(void (Session::*action)()) {
  for (const auto& [id, weak] : sessions_) {
    const auto session = weak.lock();
    if (session) asio::post(session->executor(), [session, action] { ((*session).*action)(); });
  }
}

void Server::Impl::stop_accepting() {
  error_code ignored;
  shared_.draining = true;
  acceptor_.close(ignored);
}

void Server::Impl::drain(Milliseconds deadline) {
  asio::post(control_, [this, deadline] {
    stop_accepting();
    for_sessions(&Session::drain);
    if (sessions_.empty()) return;
    timer_.expires_after(deadline);
    timer_.async_wait([this](error_code error) {
      if (error) return;
      for_sessions(&Session::cancel_generation);
      timer_.expires_after(kCancelGrace);
      timer_.async_wait([this](error_code grace_error) {
        if (!grace_error) for_sessions(&Session::stop);
      });
    });
  });
}

void Server::Impl::stop() {
  asio::post(control_, [this] {
    stop_accepting();
    timer_.cancel();
    for_sessions(&Session::stop);
  });
}

// The threads end by themselves: without acceptor, sessions and timers the io_context has no work left.
void Server::Impl::wait() {
  const std::lock_guard lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  shared_.workers.join();
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(Engine& engine, ServerOptions options) {
  if (options.served_model_names.empty()) return invalid_argument("the server needs at least one model name to serve");
  if (options.io_threads < 1 || options.worker_threads < 1) {
    return invalid_argument("the server needs at least one I/O thread and one worker thread");
  }
  auto impl = std::make_unique<Impl>(engine, options);
  VOLLEY_RETURN_IF_ERROR(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const {
  return impl_->port();
}
void Server::drain(Milliseconds deadline) {
  impl_->drain(deadline);
}
void Server::stop() {
  impl_->stop();
}
void Server::wait() {
  impl_->wait();
}

}  // namespace volley::serve
