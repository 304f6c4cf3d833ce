// What a ROUTER socket would be for CacheEventPublisher: it repeats batches that subscribers missed. ZeroMQ would
// collect a client's message without end, and queue a whole answer for one that takes nothing. So the socket moves
// bytes alone (ZMQ_STREAM), which ZmtpReader reads, and a client has at most kMaxQueuedBytes waiting, and gets the rest
// as it takes them. What is forgotten meanwhile it misses, and sees by the numbers. The bytes of a batch exist once,
// for everybody who waits for them.
//
// Threads: one, but for bytes_waiting().
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
  static constexpr size_t kMaxAsked = 8;      // requests of a client that wait; further ones get nothing
  static constexpr size_t kMaxClients = 256;  // at once; one more is turned away

  // wake: an eventfd, written to when go_on() has something to do. The context must end (zmq::context_t::close())
  // before it is closed: until then ZeroMQ's threads write to it.
  CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic, int wake);

  zmq::socket_t& socket() { return socket_; }  // to bind and to wait for
  void keep(uint64_t number, std::vector<uint8_t> bytes);
  // Takes what a client has sent, if something is there. A message that is no request is passed over: whoever sent it
  // gets nothing. What is no message, or is too large for one, ends the connection.
  void receive();
  // Sends what clients have room for.
  void go_on();
  // For all clients together, of answers that ZeroMQ has not yet sent; with what a message takes beside its bytes.
  size_t bytes_waiting() const { return waiting_->load(); }

 private:
  using Bytes = std::shared_ptr<const std::vector<uint8_t>>;
  struct Sent {
    uint64_t number = 0;
    Bytes bytes;
  };
  // What waits for one client, which ZeroMQ's threads make less.
  struct Queue {
    std::atomic<size_t> bytes{0};
    std::shared_ptr<std::atomic<size_t>> of_all;
    int wake = -1;
  };
  struct Held;  // by a message
  struct Client {
    std::deque<uint64_t> asked = {};  // first numbers wanted; that of the front grows as it is answered
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
  std::map<std::string, Client> clients_;  // those that are connected
  const std::shared_ptr<std::atomic<size_t>> waiting_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace volley::serve
