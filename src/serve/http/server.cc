// The transport: the listener and the connections, on the control strand. `io_threads` run one io_context.
#include "serve/http/server.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "serve/http/session-inl.h"
#include "serve/http/session_answer-inl.h"
#include "serve/http/session_read-inl.h"
#include "serve/http/session_watch-inl.h"

namespace volley::serve {
namespace {

using namespace transport;  // one class in two files

// The kernel would buffer megabytes for a client that reads nothing, and hide that for long.
constexpr int kSendBufferBytes = 256 << 10;
constexpr Milliseconds kCancelGrace{1000};   // for cancelled requests to inform their clients
constexpr Milliseconds kWorkerGrace{1000};   // for workers to see that the request was given up
constexpr Milliseconds kAcceptBackoff{100};  // when the process is out of file descriptors

bool is_out_of_descriptors(const error_code& error) {
  return error == asio::error::no_descriptors || error == boost::system::errc::too_many_files_open_in_system;
}

// Says what to do about a failed listen; empty if the system's reason is enough.
std::string_view advice(const error_code& error) {
  if (error == asio::error::address_in_use) return " Choose another port or stop what uses it.";
  if (error == asio::error::access_denied) return " Choose a port from 1024 up: lower ones need special rights.";
  if (error == boost::system::errc::address_not_available) {
    return " Choose an address of this machine, or 0.0.0.0 for all of them.";
  }
  if (is_out_of_descriptors(error)) {
    return " Raise the limit of open files (ulimit -n) or close other programs.";
  }
  return "";
}

Error cannot_listen(const ServerOptions& options, const error_code& error) {
  return {ErrorCode::kUnavailable, "cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " +
                                       error.message() + "." + std::string(advice(error))};
}

// Resolves all addresses of the name: "localhost" is often both ::1 and 127.0.0.1, and clients take either.
Result<std::vector<tcp::endpoint>> resolve(asio::io_context& io, const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return invalid_argument("\"" + host + "\" is not an address to listen on: " + error.message() + ".");
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    if (std::ranges::find(endpoints, entry.endpoint()) == endpoints.end()) endpoints.push_back(entry.endpoint());
  }
  return endpoints;
}

// The machine lacks this address or IPv6; another address of the name may work.
bool is_not_ours(const error_code& error) {
  return error == boost::system::errc::address_not_available || error == asio::error::address_family_not_supported;
}

error_code listen_on(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);  // makes calls return at once
  return error;
}

// A reserved descriptor, released for a moment to inform a client when there is no other.
class SpareDescriptor {
 public:
  ~SpareDescriptor() { give_up(); }
  void take() {
    if (descriptor_ < 0) descriptor_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  void give_up() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

 private:
  int descriptor_ = -1;
};

}  // namespace

class Server::Impl {
 public:
  explicit Impl(const ServerOptions& options) : shared_(options), control_(asio::make_strand(io_)), timer_(control_) {}

  ~Impl() {
    stop();
    wait();
  }

  Status listen();
  Status attach(Engine& engine) { return shared_.api.attach(engine); }
  uint16_t port() const { return port_; }
  void drain(Milliseconds deadline);
  void stop();
  bool wait();

 private:
  error_code open_all(const std::vector<tcp::endpoint>& endpoints);
  asio::awaitable<void> accept(tcp::acceptor& acceptor);
  asio::awaitable<bool> accept_one(tcp::acceptor& acceptor);
  bool refuse_next(tcp::acceptor& acceptor);
  void add(tcp::socket socket);
  void refuse(tcp::socket socket);
  void say_who_may_ask() const;
  void stop_accepting();
  // Calls it once on the control strand, unless timer_ is cancelled or set again.
  void after(Milliseconds time, const std::function<void()>& call);
  // Runs `action` for each session, on the session's strand.
  void for_sessions(void (Session::*action)());

  asio::io_context io_;
  Shared shared_;
  asio::any_io_executor control_;
  std::deque<tcp::acceptor> acceptors_;  // one for each address of the host
  SpareDescriptor spare_;                // this and the next: on the control strand
  bool out_of_descriptors_ = false;      // and this was logged
  asio::steady_timer timer_;             // for draining
  uint64_t next_session_ = 0;
  std::unordered_map<uint64_t, std::weak_ptr<Session>> sessions_;  // on the control strand
  uint16_t port_ = 0;
  bool loopback_ = false;  // all listening addresses are loopback; constant, like the port, once it listens
  std::mutex join_mutex_;
  std::vector<std::thread> threads_;  // guarded by join_mutex_
};

