// Protects ZeroMQ's protocol to the letter, and the bounds on a client's bytes.
#include "serve/events/zmtp.h"

#include <gtest/gtest.h>

namespace volley::serve {
namespace {

struct Read {
  std::vector<ZmtpReader::Message> messages;
  std::string replies;
  bool good = true;
};

Read read(const std::string& bytes, size_t piece) {
  Read result;
  ZmtpReader reader([&](ZmtpReader::Message message) { result.messages.push_back(std::move(message)); },
                    [&](const std::string& reply) { result.replies += reply; });
  for (size_t i = 0; i < bytes.size() && result.good; i += piece) result.good = reader.feed(bytes.substr(i, piece));
  return result;
}

std::string frame(const std::string& body, bool more) {
  return zmtp_frame_head(body.size(), more) + body;
}

TEST(Zmtp, GreetsAsTheProtocolSays) {
  const std::string greeting = zmtp_greeting("ROUTER");
  ASSERT_GT(greeting.size(), 64u);
  EXPECT_EQ(greeting.substr(0, 16), std::string("\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0NULL", 16));
  EXPECT_EQ(greeting.substr(16, 48), std::string(48, '\0'));
  EXPECT_EQ(greeting.substr(64), std::string("\x04\x1C\x05READY\x0BSocket-Type\0\0\0\x06ROUTER", 30));
}

TEST(Zmtp, ReadsMessagesInAnyPieces) {
  const std::string bytes = zmtp_greeting("DEALER") + frame("", true) + frame("12345678", false) +
                            frame(std::string(4096, 'x'), false) + frame("a", true) + frame("", false);
  for (const size_t piece : {1, 2, 7, 63, 64, 65, 1000, 100'000}) {
    const Read result = read(bytes, piece);
    EXPECT_TRUE(result.good);
    ASSERT_EQ(result.messages.size(), 3u) << piece;
    EXPECT_EQ(result.messages[0], (ZmtpReader::Message{"", "12345678"}));
    EXPECT_EQ(result.messages[1], (ZmtpReader::Message{std::string(4096, 'x')}));
    EXPECT_EQ(result.messages[2], (ZmtpReader::Message{"a", ""}));
  }
}

TEST(Zmtp, RefusesWhatIsPastTheBounds) {
  const std::string greeting = zmtp_greeting("DEALER");
  std::string many;
  for (size_t i = 0; i <= ZmtpReader::kMaxFrames; ++i) many += frame("", true);
  const std::string bad[] = {greeting + many,
                             greeting + zmtp_frame_head(ZmtpReader::kMaxFrameBytes + 1, true),
                             greeting + std::string("\x02\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 9),
                             greeting + std::string("\x06\0\0\0\0\0\1\0\0", 9),  // also a command
                             greeting + std::string("\x08\0", 2),
                             greeting + std::string("\x04\0", 2),
                             greeting + std::string("\x04\x02\x05R", 4),
                             greeting + std::string("\x04\x06\x05"
                                                    "ERROR",
                                                    8),
                             "GET / HTTP/1.1\r\n",
                             std::string("\xFF\0\0\0\0\0\0\0\x01\x7E", 10),
                             std::string("\xFF\0\0\0\0\0\0\0\x01\x7F\x01", 11),
                             std::string(greeting).replace(12, 5, "CURVE")};
  for (const std::string& bytes : bad) {
    for (const size_t piece : {1, 100'000}) EXPECT_FALSE(read(bytes, piece).good) << bytes;
  }
}

TEST(Zmtp, AnswersWhoAsksWhetherItIsAlive) {
  const Read result = read(zmtp_greeting("SUB") + std::string("\x04\x09\x04PING\0\x0A"
                                                              "me",
                                                              11),
                           3);
  EXPECT_TRUE(result.good);
  EXPECT_EQ(result.replies, "\x04\x07\x04PONGme");
}

}  // namespace
}  // namespace volley::serve
