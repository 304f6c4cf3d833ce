// How the processes of one engine find one another, and find out that they are of one kind. Node 0 listens at an
// address that all know; the others say who they are and what they run. Nobody is asked for a password: the network
// must be trusted.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.h"
#include "net/connection.h"
#include "nodes/facts.h"

namespace volley::nodes {

inline constexpr uint32_t kProtocol = 1;  // of all messages; another one is refused
// On connections for calls: whoever does not take them for so long is gone.
inline constexpr std::chrono::seconds kMostSilence(4);

// Which process this is. All have as many ranks, in the order of the nodes.
struct Place {
  int nodes = 1, node = 0;
  int ranks = 1;  // of all nodes
  net::Address master;

  int ranks_each() const { return ranks / nodes; }
  int first_rank(int of_node) const { return of_node * ranks_each(); }
};

struct Links {
  // For calls and answers: of node 0 to nodes 1, 2, …; of another one to node 0 alone.
  std::vector<std::unique_ptr<net::Connection>> calls;
  std::vector<comm::NodeLink> sums;  // to every other node
  std::vector<int64_t> least;        // of each of `numbers` the least that a node has said
};

// Returns when all nodes have come. numbers: as many on all nodes, unless a fact differs. kInvalidArgument: nodes
// differ, or the address cannot be listened at; kUnavailable: not all have come before the deadline, or one has gone.
// Who speaks another protocol is refused, and waited for.
Result<Links> meet(const Place& place, const std::vector<Fact>& facts, const std::vector<int64_t>& numbers,
                   net::Deadline deadline);

}  // namespace volley::nodes
