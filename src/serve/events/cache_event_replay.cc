#include "serve/events/cache_event_replay.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <zmq_addon.hpp>

#include "serve/events/cache_event_wire.h"

namespace volley::serve {
namespace {

constexpr uint64_t kEndOfReplay = ~uint64_t{0};  // -1
constexpr size_t kMessageBytes = 512;            // a message's bytes beside its payload, roughly
constexpr int kMostPieces = 16;

}  // namespace

struct CacheEventReplay::Held {
  std::string head;  // sent if there are no bytes
  Bytes bytes;
  std::shared_ptr<Queue> queue;
  size_t cost = 0;

  // ZeroMQ calls it once on a thread of its own, when the payload is sent or given up.
  static void release(void*, void* hint) {
    const std::unique_ptr<Held> held(static_cast<Held*>(hint));
    held->queue->of_all->fetch_sub(held->cost);
    const size_t left = held->queue->bytes.fetch_sub(held->cost) - held->cost;
    if (left > kMaxQueuedBytes / 2) return;  // the last batch below always wakes
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(held->queue->wake, &one, sizeof(one));
  }
};

CacheEventReplay::CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic, int wake)
    : socket_(context, zmq::socket_type::stream),
      buffer_steps_(static_cast<size_t>(buffer_steps)),
      topic_(std::move(topic)),
      wake_(wake) {
  socket_.set(zmq::sockopt::sndhwm, 0);            // this class bounds queues
  socket_.set(zmq::sockopt::rcvhwm, kMostPieces);  // at most 8 KiB each, for each client
  socket_.set(zmq::sockopt::linger, 0);
  socket_.set(zmq::sockopt::ipv6, true);
}

void CacheEventReplay::keep(uint64_t number, std::vector<uint8_t> bytes) {
  kept_bytes_ += bytes.size();
  kept_.push_back({number, std::make_shared<const std::vector<uint8_t>>(std::move(bytes))});
  while (!kept_.empty() && (kept_.size() > buffer_steps_ || kept_bytes_ > kMaxKeptBytes)) {
    kept_bytes_ -= kept_.front().bytes->size();
    kept_.pop_front();
  }
}

// A piece without bytes says that a client has come or gone.
void CacheEventReplay::receive() {
  std::vector<zmq::message_t> piece;
  if (!zmq::recv_multipart(socket_, std::back_inserter(piece), zmq::recv_flags::dontwait)) return;
  if (piece.size() != 2) return;
  const std::string name = piece[0].to_string();
  const auto found = clients_.find(name);
  if (piece[1].size() == 0) return found == clients_.end() ? connect(name) : void(clients_.erase(found));
  if (found != clients_.end() && !found->second.reader->feed(piece[1].to_string_view())) disconnect(name);
}

void CacheEventReplay::connect(const std::string& name) {
  if (clients_.size() == kMaxClients) return disconnect(name);
  Client& client = clients_[name];
  client.queue = std::make_shared<Queue>();
  client.queue->of_all = waiting_;
  client.queue->wake = wake_;
  client.reader =
      std::make_unique<ZmtpReader>([&client](const ZmtpReader::Message& message) { take_request(client, message); },
                                   [this, name, &client](std::string reply) {
                                     // A client that takes nothing gets no answer.
                                     if (has_room(client, reply.size()))
                                       send_counted(name, client, std::move(reply), {});
                                   });
  // News that a turned-away client has left look like those of a new one.
  if (!write(name, zmq::message_t(zmtp_greeting("ROUTER")))) clients_.erase(name);
}

void CacheEventReplay::disconnect(const std::string& name) {
  write(name, zmq::message_t());  // ZeroMQ's way to close a connection
  clients_.erase(name);
}

void CacheEventReplay::take_request(Client& client, const ZmtpReader::Message& message) {
  if (message.size() != 2 || !message[0].empty() || message[1].size() != 8) return;
  if (client.asked.size() < kMaxAsked) client.asked.push_back(from_big_endian(message[1]));
}

void CacheEventReplay::go_on() {
  for (auto it = clients_.begin(); it != clients_.end();) {
    it = answer(it->first, it->second) ? std::next(it) : clients_.erase(it);
  }
}

bool CacheEventReplay::has_room(const Client& client, size_t bytes) {
  const size_t queued = client.queue->bytes;
  return queued == 0 || queued + bytes + kMessageBytes <= kMaxQueuedBytes;
}

// Whether the client is still connected.
bool CacheEventReplay::answer(const std::string& name, Client& client) {
  while (!client.asked.empty()) {
    uint64_t& next = client.asked.front();
    const auto later = std::ranges::lower_bound(kept_, next, {}, &Sent::number);
    for (auto sent = later; sent != kept_.end(); ++sent) {
      if (!has_room(client, sent->bytes->size())) return true;
      if (!send(name, client, sent->number, sent->bytes)) return false;
      next = sent->number + 1;
    }
    if (!has_room(client, 0)) return true;
    if (!send(name, client, kEndOfReplay, std::make_shared<const std::vector<uint8_t>>())) return false;
    client.asked.pop_front();
  }
  return true;
}

// False: the client has gone.
bool CacheEventReplay::send(const std::string& name, Client& client, uint64_t number, const Bytes& bytes) {
  const auto frame = [](std::string_view body) { return zmtp_frame_head(body.size(), true).append(body); };
  const auto encoded = big_endian(number);
  const std::string_view topic = number == kEndOfReplay ? std::string_view() : topic_;
  std::string head = frame("") + frame(topic) + frame({reinterpret_cast<const char*>(encoded.data()), encoded.size()}) +
                     zmtp_frame_head(bytes->size(), false);
  return send_counted(name, client, std::move(head), bytes);
}

// Counts the bytes for the client until ZeroMQ has sent them. False: the client has gone.
bool CacheEventReplay::send_counted(const std::string& name, Client& client, std::string head, const Bytes& bytes) {
  std::unique_ptr<Held> held(new Held{});
  if (bytes && !bytes->empty()) {
    if (!write(name, zmq::message_t(head))) return false;
    held->bytes = bytes;
  } else {
    held->head = std::move(head);
  }
  held->queue = client.queue;
  held->cost = (held->bytes ? held->bytes->size() : held->head.size()) + kMessageBytes;
  // ZeroMQ only reads it.
  void* const data = held->bytes ? static_cast<void*>(const_cast<uint8_t*>(held->bytes->data())) : held->head.data();
  const size_t size = held->cost - kMessageBytes;
  client.queue->of_all->fetch_add(held->cost);
  client.queue->bytes.fetch_add(held->cost);
  zmq::message_t message(data, size, &Held::release, held.get());
  held.release();  // to the message: NOLINT(bugprone-unused-return-value)
  return write(name, std::move(message));
}

// False: the client has gone.
bool CacheEventReplay::write(const std::string& name, zmq::message_t bytes) {
  std::array<zmq::message_t, 2> frames = {zmq::message_t(name), std::move(bytes)};
  try {
    return zmq::send_multipart(socket_, frames, zmq::send_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
}

}  // namespace volley::serve
