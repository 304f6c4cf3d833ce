// Simultaneous sending and receiving among several processes.
#pragma once

#include <functional>
#include <vector>

#include "net/connection.h"

namespace volley::net {

// Both directions of one connection. All memory is borrowed for the call.
struct Transfer {
  Connection* with = nullptr;
  std::vector<std::span<const std::byte>> out;  // sent in this order
  std::span<std::byte> head;                    // received first; not empty
  // Called when `head` is full: puts buffers for the following bytes, in order, into the empty `rest`. An error ends
  // the exchange.
  std::function<Status(std::vector<std::span<std::byte>>& rest)> on_head;
};

struct ExchangeFailure {
  size_t transfer = 0;  // the first connection that failed
  Error error;
};

// Sends and receives over all connections at once, so that peers that wait for one another cannot block, whatever the
// amount. No value: all is done. After a failure the connections are unusable. During the call no other thread may use
// them, except for shut_down().
std::optional<ExchangeFailure> exchange(std::span<Transfer> transfers);

}  // namespace volley::net
