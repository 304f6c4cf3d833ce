// Messages of clients to the socket that repeats cache events: the result is the same whole and in pieces, and little
// is kept.
#include "serve/events/zmtp.h"

#include "fuzz.h"

using namespace volley;
using serve::ZmtpReader;

namespace {

struct Taken {
  std::vector<ZmtpReader::Message> messages;
  std::string replies;
  bool good = true;

  bool operator==(const Taken&) const = default;
};

Taken take(std::string_view bytes, size_t piece) {
  Taken taken;
  ZmtpReader reader(
      [&](ZmtpReader::Message message) {
        fuzz::require(message.size() <= ZmtpReader::kMaxFrames);
        for (const std::string& frame : message) fuzz::require(frame.size() <= ZmtpReader::kMaxFrameBytes);
        taken.messages.push_back(std::move(message));
      },
      [&](const std::string& reply) { taken.replies += reply; });
  for (; !bytes.empty() && taken.good; bytes.remove_prefix(std::min(piece, bytes.size()))) {
    taken.good = reader.feed(bytes.substr(0, piece));
  }
  return taken;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [piece, text] = fuzz::choose(data, size, 32);
  const std::string bytes = serve::zmtp_greeting("DEALER") + std::string(text);
  fuzz::require(take(bytes, bytes.size()) == take(bytes, piece + 1));
  take(text, piece + 1);  // without a greeting
  return 0;
}
