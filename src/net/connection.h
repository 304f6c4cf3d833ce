// Connections between the processes of one engine: TCP, without delay, in a network that is trusted, or a pair of
// sockets within the machine. On an idle connection, a vanished machine shows within five seconds as a peer that ended
// (TCP keep-alive).
#pragma once

#include <volley/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace volley::net {

struct Address {
  std::string host;  // a name, or an IPv4 or IPv6 address
  uint16_t port = 0;
};
std::string to_string(const Address& address);  // "gpu-1:29501", "[::1]:29501"

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline after(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

// kUnavailable, with the reason that `error` (errno; 0: the peer's orderly end) names.
Error connection_ended(int error);

// Threads: one may send while another receives; shut_down() and const functions from any.
class Connection {
 public:
  // Connects; tries again until the deadline while the name is unknown or no process listens. kUnavailable: none did.
  static Result<std::unique_ptr<Connection>> connect(const Address& to, Deadline deadline);
  // An existing connection, by its socket, which this takes over. It has no addresses.
  static std::unique_ptr<Connection> adopt(int descriptor);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // All of `bytes`, waiting for the peer where it is slow. kUnavailable: the connection has ended, with the reason.
  Status send(std::span<const std::byte> bytes);
  // Receives until `bytes` are full. kUnavailable: the connection has ended, or the deadline has passed.
  Status receive(std::span<std::byte> bytes, std::optional<Deadline> deadline = std::nullopt);
  // Waits until receive() can return something, at most until the deadline.
  bool has_news(Deadline deadline) const;
  // Ends the connection in both directions: the calls above return on both sides, and later ones return at once.
  void shut_down();

  // Ends the connection also if data under way is not acknowledged for that long, e.g. because the peer's process does
  // not read and buffers are full.
  void give_up_silence(std::chrono::milliseconds after);

  // Whether the peer has ended the connection, or it broke; data sent before may not have been received.
  bool has_ended() const;

  const std::string& local_host() const { return local_host_; }  // this side's address
  const Address& peer() const { return peer_; }
  int descriptor() const;  // borrowed

 private:
  friend class Listener;
  struct Socket;
  explicit Connection(int adopted = -1);
  Status open();  // sets options and addresses of a socket that has just been connected

  std::unique_ptr<Socket> socket_;
  std::string local_host_;
  Address peer_;
};

// Threads: one at a time.
class Listener {
 public:
  // Listens only on the address that the name has on this machine; port 0: any. Tries again until the deadline, if
  // there is one, while the name is unknown or means no address of this machine. kInvalidArgument: it cannot.
  static Result<std::unique_ptr<Listener>> bind(const Address& at, std::optional<Deadline> deadline = std::nullopt);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Address& address() const { return address_; }
  uint16_t port() const { return address_.port; }
  // The next peer. kUnavailable: none has connected before the deadline.
  Result<std::unique_ptr<Connection>> accept(Deadline deadline);

 private:
  struct Socket;
  Listener();

  std::unique_ptr<Socket> socket_;
  Address address_;
};

}  // namespace volley::net
