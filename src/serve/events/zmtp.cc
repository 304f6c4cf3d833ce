#include "serve/events/zmtp.h"

#include <utility>

#include "serve/events/cache_event_wire.h"

namespace volley::serve {
namespace {

constexpr size_t kSignature = 10, kMechanism = 12, kMechanismBytes = 20, kGreeting = 64;
constexpr unsigned kMore = 1, kLong = 2, kCommand = 4;

std::string big_endian(uint64_t number, size_t bytes) {
  std::string out(bytes, '\0');
  for (size_t i = bytes; i > 0; --i, number >>= 8) out[i - 1] = static_cast<char>(number & 0xFF);
  return out;
}

std::string head(unsigned flags, size_t bytes) {
  const bool large = bytes > 0xFF;
  return static_cast<char>(flags | (large ? kLong : 0)) + big_endian(bytes, large ? 8 : 1);
}

std::string command(std::string_view name, std::string_view body) {
  const std::string whole = big_endian(name.size(), 1).append(name).append(body);
  return head(kCommand, whole.size()) + whole;
}

std::string mechanism() {
  std::string null = "NULL";
  null.resize(kMechanismBytes);
  return null;
}

}  // namespace

std::string zmtp_greeting(std::string_view socket_type) {
  std::string greeting = std::string("\xFF") + big_endian(1, 8) + "\x7F\x03" + '\0' + mechanism();
  greeting.resize(kGreeting);
  constexpr std::string_view kProperty = "Socket-Type";
  std::string properties = big_endian(kProperty.size(), 1).append(kProperty);
  properties.append(big_endian(socket_type.size(), 4)).append(socket_type);
  return greeting + command("READY", properties);
}

std::string zmtp_frame_head(size_t bytes, bool more) {
  return head(more ? kMore : 0, bytes);
}

bool ZmtpReader::feed(std::string_view bytes) {
  waiting_ += bytes;
  std::string_view rest = waiting_;
  if (!greeted_ && !take_greeting(rest)) return false;
  while (greeted_ && rest.size() >= 2) {
    const auto flags = static_cast<uint8_t>(rest[0]);
    if (flags > (kMore | kLong | kCommand)) return false;
    const size_t before = (flags & kLong) != 0 ? 9 : 2;
    if (rest.size() < before) break;
    const uint64_t size = from_big_endian(rest.substr(1, before - 1));
    if (size > kMaxFrameBytes) return false;
    if (rest.size() < before + size) break;
    const std::string_view body = rest.substr(before, size);
    rest.remove_prefix(before + size);
    if ((flags & kCommand) != 0) {
      if (!take_command(body)) return false;
      continue;
    }
    if (frames_.size() == kMaxFrames) return false;
    frames_.emplace_back(body);
    if ((flags & kMore) == 0) on_message_(std::exchange(frames_, {}));
  }
  waiting_.erase(0, waiting_.size() - rest.size());
  return true;
}

// False: no greeting. `rest` begins behind it once it is whole.
bool ZmtpReader::take_greeting(std::string_view& rest) {
  if (!rest.empty() && rest[0] != '\xFF') return false;
  if (rest.size() >= kSignature && (rest[kSignature - 1] & 1) == 0) return false;
  if (rest.size() > kSignature && rest[kSignature] < 3) return false;  // older versions have other frames
  if (rest.size() < kGreeting) return true;
  if (rest.substr(kMechanism, kMechanismBytes) != mechanism()) return false;
  rest.remove_prefix(kGreeting);
  greeted_ = true;
  return true;
}

// False: the client must be disconnected. A ping needs an answer; other commands change nothing.
bool ZmtpReader::take_command(std::string_view body) {
  constexpr size_t kTimeToLive = 2;
  const size_t name_bytes = body.empty() ? 0 : static_cast<uint8_t>(body[0]);
  if (name_bytes == 0 || body.size() < 1 + name_bytes) return false;
  const std::string_view name = body.substr(1, name_bytes), rest = body.substr(1 + name_bytes);
  if (name == "PING" && rest.size() >= kTimeToLive) reply_(command("PONG", rest.substr(kTimeToLive)));
  return name != "ERROR";
}

}  // namespace volley::serve
