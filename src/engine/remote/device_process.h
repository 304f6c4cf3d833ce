// A replica in a process of its own: what the device or its driver does to that process leaves the engine's alone. It
// is started and told what to load (nodes/assignment.h), then replays the engine's calls as another node does, and
// answers with the results of each step. What masks allow it asks the engine, whose grammars they are.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "decode/mask_threads.h"
#include "engine/remote/child_process.h"
#include "engine/run/executor.h"
#include "engine/start/models.h"
#include "nodes/assignment.h"
#include "nodes/replies.h"

namespace volley::engine {

class DeviceProcess final : public Executor {
 public:
  // What a process is told that computes for a replica with these options. Errors as node_facts().
  static Result<nodes::Assignment> assignment(const EngineOptions& options, const ResolvedModels& models);
  // While it loads.
  struct Loading {
    const Progress& progress;
    const std::function<bool()>& attend;     // unless empty: called some times a second; false: it is wanted no more
    std::chrono::milliseconds most_silence;  // how long it may neither read nor report anything; 0: for ever
  };
  // options: with device_command. The process loads the models as `models` has them, of the files that they had when
  // the assignment was made. kCancelled: attend says no. kUnavailable: the process does not start, is silent for too
  // long, or cannot load them, with its sentence.
  static Result<std::unique_ptr<DeviceProcess>> start(const EngineOptions& options, const ResolvedModels& models,
                                                      const nodes::Assignment& assignment, const Loading& loading);
  ~DeviceProcess() override;

  bool spans_processes() const override { return true; }
  void watch_processes(std::function<void(const std::string&)> on_lost) override;
  void end_processes() override;
  bool interrupt(const std::string& why) override;
  void attach_thread() override {}

  decode::Answer perform(const decode::Command& command) override;
  void discard(std::shared_ptr<decode::MaskSource> source) override;

  const std::vector<kv::Group>& page_groups() const override { return groups_; }
  int32_t under_way() const override { return static_cast<int32_t>(steps_.size()); }
  const decode::PhaseTimes& times() const override { return phases_; }
  int64_t experts_touched() const override { return experts_touched_; }

 private:
  DeviceProcess(const EngineOptions& options, const ResolvedModels& models);

  Status load(const Loading& loading);
  Status wait_for_news(const Loading& loading);
  Status enqueue_step(const decode::Enqueue& step);
  decode::StepResults take_results();
  void flush();
  Result<nodes::Reply> receive(std::optional<net::Deadline> deadline);
  decode::Answer take_answer(const decode::Command& command);
  void answer(const nodes::MaskQuestion& question);
  std::string why_gone(const Error& error);

  const std::chrono::milliseconds mask_timeout_;
  const std::vector<kv::Group> groups_;
  nodes::Bytes out_;  // to be sent
  struct Step {
    size_t segments = 0;
    std::vector<std::shared_ptr<decode::MaskSource>> masks;  // of those that have some, until they are asked for
  };
  std::deque<Step> steps_;                             // under way, oldest first
  std::unique_ptr<decode::MaskThreads> mask_threads_;  // from the first request with masks on
  decode::PhaseTimes phases_;
  int64_t experts_touched_ = 0;
  std::mutex mutex_;
  std::string interrupted_;  // why; guarded by mutex_
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace volley::engine
