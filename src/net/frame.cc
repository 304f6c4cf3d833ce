#include "net/frame.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace volley::net {

void append_frame(std::vector<std::byte>& out, uint32_t kind, std::span<const std::byte> payload) {
  const std::array<uint32_t, 2> head = {static_cast<uint32_t>(payload.size()), kind};
  const auto bytes = std::as_bytes(std::span(head));
  out.insert(out.end(), bytes.begin(), bytes.end());
  out.insert(out.end(), payload.begin(), payload.end());
}

Status send_frame(Connection& connection, uint32_t kind, std::span<const std::byte> payload) {
  std::vector<std::byte> bytes;
  append_frame(bytes, kind, payload);
  return connection.send(bytes);
}

Result<Frame> receive_frame(Connection& connection, size_t most, std::optional<Deadline> deadline) {
  constexpr size_t kPiece = 1 << 20;
  std::array<uint32_t, 2> head = {};
  VOLLEY_RETURN_IF_ERROR(connection.receive(std::as_writable_bytes(std::span(head)), deadline));
  if (head[0] > most) {
    return invalid_argument("a message of " + std::to_string(head[0]) + " bytes came where at most " +
                            std::to_string(most) + " are allowed");
  }
  Frame frame;
  frame.kind = head[1];
  while (frame.payload.size() < head[0]) {
    const size_t begin = frame.payload.size();
    frame.payload.resize(std::min<size_t>(head[0], begin + kPiece));
    VOLLEY_RETURN_IF_ERROR(connection.receive(std::span(frame.payload).subspan(begin), deadline));
  }
  return frame;
}

}  // namespace volley::net