// Listens on those of the endpoints that are this machine's, at least one.
error_code Server::Impl::open_all(const std::vector<tcp::endpoint>& endpoints) {
  acceptors_.clear();
  port_ = 0;
  error_code not_ours;
  for (tcp::endpoint endpoint : endpoints) {
    if (endpoint.port() == 0) endpoint.port(port_);  // any free one, but the same for all addresses
    tcp::acceptor acceptor(control_);
    const error_code error = listen_on(acceptor, endpoint);
    if (is_not_ours(error)) {
      not_ours = error;
      continue;
    }
    if (error) return error;
    port_ = acceptor.local_endpoint().port();
    acceptors_.push_back(std::move(acceptor));
  }
  return acceptors_.empty() ? not_ours : error_code();
}

Status Server::Impl::listen() {
  const ServerOptions& options = shared_.options;
  if (options.tls) {
    VOLLEY_ASSIGN(shared_.tls, make_tls_context(*options.tls));
  }
  VOLLEY_ASSIGN(const std::vector<tcp::endpoint> endpoints, resolve(io_, options.host, options.port));
  error_code error = open_all(endpoints);
  // A port that is free at one address may be taken at another.
  for (int again = 0; options.port == 0 && error == asio::error::address_in_use && again < 10; ++again) {
    error = open_all(endpoints);
  }
  if (error) return cannot_listen(options, error);
  loopback_ = std::ranges::all_of(
      acceptors_, [](const tcp::acceptor& acceptor) { return acceptor.local_endpoint().address().is_loopback(); });
  shared_.hosts = AllowedHosts(options.allowed_hosts, loopback_);
  spare_.take();
  for (tcp::acceptor& acceptor : acceptors_) asio::co_spawn(control_, accept(acceptor), asio::detached);
  const std::lock_guard lock(join_mutex_);
  for (int i = 0; i < options.io_threads; ++i) threads_.emplace_back([this] { io_.run(); });
  say_who_may_ask();
  return {};
}

void Server::Impl::say_who_may_ask() const {
  const ServerOptions& options = shared_.options;
  const std::string where = options.host + ":" + std::to_string(port_);
  shared_.api.log().debug("listening on " + where);
  if (loopback_ || !options.api_keys.empty()) return;
  shared_.api.log().warn("Everybody who reaches " + where +
                         " may use this server. Give it keys (--api-key-file, VOLLEY_API_KEYS) unless that is meant.");
}

asio::awaitable<void> Server::Impl::accept(tcp::acceptor& acceptor) {
  while (acceptor.is_open()) {
    if (co_await accept_one(acceptor)) continue;
    error_code ignored;
    asio::steady_timer backoff(control_, kAcceptBackoff);
    co_await backoff.async_wait(token(ignored));
  }
}

// False: an immediate retry is useless.
asio::awaitable<bool> Server::Impl::accept_one(tcp::acceptor& acceptor) {
  error_code error;
  tcp::socket socket = co_await acceptor.async_accept(asio::any_io_executor(asio::make_strand(io_)), token(error));
  if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return true;
  if (is_out_of_descriptors(error)) {
    if (!std::exchange(out_of_descriptors_, true)) {
      shared_.api.log().warn("New connections get a 503: " + error.message() + "." + std::string(advice(error)));
    }
    co_return refuse_next(acceptor);
  }
  if (error) {
    shared_.api.log().warn("cannot accept a connection: " + error.message());
    co_return false;
  }
  out_of_descriptors_ = false;
  if (sessions_.size() >= static_cast<size_t>(shared_.options.max_connections)) {
    refuse(std::move(socket));
  } else {
    add(std::move(socket));
  }
  co_return true;
}

// Uses the spare descriptor. False: another thread took it, or the client left.
bool Server::Impl::refuse_next(tcp::acceptor& acceptor) {
  error_code error;
  spare_.give_up();
  if (tcp::socket socket = acceptor.accept(error); !error) refuse(std::move(socket));
  spare_.take();
  return !error;
}

