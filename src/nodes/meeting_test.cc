// Protects: nodes find one another in any order of arrival, and nodes that do not fit together report why.
#include "nodes/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "net/bytes.h"
#include "net/frame.h"
#include "net/port_for_test.h"

namespace volley::nodes {
namespace {

using ::testing::HasSubstr;

net::Deadline soon() {
  return net::after(std::chrono::minutes(1));
}

struct Said {
  std::vector<Fact> facts = {{"--dtype", "bfloat16"}, {"--page-size", "16"}};
  std::vector<int64_t> numbers = {10, 20};
  std::function<void()> before = [] {};  // the connection arrives
};

std::vector<Result<Links>> met(const std::vector<Said>& said, uint16_t port, int ranks,
                               net::Deadline deadline = soon()) {
  std::vector<std::optional<Result<Links>>> results(said.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < said.size(); ++i) {
    threads.emplace_back([&, i] {
      said[i].before();
      const Place place{static_cast<int>(said.size()), static_cast<int>(i), ranks, {"127.0.0.1", port}};
      results[i] = meet(place, said[i].facts, said[i].numbers, deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Result<Links>> all;
  for (auto& result : results) all.push_back(std::move(*result));
  return all;
}

TEST(Meeting, ConnectsEveryNodeWithEveryOther) {
  std::vector<Said> said(4);
  said[0].before = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  said[2].numbers = {30, 5};
  said[3].numbers = {7, 40};
  const net::PortForTest port;
  auto all = met(said, port.number(), 8);
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i].ok()) << all[i].error().message;
    EXPECT_EQ(all[i]->least, (std::vector<int64_t>{7, 5}));
    EXPECT_EQ(all[i]->calls.size(), i == 0 ? 3u : 1u);
    ASSERT_EQ(all[i]->sums.size(), 3u);
  }
  // Both ends of a connection for sums name the same address.
  for (size_t i = 0; i < all.size(); ++i) {
    for (const comm::NodeLink& link : all[i]->sums) {
      const auto node = static_cast<uint32_t>(i);
      ASSERT_TRUE(link.connection->send(std::as_bytes(std::span(&node, 1))).ok());
    }
  }
  for (const Result<Links>& links : all) {
    for (const comm::NodeLink& link : links->sums) {
      uint32_t node = 9;
      ASSERT_TRUE(link.connection->receive(std::as_writable_bytes(std::span(&node, 1)), soon()).ok());
      EXPECT_EQ(link.first_rank, static_cast<int>(2 * node));
      EXPECT_EQ(link.ranks, 2);
    }
  }
  for (uint32_t node = 1; node < 4; ++node) {
    ASSERT_TRUE(all[0]->calls[node - 1]->send(std::as_bytes(std::span(&node, 1))).ok());
    uint32_t heard = 0;
    ASSERT_TRUE(all[node]->calls[0]->receive(std::as_writable_bytes(std::span(&heard, 1)), soon()).ok());
    EXPECT_EQ(heard, node);
  }
}

TEST(Meeting, NamesWhatDiffers) {
  std::vector<Said> said(2);
  said[1].facts[0].value = "float32";
  const net::PortForTest port;
  for (const auto& result : met(said, port.number(), 2)) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(result.error().message,
              "Node 1 differs from node 0 in --dtype: float32 there, bfloat16 on node 0. Start all nodes with the same "
              "program, models and options.");
  }
  said[1].facts.pop_back();
  said[1].facts[0].value = "bfloat16";
  const auto fewer = met(said, port.number(), 2);
  EXPECT_THAT(fewer[1].error().message, HasSubstr("--page-size: nothing there, 16 on node 0"));
}

// A few stray bytes do not end the start, and the final error says what they were.
TEST(Meeting, WaitsOnAfterAnotherProtocol) {
  const net::PortForTest own;
  const uint16_t port = own.number();
  const auto forged = [port] {
    const auto connection = std::move(*net::Connection::connect({"127.0.0.1", port}, soon()));
    net::ByteWriter hello;
    hello.put(uint64_t{0x31534e59454c4c56});
    hello.put(kProtocol + 1);
    hello.put(int32_t{1});
    ASSERT_TRUE(net::send_frame(*connection, 1, hello.bytes()).ok());
    const auto answer = net::receive_frame(*connection, 1 << 20, soon());
    ASSERT_TRUE(answer.ok()) << answer.error().message;
  };
  std::vector<Said> said(2);
  said[1].before = forged;
  for (const auto& result : met(said, port, 2)) EXPECT_TRUE(result.ok()) << result.error().message;
  std::thread stranger(forged);
  const auto alone =
      meet({2, 0, 2, {"127.0.0.1", port}}, said[0].facts, said[0].numbers, net::after(std::chrono::seconds(4)));
  stranger.join();
  ASSERT_FALSE(alone.ok());
  EXPECT_EQ(alone.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(alone.error().message, HasSubstr("have not come: 1."));
  EXPECT_THAT(alone.error().message,
              HasSubstr("The last that was refused: Node 1 differs from node 0 in the protocol"));
}

// One after the other, each would take five seconds, and the start longer than allowed.
TEST(Meeting, WhoSaysNothingKeepsNobodyWaiting) {
  const net::PortForTest own;
  const uint16_t port = own.number();
  std::vector<std::unique_ptr<net::Connection>> silent;
  std::vector<Said> said(2);
  said[1].before = [&] {
    for (int i = 0; i < 100; ++i) {
      silent.push_back(std::move(*net::Connection::connect({"127.0.0.1", port}, soon())));
      if (i % 2 > 0) continue;
      ASSERT_TRUE(silent.back()->send(std::vector<std::byte>(5)).ok()) << "a part of a head";
    }
  };
  for (const auto& result : met(said, port, 2)) EXPECT_TRUE(result.ok()) << result.error().message;
}

TEST(Meeting, SaysWhoHasNotCome) {
  std::string sentence;
  for (const int wait : {3, 30, 300}) {  // seconds: longer where the second itself came too late
    const auto deadline = net::after(std::chrono::seconds(wait));
    const net::PortForTest own;
    const uint16_t port = own.number();
    std::thread second([&] {
      EXPECT_FALSE(meet({3, 1, 3, {"127.0.0.1", port}}, Said().facts, Said().numbers, deadline).ok());
    });
    const auto first = meet({3, 0, 3, {"127.0.0.1", port}}, Said().facts, Said().numbers, deadline);
    second.join();
    ASSERT_FALSE(first.ok());
    EXPECT_EQ(first.error().code, ErrorCode::kUnavailable);
    sentence = first.error().message;
    if (sentence.find("1, 2") == std::string::npos) break;
  }
  EXPECT_THAT(sentence, HasSubstr("These nodes of 3 have not come: 2."));
  const net::PortForTest nobodys;
  const auto alone =
      meet({2, 1, 2, {"127.0.0.1", nobodys.number()}}, Said().facts, {}, net::after(std::chrono::milliseconds(50)));
  ASSERT_FALSE(alone.ok());
  EXPECT_THAT(alone.error().message, HasSubstr("Node 0 must be started"));
}

// Any client may connect to an open port.
TEST(Meeting, GoesOnAfterStrangers) {
  const net::PortForTest own;
  const uint16_t port = own.number();
  std::vector<Said> said(2);
  said[1].before = [port] {
    const auto connect = [port] { return std::move(*net::Connection::connect({"127.0.0.1", port}, soon())); };
    connect();
    const std::string_view http = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    ASSERT_TRUE(connect()->send(std::as_bytes(std::span(http))).ok());
    net::ByteWriter magic_alone;
    magic_alone.put(uint64_t{0x31534e59454c4c56});
    ASSERT_TRUE(net::send_frame(*connect(), 1, magic_alone.bytes()).ok());
  };
  for (const auto& result : met(said, port, 2)) EXPECT_TRUE(result.ok()) << result.error().message;
}

// The address may belong to another service.
TEST(Meeting, SaysThatAStrangerIsNoNode) {
  const auto listener = std::move(*net::Listener::bind({"127.0.0.1", 0}));
  for (const bool framed : {false, true}) {
    std::thread service([&] {
      const auto connection = std::move(*listener->accept(soon()));
      const std::string_view http = "HTTP/1.1 400 Bad Request\r\n\r\n";
      if (!framed) ASSERT_TRUE(connection->send(std::as_bytes(std::span(http))).ok());
      if (framed) ASSERT_TRUE(net::send_frame(*connection, 77, {}).ok());
      std::byte end[1];
      while (connection->receive(end, soon()).ok()) {
      }  // until the node is gone
    });
    const auto met = meet({2, 1, 2, listener->address()}, Said().facts, Said().numbers, soon());
    service.join();
    ASSERT_FALSE(met.ok());
    EXPECT_THAT(met.error().message,
                HasSubstr("Whoever listens at " + net::to_string(listener->address()) + " is no node 0 of Volley: "));
  }
}

// A node's name may become known only after it starts.
TEST(Meeting, TheFirstWaitsForItsOwnName) {
  const auto deadline = net::after(std::chrono::seconds(1));
  const auto met = meet({2, 0, 2, {"192.0.2.1", 29501}}, Said().facts, Said().numbers, deadline);
  ASSERT_FALSE(met.ok());
  EXPECT_GE(net::after(std::chrono::milliseconds(200)), deadline) << "it did not try again";
  EXPECT_THAT(met.error().message, HasSubstr("This machine cannot listen at 192.0.2.1:29501: "));
}

TEST(Meeting, RefusesANodeThatCannotBe) {
  const net::PortForTest own;
  const uint16_t port = own.number();
  std::vector<Said> said(2);
  said[1].before = [port] {
    const auto fourth = meet({4, 3, 4, {"127.0.0.1", port}}, Said().facts, Said().numbers, soon());
    ASSERT_FALSE(fourth.ok());
    EXPECT_THAT(fourth.error().message, HasSubstr("There is no node 3 of 2"));
  };
  for (const auto& result : met(said, port, 2)) EXPECT_TRUE(result.ok()) << result.error().message;
}

// A node may be restarted while the others are still arriving.
TEST(Meeting, WaitsAgainForANodeThatIsGone) {
  const net::PortForTest own;
  const uint16_t port = own.number();
  const auto start = [port](int node, net::Deadline deadline) {
    return meet({3, node, 3, {"127.0.0.1", port}}, Said().facts, Said().numbers, deadline);
  };
  auto first = std::async(std::launch::async, [&] { return start(0, soon()); });
  EXPECT_FALSE(start(1, net::after(std::chrono::seconds(3))).ok());
  auto third = std::async(std::launch::async, [&] { return start(2, soon()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // usually the old one comes first
  const auto again = start(1, soon());
  const auto one = first.get(), three = third.get();  // no node leaves before all have met
  for (const auto* met : {&one, &again, &three}) EXPECT_TRUE(met->ok()) << met->error().message;
}

// The node's first process is gone, or was started by mistake: the later one counts. Of two that come at once, either
// may.
TEST(Meeting, TakesANodeThatWasStartedAgain) {
  const net::PortForTest own;
  const uint16_t port = own.number();
  std::promise<std::string> refused;
  std::vector<Said> said(3);
  said[2].before = [heard = refused.get_future().share()] {
    EXPECT_THAT(heard.get(), HasSubstr("Another node 1 has come in its place"));
  };
  std::vector<Result<Links>> came;  // no node leaves before all have met
  std::mutex mutex;
  const auto come = [&](Result<Links> result) {
    const std::lock_guard lock(mutex);
    if (result.ok()) return came.push_back(std::move(result));
    refused.set_value(result.error().message);
  };
  const auto start = [&](int node) {
    return meet({3, node, 3, {"127.0.0.1", port}}, Said().facts, Said().numbers, soon());
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) threads.emplace_back([&] { come(start(1)); });
  for (const int node : {0, 2}) {
    threads.emplace_back([&, node] {
      said[static_cast<size_t>(node)].before();
      come(start(node));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(came.size(), 3u);
}

}  // namespace
}  // namespace volley::nodes
