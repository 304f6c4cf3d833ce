// Protects: peers that all send before they receive finish, whatever the sizes, and learn of a peer that is gone.
#include "net/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "base/check.h"
#include "base/threads_for_test.h"

namespace volley::net {
namespace {

using std::chrono::seconds;

using Row = std::vector<std::unique_ptr<Connection>>;

// rows[i][j]: i's connection to j; null for itself.
std::vector<Row> mesh(size_t n) {
  std::vector<Row> rows(n);
  for (Row& row : rows) row.resize(n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) {
      auto listener = Listener::bind({"127.0.0.1", 0});
      VOLLEY_CHECK(listener.ok());
      auto one = Connection::connect({"127.0.0.1", (*listener)->port()}, after(seconds(60)));
      auto other = (*listener)->accept(after(seconds(60)));
      VOLLEY_CHECK(one.ok() && other.ok());
      rows[i][j] = std::move(*one);
      rows[j][i] = std::move(*other);
    }
  }
  return rows;
}

// The message of i to j in a round: a length, then so many bytes.
size_t length(size_t i, size_t j, int round) {
  constexpr std::array<size_t, 4> kLengths = {0, 1, 3000, 3'000'000};
  return kLengths[(i + 3 * j + static_cast<size_t>(round)) % 4];
}

TEST(Exchange, EndsHoweverMuchIsSent) {
  constexpr size_t kPeers = 3;
  constexpr int kRounds = 8;
  auto rows = mesh(kPeers);
  on_threads(kPeers, [&](size_t me) {
    for (int round = 0; round < kRounds; ++round) {
      std::vector<uint64_t> said(kPeers), heard(kPeers);
      std::vector<std::vector<std::byte>> out(kPeers), in(kPeers);
      std::vector<Transfer> transfers;
      for (size_t j = 0; j < kPeers; ++j) {
        if (j == me) continue;
        said[j] = length(me, j, round);
        out[j].assign(said[j], static_cast<std::byte>(10 * me + j));
        Transfer t;
        t.with = rows[me][j].get();
        t.out = {std::as_bytes(std::span(&said[j], 1)), out[j]};
        t.head = std::as_writable_bytes(std::span(&heard[j], 1));
        t.on_head = [&, j](std::vector<std::span<std::byte>>& rest) -> Status {
          in[j].resize(heard[j]);
          rest = {std::span(in[j]).first(heard[j] / 2), std::span(in[j]).subspan(heard[j] / 2)};
          return {};
        };
        transfers.push_back(std::move(t));
      }
      const auto failure = exchange(transfers);
      ASSERT_FALSE(failure) << failure->error.message;
      for (size_t j = 0; j < kPeers; ++j) {
        if (j == me) continue;
        ASSERT_EQ(in[j], std::vector<std::byte>(length(j, me, round), static_cast<std::byte>(10 * j + me)));
      }
    }
  });
}

// Ends the wait of one side for the other, and returns which side it was.
std::optional<ExchangeFailure> failing(const std::function<void(Row& mine, Row& other)>& meanwhile, Status on_head) {
  auto rows = mesh(3);
  std::array<uint32_t, 2> said = {}, heard = {};
  std::vector<Transfer> transfers(2);
  for (size_t i = 0; i < 2; ++i) {
    transfers[i].with = rows[0][i + 1].get();
    transfers[i].out = {std::as_bytes(std::span(&said[i], 1))};
    transfers[i].head = std::as_writable_bytes(std::span(&heard[i], 1));
    transfers[i].on_head = [&on_head](auto&) { return on_head; };
  }
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    meanwhile(rows[0], rows[2]);
  });
  auto failure = exchange(transfers);
  other.join();
  return failure;
}

TEST(Exchange, SaysWhoIsGone) {
  const auto gone = failing([](Row&, Row& other) { other[0].reset(); }, {});
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->transfer, 1u);
  EXPECT_THAT(gone->error.message, ::testing::StartsWith("the connection ended"));
}

TEST(Exchange, EndsWhereAHeadIsRefused) {
  const uint32_t head = 7;
  const auto refused =
      failing([&](Row&, Row& other) { ASSERT_TRUE(other[0]->send(std::as_bytes(std::span(&head, 1))).ok()); },
              invalid_argument("not so"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->transfer, 1u);
  EXPECT_EQ(refused->error.message, "not so");
}

TEST(Exchange, MayBeEndedFromOutside) {
  EXPECT_TRUE(failing([](Row& mine, Row&) { mine[1]->shut_down(); }, {}));
}

}  // namespace
}  // namespace volley::net
