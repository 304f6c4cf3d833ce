// The ranks of a tensor-parallel group behind the interface of one round. Each has a device, its part of the weights
// and of the KV, and a round of its own. All rounds get the same commands in the same order and come to the same
// tokens, because what they exchange is added in rank order. Pages, slots and requests exist once, outside.
//
// A step runs on all ranks at once, everything else on the caller's thread, rank after rank. With one rank there is
// neither a thread nor an exchange.
//
// Ranks may be in several processes (src/nodes). The replica of node 0 then sends its commands to the others', whose
// replicas get them from engine/follow.h; what is said of all ranks here holds over all nodes.
//
// Whatever fails on one rank fails the command: a refusal leaves every rank as it was; a DeviceFault stops the others
// in the middle of theirs, and the replica can then only be destroyed. Threads: one at a time.
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
  // What to use instead of a rank's device, for tests; may be empty.
  using WrapDevice = std::function<std::unique_ptr<Device>(std::unique_ptr<Device>, int rank)>;

  // Makes the devices, loads each rank's weights on its thread, and makes the rounds. Calls `progress` from the calling
  // thread. Errors as make_device(), load_models() and decode::Round::create(); throws DeviceFault.
  // links: REQUIRED with several nodes; those for calls are node 0's to take, and it returns when the others are ready,
  // too. follower: of another node, whose hooks are the replica's until it goes; it ends what waits for ranks of other
  // nodes when node 0 is gone. Without other nodes it is that of a process that computes for an engine, which the
  // replica asks for masks. kUnavailable: a node is gone.
  static Result<std::unique_ptr<Replica>> create(const EngineOptions& options, const ResolvedModels& models,
                                                 const Progress& progress, const WrapDevice& wrap = {},
                                                 nodes::Links links = {}, nodes::Follower* follower = nullptr);
  ~Replica() override;

  bool spans_processes() const override { return leader_ != nullptr; }
  void watch_processes(std::function<void(const std::string&)> on_lost) override;
  void end_processes() override;
  bool interrupt(const std::string&) override { return false; }
  void attach_thread() override;

  // Wait: a DeviceFault where the ranks' tokens differ.
  decode::Answer perform(const decode::Command& command) override;
  void discard(std::shared_ptr<decode::MaskSource> source) override;

  // On a node that is not the first: of a step's masks, which come from there. Any thread.
  void publish_masks(std::vector<uint32_t> words);
  // Ranks of this node that wait for others, or will, throw DeviceFault instead. Any thread.
  void abort();

  // Counts the whole target's: where ranks divide the experts, the sum of theirs, else what each says. Where replicas
  // divide them, this one's, touched by rows of all.
  int64_t experts_touched() const override;
  // As rank 0 says: the others agree.
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

  // f(rank of this node) on all at once. The first refusal; where a rank is gone the cause, as far as it is known.
  Status start_ranks(const std::function<Status(int)>& f);
  Status enqueue_step(const decode::Enqueue& step);
  decode::StepResults take_results();
  void compare_nodes(std::span<const decode::RoundResult> results);

  const bool divides_by_expert_;
  std::vector<int64_t> others_experts_;          // of other nodes, by the last report of each
  std::unique_ptr<decode::MaskExchange> masks_;  // null with one rank
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<nodes::Leader> leader_;  // null: there are no other nodes, or this is not the first
  nodes::Follower* follower_ = nullptr;    // whose hooks are this one's; null: nobody's
};

}  // namespace volley::engine
