// Repeats missed batches for CacheEventPublisher, over a ROUTER socket. At most kMostQueued batches wait for a client,
// which gets the rest as it takes them. A client misses batches that are forgotten meanwhile, and sees that by the
// numbers. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>
#include <zmq.hpp>

namespace volley::serve {

// Numbers of batches on the wire: 8 bytes, big endian.
std::array<uint8_t, 8> big_endian(uint64_t number);

inline constexpr int64_t kMaxRequestBytes = 4096;  // most bytes of a client's frame; more ends the connection

class CacheEventReplay {
 public:
  static constexpr size_t kMaxKeptBytes = size_t{256} << 20;
  static constexpr int kMostQueued = 16;
  static constexpr size_t kMaxAsked = 8;      // waiting requests of a client; further ones get no answer
  static constexpr size_t kMaxClients = 256;  // with waiting requests; those of further ones get no answer

  CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic);

  zmq::socket_t& socket() { return socket_; }  // for binding and polling
  void keep(uint64_t number, const std::vector<uint8_t>& bytes);
  // Takes requests that have come, at most kMaxClients: the rest wait. A message that is no request gets no answer.
  void receive();
  // Sends what clients have room for. Returns whether some of them wait for more.
  bool go_on();
  int64_t repeated() const { return repeated_; }  // batches

 private:
  struct Batch {
    uint64_t number = 0;
    zmq::message_t bytes;  // waiting clients share them
  };

  bool answer(const std::string& client, uint64_t& next);
  bool send(const std::string& client, const std::string& topic, uint64_t number, zmq::message_t& bytes);

  zmq::socket_t socket_;
  const size_t buffer_steps_;
  const std::string topic_;
  std::deque<Batch> kept_;
  size_t kept_bytes_ = 0;
  int64_t repeated_ = 0;
  // By client, the first number that each request asks for; the front one grows while it is answered.
  std::map<std::string, std::deque<uint64_t>> asked_;
};

}  // namespace volley::serve
