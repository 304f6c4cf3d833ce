// Fetches pictures that requests name by URL, for `volley serve --allow-image-hosts`: whoever can send a request must
// not reach through the server what only the server can reach.
#pragma once

#include <volley/result.h>

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

namespace volley::apps {

struct PictureHosts {
  std::vector<std::string> hosts;             // names, of port 443; tests add another ":PORT"
  std::chrono::milliseconds timeout{10'000};  // for a picture, from its name's resolution to its last byte
  // For tests, which have no certificates, no public address and no names.
  bool plain_http = false, any_address = false;
  std::vector<std::string> addresses = {};  // "NAME:PORT:ADDRESS", instead of the system's resolver
};

// Whether everybody's packets find this address: no private, shared, loopback, link-local, multicast, documentation or
// reserved one, and none that maps or carries another protocol's address (IANA's registries of special addresses).
bool is_public_address(const sockaddr* address);

// The bytes at `url`, at most so many. Speaks HTTPS to a listed host alone, and to no proxy; the address that is
// checked is the one it connects to; follows no redirect. `cancelled` may be null. Any thread. kInvalidArgument: the
// URL, or what its host answers, is refused; kCancelled.
Result<std::string> fetch_picture(const PictureHosts& hosts, const std::string& url, size_t most_bytes,
                                  const std::atomic<bool>* cancelled);

}  // namespace volley::apps
