// How the processes of one engine find one another, and check that they run the same model and options. Node 0 listens
// at an address that all know; the others send their number and their facts. There is no password: the network must be
// trusted.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.h"
#include "net/connection.h"
#include "nodes/facts.h"

namespace volley::nodes {

inline constexpr uint32_t kProtocol = 4;  // version of all messages; others are refused
// On connections for calls: a peer that accepts no data for so long is treated as gone.
inline constexpr std::chrono::seconds kMostSilence(4);

// This process's place. All nodes have the same number of ranks, in the order of the nodes.
struct Place {
  int nodes = 1, node = 0;
  int ranks = 1;  // ranks of all nodes
  net::Address master;

  int ranks_each() const { return ranks / nodes; }
  int first_rank(int of_node) const { return of_node * ranks_each(); }
};

struct Links {
  // For calls and answers: on node 0 the connections to nodes 1, 2, …; on another node the one to node 0.
  std::vector<std::unique_ptr<net::Connection>> calls;
  std::vector<comm::NodeLink> sums;  // to every other node
  std::vector<int64_t> least;        // for each of `numbers`, the least that a node sent
};

// Returns when all nodes have met. numbers: equally many on all nodes, unless a fact differs. kInvalidArgument: nodes
// differ, or the address cannot be listened at. kUnavailable: a node is missing at the deadline, or has gone. A node
// with another protocol is refused, and waited for.
Result<Links> meet(const Place& place, const std::vector<Fact>& facts, const std::vector<int64_t>& numbers,
                   net::Deadline deadline);

}  // namespace volley::nodes
