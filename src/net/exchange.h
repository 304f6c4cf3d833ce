// What several processes send one another at the same time.
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
  // Called when `head` is there: puts what is received after it, in order, into the empty `rest`. An error ends the
  // exchange.
  std::function<Status(std::vector<std::span<std::byte>>& rest)> on_head;
};

struct ExchangeFailure {
  size_t transfer = 0;  // the first that failed
  Error error;
};

// Sends and receives over all of them at once, so that nobody waits for a peer that waits for him, however much it is.
// Nothing: all is done. Else connections are in no state to go on with. Nobody else uses them meanwhile, but for
// shut_down().
std::optional<ExchangeFailure> exchange(std::span<Transfer> transfers);

}  // namespace volley::net
