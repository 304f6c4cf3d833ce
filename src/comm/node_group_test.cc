// Protects: ranks in several processes compute the same bits as in one, and do not wait for one that is gone. Threads
// stand for processes: they share only their connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <thread>

#include "base/threads_for_test.h"
#include "comm/comm.h"
#include "comm/node_exchange.h"
#include "comm/sum_for_test.h"
#include "device/dry_run.h"
#include "device/fault.h"

namespace volley::comm {
namespace {

using ::testing::HasSubstr;
using Body = std::function<void(Communicator&, Stream&)>;

net::Deadline in_a_minute() {
  return net::after(std::chrono::minutes(1));
}

// links[i][j]: node i's connection to j; null for itself.
using Links = std::vector<std::vector<std::unique_ptr<net::Connection>>>;
Links connected(size_t nodes) {
  Links links(nodes);
  for (auto& of_node : links) of_node.resize(nodes);
  for (size_t i = 0; i < nodes; ++i) {
    for (size_t j = 0; j < i; ++j) {
      auto listener = net::Listener::bind({"127.0.0.1", 0});
      VOLLEY_CHECK(listener.ok());
      links[i][j] = std::move(*net::Connection::connect({"127.0.0.1", (*listener)->port()}, in_a_minute()));
      links[j][i] = std::move(*(*listener)->accept(in_a_minute()));
    }
  }
  return links;
}

// Ranks of each node.
using Nodes = std::vector<int>;

// body(rank's communicator, rank's stream) on a thread for each rank.
void on_nodes(const Nodes& nodes, int threads, const Body& body) {
  Links links = connected(nodes.size());
  const auto first_of = [&](size_t node) {
    int first = 0;
    for (size_t i = 0; i < node; ++i) first += nodes[i];
    return first;
  };
  std::vector<std::thread> all;
  for (size_t node = 0; node < nodes.size(); ++node) {
    std::vector<NodeLink> others;
    for (size_t j = 0; j < nodes.size(); ++j) {
      if (j != node) others.push_back({std::move(links[node][j]), first_of(j), nodes[j]});
    }
    const auto group = std::make_shared<Group>(
        make_node_group(first_of(nodes.size()), first_of(node), nodes[node], std::move(others)));
    const auto devices = std::make_shared<std::vector<std::unique_ptr<Device>>>();
    for (auto& communicator : *group) {
      devices->push_back(std::move(*make_cpu_device(threads)));
      ASSERT_TRUE(communicator->prepare(*devices->back()).ok());
    }
    for (size_t i = 0; i < group->size(); ++i) {
      all.emplace_back([&body, group, devices, i] {
        body(*(*group)[i], (*devices)[i]->stream());
        (*group)[i].reset();
      });
    }
  }
  for (std::thread& thread : all) thread.join();
}

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::minstd_rand random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random) * std::exp(3 * normal(random));
  return values;
}

// The final result of each rank of a group, for a sum and a gather.
using Answers = std::vector<std::array<std::vector<float>, 2>>;

// Calls of several shapes in sequence; one is longer than what is sent at a time.
Body calls(Answers& answers) {
  return [&answers](Communicator& c, Stream& stream) {
    auto& mine = answers[c.rank()];
    for (const auto& [rows, n] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 17}, {0, 8}, {1, 100}, {2, 3 * kNodeChunk / 4}}) {
      auto partial = random_values(rows * n, 10u + static_cast<uint32_t>(c.rank()));
      auto x = random_values(rows * n, 9);
      c.add_sum(stream, view(partial, rows, n), view(x, rows, n));
      mine[0].insert(mine[0].end(), x.begin(), x.end());
      // Rank r has r % 3 columns and n / ranks more; the last one has the rest.
      const auto columns_of = [&](int rank) { return rank % 3 + n / c.ranks(); };
      int64_t first = 0, all = 0, most = 0;
      for (int rank = 0; rank < c.ranks(); ++rank) {
        most = std::max(most, columns_of(rank));
        if (rank < c.rank()) first += columns_of(rank);
        all += columns_of(rank);
      }
      auto some = random_values(rows * columns_of(c.rank()), 20u + static_cast<uint32_t>(c.rank()));
      std::vector<float> out(static_cast<size_t>(rows * all));
      c.gather_columns(stream, view(some, rows, columns_of(c.rank())), first, most, view(out, rows, all));
      mine[1].insert(mine[1].end(), out.begin(), out.end());
    }
  };
}

