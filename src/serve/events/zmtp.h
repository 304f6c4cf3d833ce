// Reads ZeroMQ's protocol, version 3.0 with the mechanism NULL (rfc.zeromq.org/spec/23), within bounds. ZeroMQ's own
// sockets would collect any number of frames before a message is seen. No sockets; one thread.
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
  static constexpr size_t kMaxFrames = 8;  // per message

  using Message = std::vector<std::string>;

  // on_message: called for each whole message. reply: gets bytes for the client.
  ZmtpReader(std::function<void(Message)> on_message, std::function<void(std::string)> reply)
      : on_message_(std::move(on_message)), reply_(std::move(reply)) {}

  // Takes received bytes. False: another protocol, or past the bounds; close the connection.
  bool feed(std::string_view bytes);

 private:
  bool take_greeting(std::string_view& rest);
  bool take_command(std::string_view body);

  const std::function<void(Message)> on_message_;
  const std::function<void(std::string)> reply_;
  bool greeted_ = false;
  std::string waiting_;  // less than a frame
  Message frames_;       // frames of a message that has begun
};

// The first bytes of a socket of that type.
std::string zmtp_greeting(std::string_view socket_type);
// The bytes before a frame of a message.
std::string zmtp_frame_head(size_t bytes, bool more);

}  // namespace volley::serve
