// Tells routers which prefixes are cached here, over ZeroMQ in vLLM's protocol: a PUB socket sends (topic, sequence
// number, batch), and a ROUTER socket repeats batches that a subscriber missed. Sequence numbers are 8 bytes, big
// endian, from 0 on; each replica has its own sockets and numbers.
//
// To ask again, a DEALER or REQ socket sends (empty, first number wanted). It gets (empty, topic, number, batch) for
// each kept batch from there on, and at last (empty, empty, -1, empty).
#pragma once

#include <volley/cache_events.h>
#include <volley/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley::serve {

// vLLM's KVEventsConfig: names, meanings and defaults.
struct CacheEventOptions {
  bool enabled = false;  // enable_kv_cache_events is set, and `publisher` is not "null"
  // Bound if the address has '*', "::" or 0.0.0.0, or is ipc:// or inproc://; others are connected to. Replica i adds i
  // to the port, or "_dpI" to a name.
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;   // bound; empty: no batches are repeated
  int buffer_steps = 10'000;     // batches that can be repeated, in at most 256 MiB
  int hwm = 100'000;             // batches that wait for one slow subscriber, which misses further ones
  int max_queue_size = 100'000;  // batches that wait to be sent; further ones are dropped
  std::string topic;
};

// `json`: the value of --kv-events-config. kInvalidArgument: no object of these fields.
Result<CacheEventOptions> parse_cache_event_options(std::string_view json);

class CacheEventPublisher {
 public:
  struct Counts {
    int64_t batches = 0;  // handed to ZeroMQ
    int64_t dropped = 0;  // found the queue full
    int64_t repeated = 0;
  };

  // kUnavailable: an address cannot be bound. kInvalidArgument: it is no address.
  static Result<std::unique_ptr<CacheEventPublisher>> start(const CacheEventOptions& options, int replicas);
  // Sends queued batches first.
  ~CacheEventPublisher();

  // Queues a batch, without waiting for the network: a full queue drops it. The dropped number is used up, so that
  // subscribers see a gap, and the next batch begins with AllBlocksCleared: what they know afterwards is true, if not
  // complete. One thread at a time for each replica.
  void publish(int replica, std::span<const CacheEvent> events);

  Counts counts() const;  // sums over all replicas; any thread

 private:
  class Stream;
  explicit CacheEventPublisher(std::vector<std::unique_ptr<Stream>> streams);

  const std::vector<std::unique_ptr<Stream>> streams_;  // by replica
};

}  // namespace volley::serve
