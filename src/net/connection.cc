#include "net/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <system_error>
#include <thread>

namespace volley::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

Error unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}

// Milliseconds for poll(), rounded up.
int time_left(std::optional<Deadline> deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<milliseconds>(*deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

// False: the deadline came first.
bool wait_readable(int descriptor, std::optional<Deadline> deadline) {
  for (;;) {
    pollfd waiting = {descriptor, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, time_left(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the next call reports the error
    if (ready == 0 && time_left(deadline) == 0) return false;
  }
}

void set(int descriptor, int level, int option, int value) {
  ::setsockopt(descriptor, level, option, &value, sizeof(value));  // without it connections work, but slower
}

Address address_of(const tcp::endpoint& endpoint) {
  return {endpoint.address().to_string(), endpoint.port()};
}

struct OwnSocket {
  asio::io_context io{1};
  tcp::socket socket{io};
};

}  // namespace

Error connection_ended(int error) {
  return unavailable(error == 0 ? std::string("the connection ended")
                                : "the connection ended (" + std::generic_category().message(error) + ")");
}

std::string to_string(const Address& address) {
  const bool v6 = address.host.find(':') != std::string::npos;
  return (v6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

struct Connection::Socket {
  // An asio acceptor takes three descriptors more; a connection from an adopted socket needs none.
  explicit Socket(int given) : adopted(given) {
    if (given < 0) tcp.emplace();
  }
  ~Socket() {
    if (adopted >= 0) ::close(adopted);
  }

  const int adopted;  // -1: it has a socket of its own
  std::optional<OwnSocket> tcp;
};

struct Listener::Socket {
  error_code listen(const Address& at) {
    error_code failed;
    tcp::resolver resolver(io);
    const auto endpoints = resolver.resolve(at.host, std::to_string(at.port), tcp::resolver::passive, failed);
    if (failed) return failed;
    const tcp::endpoint endpoint = endpoints.begin()->endpoint();
    tcp_acceptor.open(endpoint.protocol(), failed);
    if (!failed) tcp_acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed) tcp_acceptor.bind(endpoint, failed);
    if (!failed) tcp_acceptor.listen(asio::socket_base::max_listen_connections, failed);
    if (!failed) tcp_acceptor.non_blocking(true, failed);  // the client may have left again
    return failed;
  }

  asio::io_context io{1};
  tcp::acceptor tcp_acceptor{io};
};

Connection::Connection(int adopted) : socket_(std::make_unique<Socket>(adopted)) {}
Connection::~Connection() = default;
Listener::Listener() : socket_(std::make_unique<Socket>()) {}
Listener::~Listener() = default;

int Connection::descriptor() const {
  return socket_->adopted >= 0 ? socket_->adopted : socket_->tcp->socket.native_handle();
}

std::unique_ptr<Connection> Connection::adopt(int descriptor) {
  return std::unique_ptr<Connection>(new Connection(descriptor));
}

Status Connection::open() {
  const int fd = descriptor();
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  error_code error;
  tcp::socket& socket = socket_->tcp->socket;
  const tcp::endpoint here = socket.local_endpoint(error);
  if (error) return connection_ended(error.value());
  const tcp::endpoint there = socket.remote_endpoint(error);
  if (error) return connection_ended(error.value());
  // If no process listens at the port, the system may choose that port for this side, and connect the socket to itself.
  if (here == there) return connection_ended(ECONNREFUSED);
  local_host_ = here.address().to_string();
  peer_ = address_of(there);
  // The calls below wait with poll(): asio's blocking calls would ignore the deadline.
  socket.native_non_blocking(true, error);
  return error ? Status(connection_ended(error.value())) : Status();
}

Result<std::unique_ptr<Connection>> Connection::connect(const Address& to, Deadline deadline) {
  constexpr milliseconds kBetween(100);
  for (;;) {
    std::unique_ptr<Connection> connection(new Connection());
    OwnSocket& own = *connection->socket_->tcp;
    error_code failed;
    tcp::resolver resolver(own.io);
    const auto endpoints = resolver.resolve(to.host, std::to_string(to.port), failed);
    if (!failed) {
      failed = asio::error::timed_out;
      asio::async_connect(own.socket, endpoints,
                          [&](const error_code& error, const tcp::endpoint&) { failed = error; });
      own.io.run_until(deadline);
    }
    if (!failed) {
      if (connection->open().ok()) return connection;
      failed = asio::error::connection_refused;
    }
    if (std::chrono::steady_clock::now() + kBetween >= deadline) {
      return unavailable("Nobody listens at " + to_string(to) + " (" + failed.message() + ").");
    }
    std::this_thread::sleep_for(kBetween);
  }
}

Status Connection::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd waiting = {descriptor(), POLLOUT, 0};
      ::poll(&waiting, 1, -1);
    } else if (errno != EINTR) {
      return connection_ended(errno);
    }
  }
  return {};
}

Status Connection::receive(std::span<std::byte> bytes, std::optional<Deadline> deadline) {
  while (!bytes.empty()) {
    if (!wait_readable(descriptor(), deadline)) return unavailable("nothing came in time");
    const ssize_t got = ::recv(descriptor(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return unavailable("the connection ended");
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return connection_ended(errno);
    }
  }
  return {};
}

bool Connection::has_news(Deadline deadline) const {
  return wait_readable(descriptor(), deadline);
}

bool Connection::has_ended() const {
  char next;
  const ssize_t got = ::recv(descriptor(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void Connection::give_up_silence(milliseconds after) {
  set(descriptor(), IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(after.count()));
}

void Connection::shut_down() {
  ::shutdown(descriptor(), SHUT_RDWR);
}

Result<std::unique_ptr<Listener>> Listener::bind(const Address& at, std::optional<Deadline> deadline) {
  constexpr milliseconds kBetween(100);
  for (;;) {
    std::unique_ptr<Listener> listener(new Listener());
    Socket& socket = *listener->socket_;
    error_code failed = socket.listen(at);
    if (!failed) {
      listener->address_ = address_of(socket.tcp_acceptor.local_endpoint(failed));
      return listener;
    }
    // A machine that has just started may get its name, or the name's address, only later.
    const bool later = failed == asio::error::host_not_found || failed == asio::error::host_not_found_try_again ||
                       failed == std::errc::address_not_available;
    if (!later || !deadline || std::chrono::steady_clock::now() + kBetween >= *deadline) {
      return invalid_argument("This machine cannot listen at " + to_string(at) + ": " + failed.message() + ".");
    }
    std::this_thread::sleep_for(kBetween);
  }
}

Result<std::unique_ptr<Connection>> Listener::accept(Deadline deadline) {
  for (;;) {
    if (!wait_readable(socket_->tcp_acceptor.native_handle(), deadline)) return unavailable("Nobody has come in time.");
    std::unique_ptr<Connection> connection(new Connection());
    error_code failed;
    socket_->tcp_acceptor.accept(connection->socket_->tcp->socket, failed);
    if (failed && std::chrono::steady_clock::now() >= deadline) return unavailable(failed.message());
    if (failed) {  // the deadline, or no more descriptors
      std::this_thread::sleep_for(milliseconds(10));
      continue;
    }
    if (connection->open().ok()) return connection;
  }
}

}  // namespace volley::net
