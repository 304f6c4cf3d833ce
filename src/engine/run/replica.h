// The ranks of a tensor-parallel group behind the interface of one round. Each rank has a device, its part of the
// weights and KV, and a round. All rounds get the same commands in the same order and choose the same tokens, because
// sums are added in rank order. Pages, slots and requests exist once, outside.
//
// A step runs on all ranks at once, every other command on the caller's thread, rank after rank. A single rank needs
// neither threads nor an exchange.
//
// Ranks may be in several processes (src/nodes). Node 0's replica then sends its commands to the other replicas, which
// get them from engine/remote/follow.h. Statements about all ranks hold over all nodes.
//
// A command fails if it fails on one rank. A refusal leaves every rank as it was. A DeviceFault stops the other ranks,
// and the replica can then only be destroyed. Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decode/round.h"
#include "engine/run/executor.h"
#include "engine/run/rank_threads.h"
#include "nodes/follower.h"
#include "nodes/leader.h"
#include "nodes/meeting.h"

namespace volley::engine {

class Replica final : public Executor {
 public:
  // Replaces a rank's device, for tests; may be empty.
  using WrapDevice = std::function<std::unique_ptr<Device>(std::unique_ptr<Device>, int rank)>;

  // Makes the devices, loads each rank's weights on its thread, and makes the rounds. Calls `progress` from the calling
  // thread. Errors as make_device(), load_models() and decode::Round::create(); throws DeviceFault.
  // links: required with several nodes. Node 0 takes those for calls, and returns when the others are ready, too.
  // follower: on another node; the replica sets its hooks, and it ends waits for other nodes' ranks when node 0 is
  // gone. In a process that computes for an engine, the replica asks it for masks. kUnavailable: a node is gone.
  static Result<std::unique_ptr<Replica>> create(const EngineOptions& options, const ResolvedModels& models,
                                                 const Progress& progress, const WrapDevice& wrap = {},
                                                 nodes::Links links = {}, nodes::Follower* follower = nullptr);
  ~Replica() override;

  bool spans_processes() const override { return leader_ != nullptr; }
  void watch_processes(std::function<void(const std::string&)> on_lost) override;
  void end_processes() override;
  bool interrupt(const std::string&) override { return false; }
  void attach_thread() override;

  // Wait throws DeviceFault where the ranks' tokens differ.
  decode::Answer perform(const decode::Command& command) override;
  void discard(std::shared_ptr<decode::MaskSource> source) override;

  // On a node other than the first: passes on a step's masks from node 0. Any thread.
  void publish_masks(std::vector<uint32_t> words);
  // Makes ranks of this node that wait for others throw DeviceFault, now and later. Any thread.
  void abort();

  // Experts of the whole target: the sum over ranks where ranks divide them, otherwise one rank's count. Where replicas
  // divide them, this replica's, for rows of all.
  int64_t experts_touched() const override;
  // Rank 0's; the other ranks agree.
  const std::vector<kv::Group>& page_groups() const override { return first().page_groups(); }
  int32_t under_way() const override { return first().under_way(); }
  const decode::PhaseTimes& times() const override { return first().times(); }

 private:
  struct Rank;

  explicit Replica(const ResolvedModels& models);
  const decode::Round& first() const;
  decode::Answer perform_here(const decode::Command& command);
  void abort(int rank);
  void check() const;

  // Runs f(rank of this node) on all at once. Returns the first refusal, or a lost rank's cause if it is known.
  Status start_ranks(const std::function<Status(int)>& f);
  Status enqueue_step(const decode::Enqueue& step);
  decode::StepResults take_results();
  void compare_nodes(std::span<const decode::RoundResult> results);

  const bool divides_by_expert_;
  std::vector<int64_t> others_experts_;          // counts of other nodes, from their last reports
  std::unique_ptr<decode::MaskExchange> masks_;  // null with one rank
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<nodes::Leader> leader_;  // null on a single node, and on nodes other than the first
  nodes::Follower* follower_ = nullptr;    // its hooks are this replica's; may be null
};

}  // namespace volley::engine
