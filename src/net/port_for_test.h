// A port for tests that must name one before a process listens there: no other process or test gets it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace volley::net {

// At 127.0.0.1. The port is bound to a socket that does not listen, so connections are refused. A Listener shares
// addresses with sockets that do not listen, so it may take the port, and leave it again.
class PortForTest {
 public:
  PortForTest() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    VOLLEY_CHECK(::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    VOLLEY_CHECK(::bind(socket_, reinterpret_cast<const sockaddr*>(&at), size) == 0);
    VOLLEY_CHECK(::getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    number_ = ntohs(at.sin_port);
  }
  PortForTest(const PortForTest&) = delete;
  PortForTest& operator=(const PortForTest&) = delete;
  ~PortForTest() { ::close(socket_); }

  uint16_t number() const { return number_; }

 private:
  int socket_;
  uint16_t number_ = 0;
};

}  // namespace volley::net
