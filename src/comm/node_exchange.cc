#include "comm/node_exchange.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "net/exchange.h"

namespace volley::comm {

// Sent before the floats, so that a process at another call than the others is detected.
struct NodeExchange::Head {
  uint64_t call = 0;
  int64_t rows = 0;
  Kind kind = Kind::kSum;
  uint32_t ranks = 0;
  std::array<int64_t, kMostGroupRanks> columns = {};
};

NodeExchange::NodeExchange(std::vector<NodeLink> links, int ranks, int first, int local)
    : links_(std::move(links)),
      first_(first),
      local_(local),
      memory_begin_(static_cast<size_t>(ranks)),
      received_(static_cast<size_t>(ranks)) {
  constexpr std::chrono::seconds kMostSilence(60);  // longer than a process computes between two calls
  int covered = local;
  int64_t at = 0;
  for (const NodeLink& link : links_) {
    link.connection->give_up_silence(kMostSilence);
    VOLLEY_CHECK(link.ranks >= 1 && link.first_rank >= 0 && link.first_rank + link.ranks <= ranks);
    VOLLEY_CHECK(link.first_rank + link.ranks <= first || link.first_rank >= first + local);
    covered += link.ranks;
    for (int i = 0; i < link.ranks; ++i) {
      memory_begin_[static_cast<size_t>(link.first_rank + i)] = at;
      at += kNodeChunk;
    }
  }
  VOLLEY_CHECK_EQ(covered, ranks);
  VOLLEY_CHECK_LE(ranks, kMostGroupRanks);
}

void NodeExchange::run(const Part& part, std::span<const std::span<const float>> mine) {
  VOLLEY_CHECK(memory_ != nullptr && std::ssize(mine) == local_ && part.rows * part.columns <= kNodeChunk);
  if (failed_rank_ >= 0) return;
  const auto head_of = [&](uint32_t ranks) {
    Head head;
    head.call = calls_;
    head.rows = part.rows;
    head.kind = part.kind;
    head.ranks = ranks;
    return head;
  };
  ++calls_;
  Head said = head_of(static_cast<uint32_t>(local_));
  for (size_t i = 0; i < mine.size(); ++i) said.columns[i] = std::ssize(mine[i]) / std::max<int64_t>(1, part.rows);
  std::vector<Head> heard(links_.size());
  std::vector<net::Transfer> transfers;
  for (size_t i = 0; i < links_.size(); ++i) {
    const NodeLink& link = links_[i];
    net::Transfer transfer;
    transfer.with = link.connection.get();
    transfer.out = {std::as_bytes(std::span(&said, 1))};
    for (const auto& floats : mine) transfer.out.push_back(std::as_bytes(floats));
    transfer.head = std::as_writable_bytes(std::span(&heard[i], 1));
    transfer.on_head = [&, i](std::vector<std::span<std::byte>>& rest) -> Status {
      const Head &head = heard[i], wanted = head_of(static_cast<uint32_t>(link.ranks));
      bool same = head.call == wanted.call && head.rows == wanted.rows && head.kind == wanted.kind &&
                  head.ranks == wanted.ranks;
      for (int r = 0; same && r < link.ranks; ++r) {
        const int64_t columns = head.columns[static_cast<size_t>(r)];
        same = part.kind == Kind::kSum ? columns == part.columns : columns >= 0 && columns <= part.columns;
      }
      if (!same) return internal_error("it is at another sum than this one");
      for (int r = 0; r < link.ranks; ++r) {
        const auto rank = static_cast<size_t>(link.first_rank + r);
        const auto count = static_cast<size_t>(part.rows * head.columns[static_cast<size_t>(r)]);
        const std::span<float> to(memory_ + memory_begin_[rank], count);
        received_[rank] = to;
        rest.push_back(std::as_writable_bytes(to));
      }
      return {};
    };
    transfers.push_back(std::move(transfer));
  }
  const auto failure = net::exchange(transfers);
  if (!failure) return;
  const NodeLink& link = links_[failure->transfer];
  failed_rank_ = link.first_rank;
  failure_ = "at " + net::to_string(link.connection->peer()) + ": " + failure->error.message;
  shut_down();
}

void NodeExchange::shut_down() {
  for (const NodeLink& link : links_) link.connection->shut_down();
}

}  // namespace volley::comm
