// ZeroMQ's protocol on a connection, as version 3.0 with the mechanism NULL has it (rfc.zeromq.org/spec/23): what a
// client sends, read within bounds. ZeroMQ's own sockets collect a message of as many frames as a client likes before
// anybody sees it. No sockets; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace volley::serve {

class ZmtpReader {
 public:
  static constexpr size_t kMaxFrameBytes = 4096;
  static constexpr size_t kMaxFrames = 8;  // of a message

  using Message = std::vector<std::string>;

  // on_message: for each whole one. reply: bytes that the client is to get.
  ZmtpReader(std::function<void(Message)> on_message, std::function<void(std::string)> reply)
      : on_message_(std::move(on_message)), reply_(std::move(reply)) {}

  // Takes what has come. False: it is not that protocol, or is past the bounds; the connection is to be closed.
  bool feed(std::string_view bytes);

 private:
  bool take_greeting(std::string_view& rest);
  bool take_command(std::string_view body);

  const std::function<void(Message)> on_message_;
  const std::function<void(std::string)> reply_;
  bool greeted_ = false;
  std::string waiting_;  // less than a frame
  Message frames_;       // of a message that has begun
};

// What a socket of that type says first.
std::string zmtp_greeting(std::string_view socket_type);
// What stands before a frame of a message.
std::string zmtp_frame_head(size_t bytes, bool more);

}  // namespace volley::serve
