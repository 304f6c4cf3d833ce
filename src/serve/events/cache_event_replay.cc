#include "serve/events/cache_event_replay.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <zmq_addon.hpp>

namespace volley::serve {
namespace {

constexpr uint64_t kEndOfReplay = ~uint64_t{0};  // -1

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

}  // namespace

std::array<uint8_t, 8> big_endian(uint64_t number) {
  std::array<uint8_t, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  return bytes;
}

CacheEventReplay::CacheEventReplay(zmq::context_t& context, int buffer_steps, std::string topic)
    : socket_(context, zmq::socket_type::router),
      buffer_steps_(static_cast<size_t>(buffer_steps)),
      topic_(std::move(topic)) {
  socket_.set(zmq::sockopt::router_mandatory, true);  // says that a client is full or gone
  socket_.set(zmq::sockopt::sndhwm, kMostQueued);
  socket_.set(zmq::sockopt::rcvhwm, kMostQueued);
  socket_.set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
  socket_.set(zmq::sockopt::linger, 0);
  socket_.set(zmq::sockopt::ipv6, true);
}

void CacheEventReplay::keep(uint64_t number, const std::vector<uint8_t>& bytes) {
  kept_bytes_ += bytes.size();
  kept_.push_back({number, zmq::message_t(bytes.data(), bytes.size())});
  while (!kept_.empty() && (kept_.size() > buffer_steps_ || kept_bytes_ > kMaxKeptBytes)) {
    kept_bytes_ -= kept_.front().bytes.size();
    kept_.pop_front();
  }
}

void CacheEventReplay::receive() {
  for (size_t taken = 0; taken < kMaxClients; ++taken) {  // a client that never ends must not hold up the others
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(socket_, std::back_inserter(frames), zmq::recv_flags::dontwait)) return;
    if (frames.size() != 3 || frames[1].size() != 0 || frames[2].size() != 8) continue;
    const std::string client = frames[0].to_string();
    if (asked_.size() == kMaxClients && !asked_.contains(client)) continue;
    std::deque<uint64_t>& asked = asked_[client];
    if (asked.size() < kMaxAsked) asked.push_back(from_big_endian(frames[2].to_string_view()));
  }
}

bool CacheEventReplay::go_on() {
  for (auto it = asked_.begin(); it != asked_.end();) {
    auto& [client, asked] = *it;
    try {
      while (!asked.empty() && answer(client, asked.front())) asked.pop_front();
    } catch (const zmq::error_t&) {  // the client has gone
      asked.clear();
    }
    it = asked.empty() ? asked_.erase(it) : std::next(it);
  }
  return !asked_.empty();
}

// False: the client has no room for the rest, which begins with `next`.
bool CacheEventReplay::answer(const std::string& client, uint64_t& next) {
  for (auto batch = std::ranges::lower_bound(kept_, next, {}, &Batch::number); batch != kept_.end(); ++batch) {
    if (!send(client, topic_, batch->number, batch->bytes)) return false;
    next = batch->number + 1;
    ++repeated_;
  }
  zmq::message_t none;
  return send(client, "", kEndOfReplay, none);
}

// False: the client has no room. Throws zmq::error_t: it has gone.
bool CacheEventReplay::send(const std::string& client, const std::string& topic, uint64_t number,
                            zmq::message_t& bytes) {
  const auto encoded = big_endian(number);
  std::array<zmq::message_t, 5> frames = {zmq::message_t(client), zmq::message_t(), zmq::message_t(topic),
                                          zmq::message_t(encoded.data(), encoded.size()), zmq::message_t()};
  frames[4].copy(bytes);
  return zmq::send_multipart(socket_, frames, zmq::send_flags::dontwait).has_value();
}

}  // namespace volley::serve
