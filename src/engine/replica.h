// The ranks of a tensor-parallel group behind the interface of one round. Each has a device, its part of the weights
// and of the KV, and a round of its own. All rounds get the same calls in the same order and come to the same tokens,
// because what they exchange is added in rank order. Pages, slots and requests exist once, outside.
//
// A step runs on all ranks at once, everything else on the caller's thread, rank after rank. With one rank there is
// neither a thread nor an exchange.
//
// Ranks may be in several processes (src/nodes). The replica of node 0 then sends its calls to the others', whose
// replicas get them from engine/follow.h; what is said of all ranks here holds over all nodes.
//
// Whatever fails on one rank fails the call: a refusal leaves every rank as it was; a DeviceFault or std::bad_alloc
// stops the others in the middle of theirs, and the replica can then only be destroyed. Threads: one at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/memory_asks.h"
#include "engine/models.h"
#include "engine/rank_threads.h"
#include "nodes/follower.h"
#include "nodes/leader.h"
#include "nodes/meeting.h"
#include "spec/round.h"

namespace volley::engine {

class Replica final : public Executor {
 public:
  // What to use instead of a rank's device, for tests; may be empty.
  using WrapDevice = std::function<std::unique_ptr<Device>(std::unique_ptr<Device>, int rank)>;

  // Makes the devices, loads each rank's weights on its thread, and makes the rounds. Calls `progress` from the calling
  // thread. Errors as make_device(), load_models() and spec::Round::create(); throws DeviceFault and std::bad_alloc.
  // links: REQUIRED with several nodes; those for calls are node 0's to take, and it returns when the others are ready,
  // too. follower: of another node, whose hooks are the replica's until it goes; it ends what waits for ranks of other
  // nodes when node 0 is gone. Without other nodes it is that of a process that computes for an engine, which the
  // replica asks for masks. kUnavailable: a node is gone.
  static Result<std::unique_ptr<Replica>> create(const EngineOptions& options, const ResolvedModels& models,
                                                 const Progress& progress, const WrapDevice& wrap = {},
                                                 nodes::Links links = {}, nodes::Follower* follower = nullptr);
  ~Replica() override;

  int ranks() const override { return all_ranks_; }
  int32_t vocab() const override;
  // Node 0 counts all ranks, another node its own.
  int threads() const override;
  int64_t weight_bytes() const override;
  int64_t target_bytes() const override;
  int64_t state_bytes() const override;
  std::string device_name() const override;

  bool spans_processes() const override { return leader_ != nullptr; }
  void watch_processes(std::function<void(const std::string&)> on_lost) override;
  void end_processes() override;
  bool interrupt(const std::string&) override { return false; }

  const LockstepPlace& lockstep() const override { return lockstep_; }
  void take_part() override;
  void settle() override;
  void attach_thread() override;

  Status start_slot(int32_t slot, const spec::SlotStart& start) override;
  void clear_slot(int32_t slot) override;
  void set_page(int32_t slot, size_t group, int32_t index, PageId page) override;
  void save_state(int32_t slot, PageId snapshot) override;
  void restore_state(PageId snapshot, int32_t slot) override;
  void copy_page(size_t group, PageId from, PageId to) override;
  // spec::Round::reserve() on all ranks of this node.
  Status reserve(std::span<const spec::RoundSegment> segments);
  Status enqueue(std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget) override;
  using Executor::enqueue;
  // A DeviceFault where the ranks' tokens differ.
  spec::StepTimes wait(std::vector<spec::RoundResult>& results) override;
  void discard(std::shared_ptr<spec::MaskSource> source) override;

  // On a node that is not the first: of a step's masks, which come from there. Any thread.
  void publish_masks(std::vector<uint32_t> words);
  // Ranks of this node that wait for others, or will, throw DeviceFault instead. Any thread.
  void abort();

  // Counts the whole target's: where ranks divide the experts, the sum of theirs, else what each says. Where replicas
  // divide them, this one's, touched by rows of all.
  int64_t experts_touched() const override;
  // As rank 0 says: the others agree.
  const std::vector<kv::Group>& page_groups() const override { return first().page_groups(); }
  int32_t depth() const override { return first().depth(); }
  int32_t under_way() const override { return first().under_way(); }
  int32_t most_shared_rows() const override { return first().most_shared_rows(); }
  const std::vector<int32_t>& row_buckets() const override { return first().row_buckets(); }
  const std::vector<int32_t>& draft_lengths() const override { return first().draft_lengths(); }
  int32_t block_size() const override { return first().block_size(); }
  const spec::PhaseTimes& times() const override { return first().times(); }

 private:
  struct Rank;

  Replica();
  const spec::Round& first() const;
  template <typename F>
  void each(const F& f);
  void abort(int rank);
  void check() const;

  // f(rank of this node) on all at once. The first refusal; where a rank is gone the cause, as far as it is known.
  Status start_ranks(const std::function<Status(int)>& f);
  // All ranks' memory for a step, where it can be refused.
  Status reserve_on_all(std::span<const spec::RoundSegment> segments);
  void compare_nodes(std::span<const spec::RoundResult> results);

  LockstepPlace lockstep_;
  bool divides_by_expert_ = false;
  int all_ranks_ = 1;
  nodes::Ready others_;                        // what the other nodes have, of node 0
  std::vector<int64_t> others_experts_;        // by the last report of each
  MemoryAsks asks_;                            // of the other nodes
  std::unique_ptr<spec::MaskExchange> masks_;  // null with one rank
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<nodes::Leader> leader_;  // null: there are no other nodes, or this is not the first
  nodes::Follower* follower_ = nullptr;    // whose hooks are this one's; null: nobody's
  std::vector<spec::RoundResult> other_results_;
};

}  // namespace volley::engine
