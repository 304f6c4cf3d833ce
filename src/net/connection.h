// Connections between the processes of one engine: TCP, without delay, in a network that is trusted, or a pair of
// sockets within the machine. While nothing is on its way, a peer whose machine vanishes shows within five seconds as
// one that ended (TCP keep-alive).
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

// Threads: one may send while another receives; shut_down() and what is const from any.
class Connection {
 public:
  // Tries again until the deadline while the name is not known or nobody listens. kUnavailable: nobody did.
  static Result<std::unique_ptr<Connection>> connect(const Address& to, Deadline deadline);
  // One that is there already, by its socket, which becomes the connection's. It has no addresses.
  static std::unique_ptr<Connection> adopt(int descriptor);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // All of `bytes`, waiting for the peer where it is slow. kUnavailable: the connection has ended, with the reason.
  Status send(std::span<const std::byte> bytes);
  // Until `bytes` are full. kUnavailable: the connection has ended, or the deadline has come.
  Status receive(std::span<std::byte> bytes, std::optional<Deadline> deadline = std::nullopt);
  // Whether receive() has something to say, at the latest at the deadline.
  bool has_news(Deadline deadline) const;
  // Ends it in both directions: the calls above return on both sides, and later ones do.
  void shut_down();

  // The same while something is on its way, after that time: also where a peer's process does not read for so long, and
  // more waits for it than buffers hold.
  void give_up_silence(std::chrono::milliseconds after);

  // The peer has ended it, or it broke; what came before may not have been received.
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
  // On the address that the name has on this machine, and on no other; port 0: any. Until the deadline, if there is
  // one, tries again while the name is not known or means no address of this machine. kInvalidArgument: it cannot.
  static Result<std::unique_ptr<Listener>> bind(const Address& at, std::optional<Deadline> deadline = std::nullopt);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const Address& address() const { return address_; }
  uint16_t port() const { return address_.port; }
  // The next peer. kUnavailable: nobody has come before the deadline.
  Result<std::unique_ptr<Connection>> accept(Deadline deadline);

 private:
  struct Socket;
  Listener();

  std::unique_ptr<Socket> socket_;
  Address address_;
};

}  // namespace volley::net
