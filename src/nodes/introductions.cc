#include "nodes/introductions.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace volley::nodes {
namespace {

constexpr std::chrono::seconds kIntroduction(5);        // for a new connection's introduction
constexpr std::chrono::milliseconds kBetweenReads(10);  // while an introduction may still arrive
constexpr size_t kMostSilent = 64;                      // beyond so many, the oldest connection is dropped
constexpr size_t kHead = 2 * sizeof(uint32_t), kPiece = 64 << 10;

std::array<uint32_t, 2> head_of(const std::vector<std::byte>& bytes) {
  std::array<uint32_t, 2> head;  // as in net/frame.cc
  std::memcpy(head.data(), bytes.data(), kHead);
  return head;
}

}  // namespace

// Memory is allocated as bytes arrive, not as they are claimed.
Introductions::Said Introductions::read(Silent& silent) const {
  std::vector<std::byte>& bytes = silent.bytes;
  for (;;) {
    size_t wanted = kHead;
    if (bytes.size() >= kHead) {
      const size_t length = head_of(bytes)[0];
      if (length > most_) return Said::kNothingOfUse;
      wanted += length;
      if (bytes.size() == wanted) return Said::kAll;
    }
    const size_t had = bytes.size();
    bytes.resize(std::min(wanted, had + kPiece));
    const ssize_t got = ::recv(silent.connection->descriptor(), bytes.data() + had, bytes.size() - had, MSG_DONTWAIT);
    bytes.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? Said::kPart : Said::kNothingOfUse;
  }
}

std::optional<Introductions::Newcomer> Introductions::next(net::Deadline deadline) {
  for (;;) {
    for (auto silent = silent_.begin(); silent != silent_.end();) {
      const Said said = read(*silent);
      if (said == Said::kAll) {
        Newcomer newcomer{std::move(silent->connection), {head_of(silent->bytes)[1], {}}};
        newcomer.frame.payload.assign(silent->bytes.begin() + kHead, silent->bytes.end());
        silent_.erase(silent);
        return newcomer;
      }
      const bool goes = said == Said::kNothingOfUse || std::chrono::steady_clock::now() >= silent->until;
      silent = goes ? silent_.erase(silent) : silent + 1;
    }
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    auto accepted = listener_.accept(silent_.empty() ? deadline : std::min(deadline, net::after(kBetweenReads)));
    if (!accepted.ok()) continue;
    if (silent_.size() == kMostSilent) silent_.pop_front();
    silent_.push_back({std::move(*accepted), net::after(kIntroduction), {}});
  }
}

}  // namespace volley::nodes
