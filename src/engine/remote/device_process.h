// A replica in a process of its own, so that faults of the device or its driver spare the engine. The process gets an
// assignment (nodes/assignment.h), replays the engine's calls as another node does, and answers with each step's
// results. It asks the engine for masks, because the engine has the grammars.
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
  // Tells a process what to compute for a replica with these options. Errors as node_facts().
  static Result<nodes::Assignment> assignment(const EngineOptions& options, const ResolvedModels& models);
  // Bounds of its loading.
  struct Loading {
    const Progress& progress;
    const std::function<bool()>& attend;     // called some times a second unless empty; false gives the load up
    std::chrono::milliseconds most_silence;  // longest time without reading or news; 0: no bound
  };
  // options: with device_command. The process loads `models` from the files that the assignment names. kCancelled:
  // attend() returned false. kUnavailable: the process does not start, is silent for too long, or cannot load, with its
  // sentence.
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
  nodes::Bytes out_;  // the message to send
  struct Step {
    size_t segments = 0;
    std::vector<std::shared_ptr<decode::MaskSource>> masks;  // for each segment with masks, until the process asks
  };
  std::deque<Step> steps_;                             // steps under way, oldest first
  std::unique_ptr<decode::MaskThreads> mask_threads_;  // null before the first request with masks
  decode::PhaseTimes phases_;
  int64_t experts_touched_ = 0;
  std::mutex mutex_;
  std::string interrupted_;  // the reason; guarded by mutex_
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace volley::engine
