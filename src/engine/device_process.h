// A replica in a process of its own: what the device or its driver does to that process leaves the engine's alone. It
// is started and told what to load (nodes/assignment.h), then replays the engine's calls as another node does, and
// answers with the results of each step. What masks allow it asks the engine, whose grammars they are.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/child_process.h"
#include "engine/executor.h"
#include "engine/memory_asks.h"
#include "engine/models.h"
#include "nodes/assignment.h"
#include "nodes/replies.h"
#include "spec/mask_threads.h"

namespace volley::engine {

class DeviceProcess final : public Executor {
 public:
  // What a process is told that computes for a replica with these options. Errors as node_facts().
  static Result<nodes::Assignment> assignment(const EngineOptions& options, const ResolvedModels& models);
  // options: with device_command. The process loads the models as `models` has them, of the files that they had when
  // the assignment was made. attend, unless empty: called some times a second; false: it is wanted no more. kCancelled
  // then. kUnavailable: the process does not start, or cannot load them, with its sentence.
  static Result<std::unique_ptr<DeviceProcess>> start(const EngineOptions& options, const ResolvedModels& models,
                                                      const nodes::Assignment& assignment, const Progress& progress,
                                                      const std::function<bool()>& attend = {});
  ~DeviceProcess() override;

  int ranks() const override { return ranks_; }
  int32_t vocab() const override { return vocab_; }
  int threads() const override { return ready_.threads; }
  int64_t weight_bytes() const override { return ready_.weight_bytes; }
  int64_t target_bytes() const override { return ready_.target_bytes; }
  int64_t state_bytes() const override { return ready_.state_bytes; }
  std::string device_name() const override { return traits_.device; }

  bool spans_processes() const override { return true; }
  void watch_processes(std::function<void(const std::string&)> on_lost) override;
  void end_processes() override;
  bool interrupt(const std::string& why) override;

  const LockstepPlace& lockstep() const override { return lockstep_; }
  void take_part() override;
  void settle() override {}
  void attach_thread() override {}

  Status start_slot(int32_t slot, const spec::SlotStart& start) override;
  void clear_slot(int32_t slot) override;
  void set_page(int32_t slot, size_t group, int32_t index, PageId page) override;
  void save_state(int32_t slot, PageId snapshot) override;
  void restore_state(PageId snapshot, int32_t slot) override;
  void copy_page(size_t group, PageId from, PageId to) override;
  Status enqueue(std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget) override;
  using Executor::enqueue;
  spec::StepTimes wait(std::vector<spec::RoundResult>& results) override;
  void discard(std::shared_ptr<spec::MaskSource> source) override;

  const std::vector<kv::Group>& page_groups() const override { return groups_; }
  int32_t depth() const override { return traits_.depth; }
  int32_t under_way() const override { return static_cast<int32_t>(steps_.size()); }
  int32_t most_shared_rows() const override { return traits_.most_shared_rows; }
  const std::vector<int32_t>& row_buckets() const override { return traits_.row_buckets; }
  const std::vector<int32_t>& draft_lengths() const override { return traits_.draft_lengths; }
  int32_t block_size() const override { return traits_.block_size; }
  const spec::PhaseTimes& times() const override { return phases_; }
  int64_t experts_touched() const override { return experts_touched_; }

 private:
  DeviceProcess(const EngineOptions& options, const ResolvedModels& models);

  Status load(const Progress& progress, const std::function<bool()>& attend);
  void flush();
  void append_done();
  Result<nodes::Reply> receive(std::optional<net::Deadline> deadline);
  template <typename T>
  T take();
  void answer(const nodes::MaskQuestion& question);
  std::string why_gone(const Error& error);

  const int ranks_;
  const int32_t vocab_;
  const std::chrono::milliseconds mask_timeout_;
  const std::vector<kv::Group> groups_;
  const LockstepPlace lockstep_;
  nodes::Ready ready_;
  nodes::Traits traits_;
  nodes::Bytes out_;                                      // to be sent
  std::deque<size_t> steps_;                              // segments of those under way, oldest first
  std::vector<std::shared_ptr<spec::MaskSource>> asked_;  // of the last step
  MemoryAsks asks_;
  std::unique_ptr<spec::MaskThreads> mask_threads_;  // from the first request with masks on
  spec::PhaseTimes phases_;
  int64_t experts_touched_ = 0;
  std::mutex mutex_;
  std::string interrupted_;  // why; guarded by mutex_
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace volley::engine
