// Protects the prefix cache's news on the wire: order, numbers, repeated batches, and that publish() never waits.
#include "serve/events/cache_event_publisher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "serve/events/cache_event_replay.h"

namespace volley::serve {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Frames = std::vector<std::string>;

// A message from the socket; nothing after a minute.
Frames receive(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::rcvtimeo, 60'000);
  std::vector<zmq::message_t> parts;
  Frames frames;
  if (!zmq::recv_multipart(socket, std::back_inserter(parts))) return frames;
  for (const zmq::message_t& part : parts) frames.push_back(part.to_string());
  return frames;
}

std::string bytes_of(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

json events_of(const std::string& payload) {
  return json::from_msgpack(payload).at(1);
}

std::vector<CacheEvent> page(uint64_t hash) {
  return {{CacheEvent::Kind::kStored, hash, 0, {1, 2}, 2, {}}};
}

class CacheEventPublisherTest : public ::testing::Test {
 protected:
  CacheEventPublisherTest() {
    char folder[] = "/tmp/volley-events-XXXXXX";
    EXPECT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    options_.enabled = true;
    options_.endpoint = "ipc://" + folder_ + "/events";
    options_.topic = "kv@pod";
  }
  ~CacheEventPublisherTest() override {
    for (const char* name : {"/events", "/events_dp1", "/replay", "/replay_dp1"}) ::unlink((folder_ + name).c_str());
    ::rmdir(folder_.c_str());
  }

  std::unique_ptr<CacheEventPublisher> start(int replicas = 1) {
    auto started = CacheEventPublisher::start(options_, replicas);
    EXPECT_TRUE(started.ok()) << (started.ok() ? "" : started.error().message);
    return std::move(started.value());
  }

  // Returns a subscriber that is connected: it would never see earlier batches.
  zmq::socket_t subscribe(CacheEventPublisher& publisher, const std::string& endpoint, int replica = 0) {
    zmq::socket_t socket(context_, zmq::socket_type::sub);
    socket.set(zmq::sockopt::subscribe, "");
    socket.set(zmq::sockopt::rcvtimeo, 20);
    socket.connect(endpoint);
    for (int attempt = 0; attempt < 3000; ++attempt) {
      publisher.publish(replica, page(1000));
      ++published_;
      std::vector<zmq::message_t> parts;
      if (zmq::recv_multipart(socket, std::back_inserter(parts))) break;
    }
    // Receives all earlier batches, so that the test's come next. ZeroMQ's threads may be late.
    const auto sent = [&] { return publisher.counts().batches + publisher.counts().dropped; };
    while (sent() < static_cast<int64_t>(published_)) std::this_thread::sleep_for(1ms);
    socket.set(zmq::sockopt::rcvtimeo, 500);
    while (true) {
      std::vector<zmq::message_t> parts;
      if (!zmq::recv_multipart(socket, std::back_inserter(parts))) return socket;
    }
  }

  static void ask(zmq::socket_t& socket, uint64_t number) {
    const std::string first = bytes_of(number);
    zmq::send_multipart(socket, std::array<zmq::const_buffer, 2>{zmq::const_buffer(), zmq::buffer(first)});
  }

  zmq::socket_t ask_from(uint64_t number) {
    zmq::socket_t socket(context_, zmq::socket_type::dealer);
    socket.connect(options_.replay_endpoint);
    ask(socket, number);
    return socket;
  }

  zmq::context_t context_;
  std::string folder_;
  CacheEventOptions options_;
  uint64_t published_ = 0;  // by subscribe()
};

TEST_F(CacheEventPublisherTest, SendsBatchesInOrderWithTheirNumbers) {
  const auto publisher = start();
  zmq::socket_t subscriber = subscribe(*publisher, options_.endpoint);
  for (uint64_t i = 0; i < 100; ++i) publisher->publish(0, page(i + 1));
  publisher->publish(0, {});  // an empty batch uses no number
  publisher->publish(0, page(101));
  for (uint64_t i = 0; i <= 100; ++i) {
    const Frames frames = receive(subscriber);
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(frames[0], "kv@pod");
    EXPECT_EQ(frames[1], bytes_of(published_ + i));
    EXPECT_EQ(events_of(frames[2])[0].at("block_hashes")[0], i + 1);
  }
  EXPECT_EQ(publisher->counts().batches, static_cast<int64_t>(published_ + 101));
  EXPECT_EQ(publisher->counts().dropped, 0);
}

TEST_F(CacheEventPublisherTest, RepeatsWhatIsKept) {
  options_.replay_endpoint = "ipc://" + folder_ + "/replay";
  options_.buffer_steps = 3;
  const auto publisher = start();
  for (uint64_t i = 0; i < 5; ++i) publisher->publish(0, page(i + 1));
  while (publisher->counts().batches < 5) std::this_thread::sleep_for(1ms);
  for (const uint64_t from : {uint64_t{0}, uint64_t{3}, uint64_t{9}}) {
    zmq::socket_t socket = ask_from(from);
    for (uint64_t number = std::max<uint64_t>(from, 2); number < 5; ++number) {
      const Frames frames = receive(socket);
      ASSERT_EQ(frames.size(), 4u) << "from " << from;
      EXPECT_EQ(frames[0], "");
      EXPECT_EQ(frames[1], "kv@pod");
      EXPECT_EQ(frames[2], bytes_of(number));
      EXPECT_EQ(events_of(frames[3])[0].at("block_hashes")[0], number + 1);
    }
    EXPECT_EQ(receive(socket), (Frames{"", "", bytes_of(~uint64_t{0}), ""}));
  }
}

// A few batches wait for a client, however much it asks for, and all of it comes.
TEST_F(CacheEventPublisherTest, LittleWaitsForAClientThatTakesNothing) {
  options_.replay_endpoint = "ipc://" + folder_ + "/replay";
  const auto publisher = start();
  std::vector<CacheEvent> large;
  for (uint64_t i = 1; i <= 500; ++i) {
    large.push_back({CacheEvent::Kind::kStored, 2 * i, 2 * i + 1, std::vector<TokenId>(64, 7), 64, {}});
  }
  constexpr uint64_t kBatches = 50;
  for (uint64_t i = 0; i < kBatches; ++i) publisher->publish(0, large);
  while (publisher->counts().batches < static_cast<int64_t>(kBatches)) std::this_thread::sleep_for(1ms);
  std::vector<zmq::socket_t> clients;
  for (int i = 0; i < 2; ++i) {
    zmq::socket_t& client = clients.emplace_back(context_, zmq::socket_type::dealer);
    client.set(zmq::sockopt::rcvhwm, 1);
    client.set(zmq::sockopt::linger, 0);
    client.connect(options_.replay_endpoint);
    for (size_t j = 0; j < CacheEventReplay::kMaxAsked + 10; ++j) ask(client, 0);
  }
  while (publisher->counts().repeated < 2 * CacheEventReplay::kMostQueued) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(100ms);
  constexpr int64_t kInBuffersOfTheSystem = 16;
  EXPECT_LE(publisher->counts().repeated, 2 * (CacheEventReplay::kMostQueued + kInBuffersOfTheSystem));
  clients.pop_back();  // one leaves; the other takes its answers, one after another
  for (size_t answer = 0; answer < CacheEventReplay::kMaxAsked; ++answer) {
    for (uint64_t number = 0; number < kBatches; ++number) {
      const Frames frames = receive(clients[0]);
      ASSERT_EQ(frames.size(), 4u) << number;
      ASSERT_EQ(frames[2], bytes_of(number));
    }
    ASSERT_EQ(receive(clients[0]), (Frames{"", "", bytes_of(~uint64_t{0}), ""})) << answer;
  }
  clients[0].set(zmq::sockopt::rcvtimeo, 50);
  zmq::message_t further;
  EXPECT_FALSE(clients[0].recv(further)) << "requests past kMaxAsked get no answer";
  clients[0].set(zmq::sockopt::rcvtimeo, 10'000);
  ask(clients[0], kBatches);
  EXPECT_EQ(receive(clients[0]).size(), 4u) << "it may ask again";
}

TEST_F(CacheEventPublisherTest, WhatIsNoRequestIsPassedOver) {
  options_.replay_endpoint = "ipc://" + folder_ + "/replay";
  const auto publisher = start();
  zmq::socket_t socket(context_, zmq::socket_type::dealer);
  socket.connect(options_.replay_endpoint);
  socket.send(zmq::str_buffer("hello"), zmq::send_flags::none);
  zmq::send_multipart(socket, std::array<zmq::const_buffer, 2>{zmq::const_buffer(), zmq::str_buffer("123456789")});
  zmq::socket_t asking(context_, zmq::socket_type::req);  // a REQ socket writes the empty frame itself
  asking.connect(options_.replay_endpoint);
  asking.send(zmq::buffer(bytes_of(0)), zmq::send_flags::none);
  EXPECT_EQ(receive(asking), (Frames{"", bytes_of(~uint64_t{0}), ""})) << "nobody else is held up";
  socket.set(zmq::sockopt::rcvtimeo, 50);
  zmq::message_t answer;
  EXPECT_FALSE(socket.recv(answer));
}

// Batches of this size come faster than the thread sends, and each publish() must return at once.
TEST_F(CacheEventPublisherTest, AFullQueueDropsAndSaysSo) {
  options_.max_queue_size = 1;
  const auto publisher = start();
  zmq::socket_t subscriber = subscribe(*publisher, options_.endpoint);
  const int64_t before = publisher->counts().dropped;
  std::vector<CacheEvent> large;
  for (uint64_t i = 1; i <= 2000; ++i) {
    large.push_back({CacheEvent::Kind::kStored, 2 * i, 2 * i + 1, std::vector<TokenId>(64, 7), 64, {}});
  }
  uint64_t sent = 0;
  for (; sent < 2000 && publisher->counts().dropped == before; ++sent) publisher->publish(0, large);
  ASSERT_GT(publisher->counts().dropped, before);
  // Batches after the gap begin with AllBlocksCleared.
  while (publisher->counts().batches + publisher->counts().dropped < static_cast<int64_t>(published_ + sent)) {
    std::this_thread::sleep_for(1ms);
  }
  publisher->publish(0, page(5));
  std::optional<uint64_t> last;
  bool gap = false;
  for (bool end = false; !end;) {
    const Frames frames = receive(subscriber);
    ASSERT_EQ(frames.size(), 3u);
    uint64_t number = 0;
    for (const char byte : frames[1]) number = number << 8 | static_cast<uint8_t>(byte);
    const json events = events_of(frames[2]);
    const bool missing = last && number != *last + 1;
    if (last) {
      EXPECT_EQ(events[0].at("type") == "AllBlocksCleared", missing) << number;
    }
    gap = gap || missing;
    last = number;
    end = events.back().at("block_hashes") == json({5});
  }
  EXPECT_TRUE(gap);
}

TEST_F(CacheEventPublisherTest, EachReplicaHasItsOwnSocketAndNumbers) {
  const auto publisher = start(2);
  zmq::socket_t second = subscribe(*publisher, options_.endpoint + "_dp1", 1);
  publisher->publish(0, page(1));
  publisher->publish(1, page(2));
  const Frames frames = receive(second);
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[1], bytes_of(published_));
  EXPECT_EQ(json::from_msgpack(frames[2]).at(2), 1) << "the rank";
  EXPECT_EQ(events_of(frames[2])[0].at("block_hashes")[0], 2);
}

TEST_F(CacheEventPublisherTest, WhatIsQueuedAtTheEndIsSent) {
  auto publisher = start();
  zmq::socket_t subscriber = subscribe(*publisher, options_.endpoint);
  for (uint64_t i = 1; i <= 50; ++i) publisher->publish(0, page(i));
  publisher.reset();
  for (uint64_t i = 1; i <= 50; ++i) {
    const Frames frames = receive(subscriber);
    ASSERT_EQ(frames.size(), 3u);
    EXPECT_EQ(events_of(frames[2])[0].at("block_hashes")[0], i);
  }
}

TEST_F(CacheEventPublisherTest, AddressesThatAreTakenOrNone) {
  options_.endpoint = "tcp://*:*";
  const auto several = CacheEventPublisher::start(options_, 2);
  ASSERT_FALSE(several.ok());
  EXPECT_EQ(several.error().code, ErrorCode::kInvalidArgument) << "there is no port to count from";

  zmq::socket_t other(context_, zmq::socket_type::pub);
  other.bind("tcp://*:*");
  options_.endpoint = other.get(zmq::sockopt::last_endpoint);  // tcp://0.0.0.0:PORT
  const auto taken = CacheEventPublisher::start(options_, 1);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(taken.error().message.find(options_.endpoint), std::string::npos);

  options_.endpoint = "http://somewhere:1";
  const auto none = CacheEventPublisher::start(options_, 1);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
}

TEST(CacheEventOptions, AreVllms) {
  const auto options = parse_cache_event_options(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:6000",
          "replay_endpoint": "tcp://*:6001", "buffer_steps": 5, "hwm": 6, "max_queue_size": 7, "topic": "t"})");
  ASSERT_TRUE(options.ok());
  EXPECT_TRUE(options->enabled);
  EXPECT_EQ(options->endpoint, "tcp://*:6000");
  EXPECT_EQ(options->replay_endpoint, "tcp://*:6001");
  EXPECT_EQ(options->buffer_steps, 5);
  EXPECT_EQ(options->hwm, 6);
  EXPECT_EQ(options->max_queue_size, 7);
  EXPECT_EQ(options->topic, "t");
  EXPECT_FALSE(parse_cache_event_options("{}")->enabled);
  EXPECT_FALSE(parse_cache_event_options(R"({"enable_kv_cache_events": true, "publisher": "null"})")->enabled);
  EXPECT_TRUE(parse_cache_event_options(R"({"enable_kv_cache_events": true, "publisher": null})")->enabled);
}

TEST(CacheEventOptions, ThatAreWrongAreNamed) {
  const auto message = [](const char* text) {
    const auto options = parse_cache_event_options(text);
    return options.ok() ? "" : options.error().message;
  };
  EXPECT_NE(message("yes").find("JSON object"), std::string::npos);
  EXPECT_NE(message("[1]").find("JSON object"), std::string::npos);
  EXPECT_NE(message(R"({"endpont": "x"})").find("\"endpont\""), std::string::npos);
  EXPECT_NE(message(R"({"endpoint": 5})").find("a string"), std::string::npos);
  EXPECT_NE(message(R"({"hwm": 0})").find("\"hwm\""), std::string::npos);
  EXPECT_NE(message(R"({"buffer_steps": 1.5})").find("whole number"), std::string::npos);
  EXPECT_NE(message(R"({"publisher": "kafka"})").find("publisher"), std::string::npos);
  EXPECT_NE(message(R"({"enable_kv_cache_events": 1})").find("true or false"), std::string::npos);
}

}  // namespace
}  // namespace volley::serve
