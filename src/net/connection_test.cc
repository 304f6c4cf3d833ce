// Protects: messages arrive whole and in order, and no side waits for a peer that is gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "net/frame.h"
#include "net/port_for_test.h"

namespace volley::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

struct Pair {
  std::unique_ptr<Connection> one, other;
};

Pair connected() {
  auto listener = Listener::bind({"127.0.0.1", 0});
  VOLLEY_CHECK_MSG(listener.ok(), listener.error().message);
  auto one = Connection::connect({"127.0.0.1", (*listener)->port()}, after(seconds(60)));
  auto other = (*listener)->accept(after(seconds(60)));
  VOLLEY_CHECK(one.ok() && other.ok());
  return {std::move(*one), std::move(*other)};
}

TEST(Connection, KnowsBothSides) {
  const Pair pair = connected();
  EXPECT_EQ(pair.one->local_host(), "127.0.0.1");
  EXPECT_EQ(to_string(pair.other->peer()).substr(0, 10), "127.0.0.1:");
  EXPECT_EQ(to_string({"::1", 5}), "[::1]:5");
}

// A machine that has just started may not have its address yet; an address of another machine stays an error.
TEST(Listener, TriesAgainWhereItMayHelp) {
  for (const char* host : {"192.0.2.1", "no name"}) {
    const Deadline deadline = after(seconds(1));
    const auto refused = Listener::bind({host, 0}, deadline);
    ASSERT_FALSE(refused.ok()) << host;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr(std::string("cannot listen at ") + host));
    EXPECT_GE(after(milliseconds(200)), deadline) << host << ": it did not try again";
    EXPECT_FALSE(Listener::bind({host, 0}).ok());
  }
  const auto first = Listener::bind({"127.0.0.1", 0});
  ASSERT_TRUE(first.ok());
  const Deadline far = after(std::chrono::hours(24));  // later than any test may end
  EXPECT_FALSE(Listener::bind((*first)->address(), far).ok());
}

TEST(Connection, BringsMessagesInOrder) {
  Pair pair = connected();
  std::thread sender([&] {
    std::vector<std::byte> both;
    append_frame(both, 1, {});
    const std::vector<std::byte> some(3, std::byte{5});
    append_frame(both, 2, some);
    ASSERT_TRUE(pair.one->send(both).ok());
    const std::vector<std::byte> large(5'000'000, std::byte{9});
    ASSERT_TRUE(send_frame(*pair.one, 3, large).ok());
  });
  for (const auto& [kind, size] : std::vector<std::pair<uint32_t, size_t>>{{1, 0}, {2, 3}, {3, 5'000'000}}) {
    const auto frame = receive_frame(*pair.other, 5'000'000);
    ASSERT_TRUE(frame.ok()) << frame.error().message;
    EXPECT_EQ(frame->kind, kind);
    EXPECT_EQ(frame->payload.size(), size);
  }
  sender.join();
}

TEST(Connection, RefusesAMessageThatIsTooLong) {
  Pair pair = connected();
  const std::vector<std::byte> payload(11);
  ASSERT_TRUE(send_frame(*pair.one, 1, payload).ok());
  const auto frame = receive_frame(*pair.other, 10);
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(frame.error().message, "a message of 11 bytes came where at most 10 are allowed");
}

// A claimed length allocates no memory: only received bytes do.
TEST(Connection, AMessageMayEndBeforeItsLength) {
  Pair pair = connected();
  const std::array<uint32_t, 2> head = {0xf000'0000u, 1};
  ASSERT_TRUE(pair.one->send(std::as_bytes(std::span(head))).ok());
  pair.one.reset();
  const auto frame = receive_frame(*pair.other, 0xffff'ffffu);
  ASSERT_FALSE(frame.ok());
  EXPECT_THAT(frame.error().message, HasSubstr("the connection ended"));
}

TEST(Connection, SaysWhenNothingComes) {
  Pair pair = connected();
  const auto frame = receive_frame(*pair.one, 10, after(milliseconds(20)));
  ASSERT_FALSE(frame.ok());
  EXPECT_EQ(frame.error().message, "nothing came in time");
}

TEST(Connection, MayBeEndedWhileItIsWaitedFor) {
  Pair pair = connected();
  std::thread other([&] {
    std::array<std::byte, 1> byte;
    EXPECT_FALSE(pair.other->receive(byte).ok());
  });
  std::thread here([&] {
    std::array<std::byte, 1> byte;
    EXPECT_FALSE(pair.one->receive(byte).ok());
  });
  std::this_thread::sleep_for(milliseconds(20));
  pair.one->shut_down();
  here.join();
  other.join();
  const std::vector<std::byte> large(50'000'000);
  EXPECT_FALSE(pair.other->send(large).ok());
}

TEST(Connection, WaitsForWhoeverListensLater) {
  const PortForTest own;
  const uint16_t port = own.number();
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(150));
    auto listener = Listener::bind({"127.0.0.1", port});
    ASSERT_TRUE(listener.ok()) << listener.error().message;
    EXPECT_TRUE((*listener)->accept(after(seconds(60))).ok());
  });
  EXPECT_TRUE(Connection::connect({"127.0.0.1", port}, after(seconds(60))).ok());
  late.join();
  const auto nobody = Connection::connect({"127.0.0.1", port}, after(milliseconds(50)));
  ASSERT_FALSE(nobody.ok());
  EXPECT_THAT(nobody.error().message, HasSubstr("Nobody listens at 127.0.0.1:" + std::to_string(port)));
}

TEST(Listener, SaysWhyItCannot) {
  auto listener = Listener::bind({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  EXPECT_FALSE((*listener)->accept(after(milliseconds(5))).ok());
  const auto taken = Listener::bind({"127.0.0.1", (*listener)->port()});
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.error().message, HasSubstr("cannot listen at 127.0.0.1:"));
  EXPECT_FALSE(Listener::bind({"192.0.2.1", 0}).ok()) << "no address of this machine";
}

}  // namespace
}  // namespace volley::net
