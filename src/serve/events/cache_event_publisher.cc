#include "serve/events/cache_event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "base/check.h"
#include "serve/events/cache_event_batch.h"
#include "serve/events/cache_event_replay.h"

namespace volley::serve {
namespace {

constexpr std::chrono::milliseconds kLastWords{500};  // for subscribers to take the last batches
constexpr std::chrono::milliseconds kNextAttempt{1};  // to repeat more, while a client has no room: 16 batches each

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// vLLM's rule, and an address that means the same as '*'.
bool binds(const std::string& endpoint) {
  const auto holds = [&](const char* part) { return endpoint.find(part) != std::string::npos; };
  return holds("*") || holds("::") || holds("://0.0.0.0:") || endpoint.starts_with("ipc://") ||
         endpoint.starts_with("inproc://");
}

// One replica's address; nothing: it has no port to count from.
std::optional<std::string> endpoint_of(const std::string& endpoint, int replica) {
  if (replica == 0) return endpoint;
  if (!endpoint.starts_with("tcp://")) return endpoint + "_dp" + std::to_string(replica);
  const size_t colon = endpoint.rfind(':');
  const std::string digits = endpoint.substr(colon + 1);
  if (digits.empty() || digits.size() > 5 || digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return endpoint.substr(0, colon + 1) + std::to_string(std::stoi(digits) + replica);
}

}  // namespace

// A TCP endpoint's port, or 0.
int64_t port_of(const std::string& endpoint) {
  if (!endpoint.starts_with("tcp://")) return 0;
  const std::string digits = endpoint.substr(endpoint.rfind(':') + 1);
  const bool number = !digits.empty() && digits.size() <= 5 && digits.find_first_not_of("0123456789") == digits.npos;
  return number ? std::stoi(digits) : 0;
}

// Replicas count their ports from the options', so these must lie far enough apart and below the highest.
Status check_ports(const CacheEventOptions& options, int replicas) {
  const int64_t events = port_of(options.endpoint), replay = port_of(options.replay_endpoint);
  if (events > 0 && replay > 0 && std::abs(events - replay) < replicas) {
    return invalid_argument(
        "--kv-events-config: " + std::to_string(replicas) +
        " replicas take as many ports from those of endpoint and replay_endpoint on: keep these so " + "far apart.");
  }
  if (std::max(events, replay) + replicas - 1 > 65'535) {
    return invalid_argument("--kv-events-config: there is no port after 65535 for the last of " +
                            std::to_string(replicas) + " replicas: use lower ones.");
  }
  return {};
}

// One replica's publisher. Its thread owns the sockets; publish() and the thread share the queue.
class CacheEventPublisher::Stream {
 public:
  Stream(const CacheEventOptions& options, int replica) : options_(options), replica_(replica) {}
  ~Stream();

  Status open();
  void publish(std::span<const CacheEvent> events);
  Counts counts() const { return {sent_.load(), dropped_.load(), repeated_.load()}; }

 private:
  struct Batch {
    uint64_t number = 0;
    double seconds = 0;
    std::vector<CacheEvent> events;
  };

  Status attach(zmq::socket_t& socket, const std::string& endpoint, bool bind);
  void run();
  void send_queued();
  void send(const Batch& batch);
  void wake();

  const CacheEventOptions options_;
  const int replica_;
  zmq::context_t context_{1};
  zmq::socket_t publisher_;
  std::unique_ptr<CacheEventReplay> replay_;  // null: no batches are repeated
  int wake_ = -1;                             // eventfd: the queue has batches, or the end has come

  std::mutex mutex_;
  std::deque<Batch> queue_;  // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_

  uint64_t next_ = 0;    // publish() alone
  bool missed_ = false;  // publish() alone: a batch was dropped, and no later one was queued
  std::atomic<int64_t> sent_{0}, dropped_{0}, repeated_{0};

