// Messages over a connection: a length, a kind and a payload. Sender and receiver define the kinds.
#pragma once

#include <vector>

#include "net/connection.h"

namespace volley::net {

struct Frame {
  uint32_t kind = 0;
  std::vector<std::byte> payload;
};

// Appends a message to `out`, so that several can be sent at once.
void append_frame(std::vector<std::byte>& out, uint32_t kind, std::span<const std::byte> payload);
Status send_frame(Connection& connection, uint32_t kind, std::span<const std::byte> payload);

// The next message. kInvalidArgument: its claimed length exceeds `most` bytes; memory is allocated for received bytes
// only. kUnavailable as Connection::receive().
Result<Frame> receive_frame(Connection& connection, size_t most, std::optional<Deadline> deadline = std::nullopt);

}  // namespace volley::net
