// Messages over a connection: a length, a kind and a payload. What a kind means is the sender's and the receiver's.
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

// The next message. kInvalidArgument: it claims to be longer than `most` bytes; memory is taken as they come, not as
// they are claimed. kUnavailable as Connection::receive().
Result<Frame> receive_frame(Connection& connection, size_t most, std::optional<Deadline> deadline = std::nullopt);

}  // namespace volley::net
