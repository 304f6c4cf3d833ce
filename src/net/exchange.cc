#include "net/exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace volley::net {
namespace {

// A peer that is equally fast sends within microseconds: polling for so long costs less than sleeping.
constexpr int kLooks = 50;

// One transfer on its way.
class Progress {
 public:
  explicit Progress(Transfer& transfer) : transfer_(transfer), in_{transfer.head} { skip_empty(transfer.out, out_at_); }

  bool sends() const { return out_at_ < transfer_.out.size(); }
  bool receives() const { return in_at_ < in_.size(); }
  bool done() const { return !sends() && !receives(); }
  pollfd waits_for() const {
    const int events = (sends() ? POLLOUT : 0) | (receives() ? POLLIN : 0);
    return {transfer_.with->descriptor(), static_cast<short>(events), 0};
  }

  // Does what is possible now; returns whether there was anything to do.
  Result<bool> move() {
    bool moved = false;
    while (sends()) {
      std::span<const std::byte>& part = transfer_.out[out_at_];
      const ssize_t n = ::send(transfer_.with->descriptor(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n < 0) return connection_ended(errno);
      part = part.subspan(static_cast<size_t>(n));
      skip_empty(transfer_.out, out_at_);
      moved = true;
    }
    while (receives()) {
      std::span<std::byte>& part = in_[in_at_];
      const ssize_t n = ::recv(transfer_.with->descriptor(), part.data(), part.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n <= 0) return connection_ended(n < 0 ? errno : 0);
      part = part.subspan(static_cast<size_t>(n));
      moved = true;
      if (!part.empty()) continue;
      if (!headed_) {
        headed_ = true;
        std::vector<std::span<std::byte>> rest;
        VOLLEY_RETURN_IF_ERROR(transfer_.on_head(rest));
        in_.insert(in_.end(), rest.begin(), rest.end());
      }
      skip_empty(in_, in_at_);
    }
    return moved;
  }

 private:
  template <typename T>
  static void skip_empty(const std::vector<std::span<T>>& parts, size_t& at) {
    while (at < parts.size() && parts[at].empty()) ++at;
  }

  Transfer& transfer_;
  std::vector<std::span<std::byte>> in_;
  size_t out_at_ = 0, in_at_ = 0;
  bool headed_ = false;
};

}  // namespace

std::optional<ExchangeFailure> exchange(std::span<Transfer> transfers) {
  std::vector<Progress> all;
  all.reserve(transfers.size());
  for (Transfer& transfer : transfers) all.emplace_back(transfer);
  std::vector<pollfd> waiting;
  for (int idle = 0;; ++idle) {
    bool done = true;
    for (size_t i = 0; i < all.size(); ++i) {
      const Result<bool> moved = all[i].move();
      if (!moved.ok()) return ExchangeFailure{i, moved.error()};
      if (*moved) idle = 0;
      done = done && all[i].done();
    }
    if (done) return std::nullopt;
    if (idle < kLooks) continue;
    waiting.clear();
    for (const Progress& each : all) {
      if (!each.done()) waiting.push_back(each.waits_for());
    }
    ::poll(waiting.data(), waiting.size(), -1);
  }
}

}  // namespace volley::net
