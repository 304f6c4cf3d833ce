#include "serve/cache_event_replay.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <zmq_addon.hpp>

#include "serve/cache_event_wire.h"

namespace volley::serve {
namespace {

constexpr uint64_t kEndOfReplay = ~uint64_t{0};  // -1
constexpr size_t kMessageBytes = 512;            // that a message takes beside its payload, roughly

}  // namespace

struct CacheEventReplay::Held {
  Bytes bytes;
  std::shared_ptr<Queue> queue;
  size_t cost = 0;

  // ZeroMQ calls it on a thread of its own, once, when the payload is sent or given up.
  static void release(void*, void* hint) {
    const std::unique_ptr<Held> held(static_cast<Held*>(hint));
    held->queue->of_all->fetch_sub(held->cost);
    const size_t left = held->queue->bytes.fetch_sub(held->cost) - held->cost;
    if (left > kMaxQueuedBytes / 2) return;  // the last one is below in any case
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(held->queue->wake, &one, sizeof(one));
  }
};

CacheEventReplay::CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic, int wake)
    : socket_(context, zmq::socket_type::router),
      buffer_steps_(static_cast<size_t>(buffer_steps)),
      topic_(std::move(topic)),
      wake_(wake) {
  socket_.set(zmq::sockopt::sndhwm, 0);  // queues are bounded here
  socket_.set(zmq::sockopt::router_mandatory, true);
  socket_.set(zmq::sockopt::linger, 0);
  socket_.set(zmq::sockopt::ipv6, true);
  socket_.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
}

void CacheEventReplay::keep(uint64_t number, std::vector<uint8_t> bytes) {
  kept_bytes_ += bytes.size();
  kept_.push_back({number, std::make_shared<const std::vector<uint8_t>>(std::move(bytes))});
  while (!kept_.empty() && (kept_.size() > buffer_steps_ || kept_bytes_ > kMaxKeptBytes)) {
    kept_bytes_ -= kept_.front().bytes->size();
    kept_.pop_front();
  }
}

void CacheEventReplay::receive() {
  std::vector<zmq::message_t> request;
  if (!zmq::recv_multipart(socket_, std::back_inserter(request), zmq::recv_flags::dontwait)) return;
  if (request.size() != 3 || request[1].size() != 0 || request[2].size() != 8) return;
  const std::string name = request[0].to_string();
  auto found = clients_.find(name);
  if (found == clients_.end()) {
    const auto queue = std::make_shared<Queue>();
    queue->of_all = waiting_;
    queue->wake = wake_;
    found = clients_.try_emplace(name, Client{.queue = queue}).first;
  }
  Client& client = found->second;
  if (client.asked.size() < kMaxAsked) client.asked.push_back(from_big_endian(request[2]));
}

void CacheEventReplay::go_on() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    const bool there = answer(it->first, it->second);
    // While something waits it is known: else a client that asks again would have another queue.
    const bool waits = !it->second.asked.empty() || it->second.queue->bytes > 0;
    it = there && waits ? std::next(it) : clients_.erase(it);
  }
}

// Whether the client is still there.
bool CacheEventReplay::answer(const std::string& name, Client& client) {
  const auto has_room = [&](size_t bytes) {
    const size_t queued = client.queue->bytes;
    return queued == 0 || queued + bytes + kMessageBytes <= kMaxQueuedBytes;
  };
  while (!client.asked.empty()) {
    uint64_t& next = client.asked.front();
    const auto later = std::ranges::lower_bound(kept_, next, {}, &Sent::number);
    for (auto sent = later; sent != kept_.end(); ++sent) {
      if (!has_room(sent->bytes->size())) return true;
      if (!send(name, client, sent->number, sent->bytes)) return false;
      next = sent->number + 1;
    }
    if (!has_room(0)) return true;
    if (!send(name, client, kEndOfReplay, std::make_shared<const std::vector<uint8_t>>())) return false;
    client.asked.pop_front();
  }
  return true;
}

// False: the client has gone.
bool CacheEventReplay::send(const std::string& name, Client& client, uint64_t number, const Bytes& bytes) {
  const auto encoded = big_endian(number);
  std::unique_ptr<Held> held(new Held{bytes, client.queue, bytes->size() + kMessageBytes});
  // ZeroMQ only reads it. Without an address it would never give an empty payload back.
  void* const data = bytes->empty() ? held.get() : static_cast<void*>(const_cast<uint8_t*>(bytes->data()));
  std::array<zmq::message_t, 5> frames;
  frames[0] = zmq::message_t(name);
  if (number != kEndOfReplay) frames[2] = zmq::message_t(topic_);
  frames[3] = zmq::message_t(encoded.data(), encoded.size());
  frames[4] = zmq::message_t(data, bytes->size(), &Held::release, held.get());
  client.queue->of_all->fetch_add(held->cost);
  client.queue->bytes.fetch_add(held->cost);
  held.release();  // to the message: NOLINT(bugprone-unused-return-value)
  try {
    return zmq::send_multipart(socket_, frames, zmq::send_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
}

}  // namespace volley::serve
