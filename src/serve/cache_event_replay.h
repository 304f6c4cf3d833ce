// The ROUTER socket of CacheEventPublisher, which repeats batches that subscribers missed. ZeroMQ would queue a whole
// answer for a client that takes nothing: here a client has at most kMaxQueuedBytes waiting, and gets the rest as it
// takes them. What is forgotten meanwhile it misses, and sees by the numbers. The bytes of a batch exist once, for
// everybody who waits for them.
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

namespace volley::serve {

class CacheEventReplay {
 public:
  static constexpr size_t kMaxKeptBytes = size_t{256} << 20;
  // A larger batch waits alone.
  static constexpr size_t kMaxQueuedBytes = size_t{4} << 20;
  static constexpr size_t kMaxAsked = 8;  // requests of a client that wait; further ones get nothing

  // wake: an eventfd, written to when go_on() has something to do. The context must end (zmq::context_t::close())
  // before it is closed: until then ZeroMQ's threads write to it.
  CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic, int wake);

  zmq::socket_t& socket() { return socket_; }  // to bind and to wait for
  void keep(uint64_t number, std::vector<uint8_t> bytes);
  // Takes a request, if one is there. Anything that is none is passed over: whoever sent it gets nothing.
  void receive();
  // Sends what clients have room for.
  void go_on();
  // For all clients together, of batches that ZeroMQ has not yet sent; with what a message takes beside its bytes.
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
    std::deque<uint64_t> asked;  // first numbers wanted; that of the front grows as it is answered
    std::shared_ptr<Queue> queue;
  };

  bool answer(const std::string& name, Client& client);
  bool send(const std::string& name, Client& client, uint64_t number, const Bytes& bytes);

  zmq::socket_t socket_;
  const size_t buffer_steps_;
  const std::string topic_;
  const int wake_;
  std::deque<Sent> kept_;
  size_t kept_bytes_ = 0;
  std::map<std::string, Client> clients_;  // who waits for something
  const std::shared_ptr<std::atomic<size_t>> waiting_ = std::make_shared<std::atomic<size_t>>(0);
};

}  // namespace volley::serve