  std::thread thread_;
};

Status CacheEventPublisher::Stream::attach(zmq::socket_t& socket, const std::string& endpoint, bool bind) {
  const std::optional<std::string> own = endpoint_of(endpoint, replica_);
  if (!own) {
    return invalid_argument("--kv-events-config: the endpoint " + endpoint + " has no port from which those of " +
                            "further replicas could follow. Write one, as in tcp://*:5557.");
  }
  try {
    bind ? socket.bind(*own) : socket.connect(*own);
  } catch (const zmq::error_t& error) {
    const std::string what =
        "--kv-events-config: " + *own + " cannot be " + (bind ? "bound" : "connected to") + ": " + error.what() + ". ";
    if (error.num() == EINVAL || error.num() == EPROTONOSUPPORT) {
      return invalid_argument(what + "Write an address like tcp://*:5557 or ipc:///run/volley/events.");
    }
    return Error{ErrorCode::kUnavailable, what + "Choose another address or end what uses it."};
  }
  return {};
}

Status CacheEventPublisher::Stream::open() {
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) {
    return Error{ErrorCode::kUnavailable,
                 "--kv-events-config: the process may not open another file: raise ulimit -n."};
  }
  publisher_ = zmq::socket_t(context_, zmq::socket_type::pub);
  publisher_.set(zmq::sockopt::sndhwm, options_.hwm);
  publisher_.set(zmq::sockopt::linger, static_cast<int>(kLastWords.count()));
  publisher_.set(zmq::sockopt::ipv6, true);
  publisher_.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
  if (const Status bound = attach(publisher_, options_.endpoint, binds(options_.endpoint)); !bound.ok()) return bound;
  if (!options_.replay_endpoint.empty()) {
    replay_ = std::make_unique<CacheEventReplay>(context_, options_.buffer_steps, options_.topic);
    if (const Status bound = attach(replay_->socket(), options_.replay_endpoint, true); !bound.ok()) return bound;
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

CacheEventPublisher::Stream::~Stream() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }
  replay_.reset();
  publisher_.close();
  if (wake_ >= 0) ::close(wake_);
}

void CacheEventPublisher::Stream::wake() {
  const uint64_t one = 1;
  // A write fails only if so many wakes wait that the thread will see one.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof(one));
}

void CacheEventPublisher::Stream::publish(std::span<const CacheEvent> events) {
  if (events.empty()) return;
  Batch batch{next_++, unix_time(), {}};
  batch.events.reserve(events.size() + 1);
  if (missed_) batch.events.emplace_back().kind = CacheEvent::Kind::kCleared;
  batch.events.insert(batch.events.end(), events.begin(), events.end());
  {
    const std::lock_guard lock(mutex_);
    missed_ = queue_.size() >= static_cast<size_t>(options_.max_queue_size);
    if (!missed_) queue_.push_back(std::move(batch));
  }
  missed_ ? void(dropped_.fetch_add(1)) : wake();
}

void CacheEventPublisher::Stream::run() {
  std::vector<zmq::pollitem_t> items = {{nullptr, wake_, ZMQ_POLLIN, 0}};
  if (replay_) items.push_back({replay_->socket().handle(), 0, ZMQ_POLLIN, 0});
  for (bool repeats = false;;) {
    try {
      zmq::poll(items, repeats ? kNextAttempt : std::chrono::milliseconds(-1));
    } catch (const zmq::error_t& error) {
      if (error.num() != EINTR) return;
      continue;
    }
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t read = ::read(wake_, &wakes, sizeof(wakes));
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = stopping_;
    }
    send_queued();
    if (last) return;
    if (!replay_) continue;
    try {
      replay_->receive();
    } catch (const zmq::error_t&) {  // the client asks again
    }
    repeats = replay_->go_on();
    repeated_ = replay_->repeated();
  }
}

void CacheEventPublisher::Stream::send_queued() {
  for (;;) {
    Batch batch;
    {
      const std::lock_guard lock(mutex_);
      if (queue_.empty()) return;
      batch = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      send(batch);
      sent_.fetch_add(1);
    } catch (const zmq::error_t&) {  // every subscriber sees a gap
      dropped_.fetch_add(1);
    }
  }
}

void CacheEventPublisher::Stream::send(const Batch& batch) {
  const std::vector<uint8_t> bytes = encode_cache_events(batch.seconds, batch.events, replica_);
  const auto number = big_endian(batch.number);
  const std::array<zmq::const_buffer, 3> frames = {zmq::buffer(options_.topic), zmq::buffer(number),
                                                   zmq::buffer(bytes)};
  // A PUB socket never waits: a subscriber without room misses the batch, and sees that by the number.
  zmq::send_multipart(publisher_, frames);
  if (replay_) replay_->keep(batch.number, bytes);
}

CacheEventPublisher::CacheEventPublisher(std::vector<std::unique_ptr<Stream>> streams) : streams_(std::move(streams)) {}
CacheEventPublisher::~CacheEventPublisher() = default;

Result<std::unique_ptr<CacheEventPublisher>> CacheEventPublisher::start(const CacheEventOptions& options,
                                                                        int replicas) {
  VOLLEY_RETURN_IF_ERROR(check_ports(options, replicas));
  std::vector<std::unique_ptr<Stream>> streams;
  for (int replica = 0; replica < replicas; ++replica) {
    streams.push_back(std::make_unique<Stream>(options, replica));
    if (const Status opened = streams.back()->open(); !opened.ok()) return opened.error();
  }
  return std::unique_ptr<CacheEventPublisher>(new CacheEventPublisher(std::move(streams)));
}

void CacheEventPublisher::publish(int replica, std::span<const CacheEvent> events) {
  VOLLEY_CHECK(replica >= 0 && static_cast<size_t>(replica) < streams_.size());
  streams_[static_cast<size_t>(replica)]->publish(events);
}

CacheEventPublisher::Counts CacheEventPublisher::counts() const {
  Counts all;
  for (const auto& stream : streams_) {
    const Counts counts = stream->counts();
    all.batches += counts.batches;
    all.dropped += counts.dropped;
    all.repeated += counts.repeated;
  }
  return all;
}

}  // namespace volley::serve