TEST(NodeGroup, HasTheBitsOfOneProcess) {
  for (const Nodes& nodes : {Nodes{1, 1}, Nodes{2, 2}, Nodes{1, 1, 1, 1}, Nodes{1, 3}}) {
    int ranks = 0;
    for (const int here : nodes) ranks += here;
    Answers alone(static_cast<size_t>(ranks)), apart(static_cast<size_t>(ranks));
    auto group = make_cpu_group(ranks);
    on_threads(group, [&](auto& communicator) {
      auto device = make_cpu_device(1);
      calls(alone)(*communicator, (*device)->stream());
    });
    on_nodes(nodes, 2, calls(apart));
    for (size_t rank = 0; rank < alone.size(); ++rank) {
      EXPECT_TRUE(apart[rank] == alone[0]) << "rank " << rank << " of " << ranks << " on " << nodes.size() << " nodes";
    }
  }
}

// In fp32, 2^24 swallows 1 but not 1 + 1: adding the ranks in sequence would give 0. x is added last.
TEST(NodeGroup, AddsNeighboursThenTheirSums) {
  const std::vector<float> addends = {16777216, 1, 1, -16777216};
  on_nodes({1, 1, 1, 1}, 1, [&](Communicator& c, Stream& stream) {
    std::vector<float> partial = {addends[c.rank()]}, x = {0.5f};
    c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
    EXPECT_EQ(x[0], 1.5f) << "rank " << c.rank();
  });
}

TEST(NodeGroup, KeepsCallsApart) {
  on_nodes({2, 1}, 1, [](Communicator& c, Stream& stream) {
    std::vector<float> partial(40), x(40);
    for (int i = 0; i < 300; ++i) {
      std::fill(partial.begin(), partial.end(), static_cast<float>(i * (c.rank() + 1)));
      std::fill(x.begin(), x.end(), 1.0f);
      c.add_sum(stream, view(partial, 2, 20), view(x, 2, 20));
      ASSERT_EQ(x, std::vector<float>(40, static_cast<float>(6 * i + 1)));
    }
  });
}

// On any node, wherever the other ranks are.
TEST(NodeGroup, ARankThatIsGoneEndsTheOthersWait) {
  for (const int leaving : {0, 1, 2}) {
    on_nodes({2, 1}, 1, [leaving](Communicator& c, Stream& stream) {
      std::vector<float> partial = {1}, x = {0};
      c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
      if (c.rank() == leaving) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        c.abort();
      }
      for (int i = 0; i < 2; ++i) {
        try {
          c.add_sum(stream, view(partial, 1, 1), view(x, 1, 1));
          ADD_FAILURE() << "rank " << c.rank() << " went on";
        } catch (const DeviceFault& fault) {
          EXPECT_THAT(fault.what(), HasSubstr(" of 3 is gone"));
        }
      }
      EXPECT_THROW(c.check(), DeviceFault);
    });
  }
}

TEST(NodeGroup, NoticesThatRanksAreAtDifferentCalls) {
  on_nodes({1, 1}, 1, [](Communicator& c, Stream& stream) {
    const int64_t n = c.rank() == 0 ? 3 : 4;
    std::vector<float> partial(n), x(n);
    EXPECT_THROW(c.add_sum(stream, view(partial, 1, n), view(x, 1, n)), DeviceFault);
  });
}

// Received data lies in memory that the plan counts.
TEST(NodeGroup, TakesWhatADryRunTakes) {
  auto group = make_dry_group(4, 2, 2);
  ASSERT_EQ(group.size(), 2u);
  EXPECT_EQ(group[0]->rank(), 2);
  DryDevice first(1), second(1);
  ASSERT_TRUE(group[0]->prepare(first).ok());
  ASSERT_TRUE(group[1]->prepare(second).ok());
  EXPECT_EQ(first.bytes(), 2 * kNodeChunk * 4);
  EXPECT_EQ(second.bytes(), 0);
}

}  // namespace
}  // namespace volley::comm
