// Tells routers which prefixes are cached here, over ZeroMQ in vLLM's protocol: a PUB socket sends (topic, sequence
// number, batch) and a ROUTER socket repeats batches that a subscriber missed. Sequence numbers are 8 bytes, big
// endian, from 0 on; each replica has sockets and numbers of its own.
//
// To ask again, a DEALER or REQ socket sends (empty, first number wanted); it gets (empty, topic, number, batch) for
// each batch that is kept from there on, and at last (empty, empty, -1, empty). At most 4 MiB, or one batch, wait for a
// client: it gets more as it takes them (serve/cache_event_replay.h).
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
  bool enabled = false;  // enable_kv_cache_events, and `publisher` is not "null"
  // An address with '*', "::" or 0.0.0.0 in it, ipc:// and inproc:// are bound, others connected to. Replica i adds i
  // to the port, or "_dpI" to a name.
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;   // bound; empty: nothing is repeated
  int buffer_steps = 10'000;     // batches that can be repeated, in at most 256 MiB
  int hwm = 100'000;             // batches that wait for one slow subscriber; further ones it misses
  int max_queue_size = 100'000;  // batches that wait to be sent; further ones are dropped
  std::string topic;
};

// `json` as after --kv-events-config. kInvalidArgument: it is no object of these fields.
Result<CacheEventOptions> parse_cache_event_options(std::string_view json);

class CacheEventPublisher {
 public:
  struct Counts {
    int64_t batches = 0;  // handed to ZeroMQ
    int64_t dropped = 0;  // batches that found the queue full
    size_t replay = 0;    // bytes of repeated batches that wait for their clients
  };

  // kUnavailable: an address cannot be bound. kInvalidArgument: it is none.
  static Result<std::unique_ptr<CacheEventPublisher>> start(const CacheEventOptions& options, int replicas);
  // Sends what is queued first.
  ~CacheEventPublisher();

  // Queues a batch. Never waits for the network: where the queue is full the batch is dropped. Its number is used up,
  // so that subscribers see a gap, and the next batch begins with AllBlocksCleared: what they then know is true, if not
  // everything. Of one replica from one thread at a time.
  void publish(int replica, std::span<const CacheEvent> events);

  Counts counts() const;  // of all replicas; any thread

 private:
  class Stream;
  explicit CacheEventPublisher(std::vector<std::unique_ptr<Stream>> streams);

  const std::vector<std::unique_ptr<Stream>> streams_;  // by replica
};

}  // namespace volley::serve