void Server::Impl::add(tcp::socket socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);                  // every token of a stream is a small write
  socket.set_option(asio::socket_base::keep_alive(true), ignored);  // finds dead clients of waiting requests
  socket.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  const uint64_t id = next_session_++;
  const auto session = std::make_shared<Session>(std::move(socket), shared_);
  sessions_.emplace(id, session);
  shared_.api.metrics().count_connections(1);
  // An exception ends only this connection.
  const auto ended = [this, id, session](const std::exception_ptr& failure) {
    session->stop();
    shared_.api.metrics().count_connections(-1);
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      shared_.api.log().error(std::string("a connection was ended by an exception: ") + error.what());
    }
    asio::post(control_, [this, id] {
      sessions_.erase(id);
      if (shared_.draining && sessions_.empty()) timer_.cancel();
    });
  };
  asio::co_spawn(
      session->executor(), [session] { return session->run(); }, ended);
}

// Makes one write that fits into the socket's buffer, without waiting. It reads what the client has sent, because a
// socket closed with unread bytes resets the connection, and the client may lose the answer.
void Server::Impl::refuse(tcp::socket socket) {
  error_code ignored;
  Exchange exchange(shared_.api);
  const std::string bytes =
      exchange.whole(error_response(http_error(503, "Too many connections are open. Try again later.")), false);
  socket.non_blocking(true, ignored);
  // A TLS client could not read it before the handshake.
  if (!shared_.tls) socket.write_some(asio::buffer(bytes), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  for (std::array<char, 4096> unread; socket.read_some(asio::buffer(unread), ignored) > 0;) continue;
  exchange.end(!shared_.tls, nullptr);
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
  shared_.api.stop_batches();
  for (tcp::acceptor& acceptor : acceptors_) acceptor.close(ignored);
}

void Server::Impl::drain(Milliseconds deadline) {
  asio::post(control_, [this, deadline] {
    shared_.api.log().info("Draining: running requests may end; a second signal stops at once.");
    stop_accepting();
    for_sessions(&Session::drain);
    if (sessions_.empty()) return;
    after(deadline, [this] {
      for_sessions(&Session::cancel_generation);
      after(kCancelGrace, [this] { for_sessions(&Session::stop); });
    });
  });
}

void Server::Impl::after(Milliseconds time, const std::function<void()>& call) {
  timer_.expires_after(time);
  timer_.async_wait([call](error_code error) {
    if (!error) call();
  });
}

void Server::Impl::stop() {
  asio::post(control_, [this] {
    stop_accepting();
    timer_.cancel();
    for_sessions(&Session::stop);
  });
}

// The threads end by themselves: without acceptors, sessions and timers the io_context has no work left.
bool Server::Impl::wait() {
  const std::lock_guard lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  const bool idle = shared_.workers.wait(kWorkerGrace);
  return shared_.api.wait_for_batches(kWorkerGrace) && idle;
}

int good_worker_threads(int usable_cores) {
  return std::clamp(usable_cores / 2, 2, 8) + 4;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(Engine& engine, ServerOptions options) {
  VOLLEY_ASSIGN(auto server, start(std::move(options)));
  VOLLEY_RETURN_IF_ERROR(server->attach(engine));
  return server;
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  if (options.served_model_names.empty()) return invalid_argument("the server needs at least one model name to serve");
  if (std::min({options.io_threads, options.worker_threads, options.grammar_threads, options.disk_threads}) < 1) {
    return invalid_argument("the server needs at least one thread of each kind");
  }
  try {
    auto impl = std::make_unique<Impl>(options);
    VOLLEY_RETURN_IF_ERROR(impl->listen());
    return std::unique_ptr<Server>(new Server(std::move(impl)));
  } catch (const boost::system::system_error& error) {  // Asio's own descriptors and threads
    return cannot_listen(options, error.code());
  } catch (const std::system_error& error) {  // our threads
    return cannot_listen(options, error.code());
  }
}

Status Server::attach(Engine& engine) {
  return impl_->attach(engine);
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
bool Server::wait() {
  return impl_->wait();
}

}  // namespace volley::serve
