// Repeats missed batches for CacheEventPublisher, in place of a ROUTER socket. ZeroMQ would collect a client's message
// without bound, and queue a whole answer for a client that takes nothing. So the socket only moves bytes (ZMQ_STREAM),
// which ZmtpReader reads, and at most kMaxQueuedBytes wait for a client, which gets the rest as it takes them. A client
// misses batches that are forgotten meanwhile, and sees that by the numbers. All waiting clients share a batch's bytes.
//
// Threads: one, except for bytes_waiting().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "serve/events/zmtp.h"

namespace volley::serve {

class CacheEventReplay {
 public:
  static constexpr size_t kMaxKeptBytes = size_t{256} << 20;
  // A larger batch waits alone.
  static constexpr size_t kMaxQueuedBytes = size_t{4} << 20;
  static constexpr size_t kMaxAsked = 8;      // waiting requests of a client; further ones get no answer
  static constexpr size_t kMaxClients = 256;  // at once; further ones are turned away

  // wake: an eventfd, written to when go_on() has work. End the context (zmq::context_t::close()) before closing it,
  // because ZeroMQ's threads write to it until then.
  CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic, int wake);

  zmq::socket_t& socket() { return socket_; }  // for binding and polling
  void keep(uint64_t number, std::vector<uint8_t> bytes);
  // Takes what a client has sent, if anything. A message that is no request gets no answer. Bytes that are no message,
  // or too large a message, end the connection.
  void receive();
  // Sends what clients have room for.
  void go_on();
  // Waiting bytes of all clients' answers, including overhead for each message, until ZeroMQ has sent them.
  size_t bytes_waiting() const { return waiting_->load(); }

 private:
  using Bytes = std::shared_ptr<const std::vector<uint8_t>>;
  struct Sent {
    uint64_t number = 0;
    Bytes bytes;
  };
  // Bytes waiting for one client; ZeroMQ's threads lower it.
  struct Queue {
    std::atomic<size_t> bytes{0};
    std::shared_ptr<std::atomic<size_t>> of_all;
    int wake = -1;
  };
  struct Held;  // held by a message
  struct Client {
    std::deque<uint64_t> asked = {};  // the first number that each asks for; the front one grows while it is answered
    std::shared_ptr<Queue> queue = {};
    std::unique_ptr<ZmtpReader> reader = {};
  };

  void connect(const std::string& name);
  void disconnect(const std::string& name);
  static void take_request(Client& client, const ZmtpReader::Message& message);
  static bool has_room(const Client& client, size_t bytes);
  bool answer(const std::string& name, Client& client);
  bool send(const std::string& name, Client& client, uint64_t number, const Bytes& bytes);
  bool send_counted(const std::string& name, Client& client, std::string head, const Bytes& bytes);
  bool write(const std::string& name, zmq::message_t bytes);

  zmq::socket_t socket_;
  const size_t buffer_steps_;
  const std::string topic_;
  const int wake_;
  std::deque<Sent> kept_;
  size_t kept_bytes_ = 0;
  std::map<std::string, Client> clients_;  // connected ones
  const std::shared_ptr<std::atomic<size_t>> waiting_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace volley::serve
