// A worker's machine: a replica in this process (replica.h) or in a process of its own (device_process.h). Threads as
// decode::StepExecutor, except interrupt().
#pragma once

#include <functional>
#include <string>

#include "engine/remote/lockstep.h"
#include "engine/start/models.h"
#include "nodes/replies.h"

namespace volley::engine {

class Executor : public decode::StepExecutor {
 public:
  int ranks() const { return ranks_; }
  int32_t vocab() const { return vocab_; }
  // Sums over all ranks; on a node other than the first, over the node's ranks.
  const nodes::Ready& ready() const { return ready_; }
  // The place among replicas that divide the experts, whose passes wait for one another.
  const LockstepPlace& lockstep() const { return lockstep_; }

  // Whether calls go to other processes, which takes time.
  virtual bool spans_processes() const = 0;
  // Sets the callback for a lost process. It gets a sentence, on any thread; calls that wait for that process throw
  // DeviceFault. An empty callback removes it; returns when no call is running.
  virtual void watch_processes(std::function<void(const std::string&)> on_lost) = 0;
  // Ends the other processes in order. No call follows.
  virtual void end_processes() = 0;
  // Makes the call under way throw DeviceFault with this sentence, even if the device hangs. False: only the end of
  // this process can end the call. Any thread.
  virtual bool interrupt(const std::string& why) = 0;

  // See Device::attach_thread().
  virtual void attach_thread() = 0;

 protected:
  // Call before Enqueue. Only this can be refused: memory for a prompt's logprobs, and threads for the first masks.
  Status reserve(std::span<const decode::RoundSegment> segments) {
    bool masks = false, scores = false;
    for (const decode::RoundSegment& segment : segments) {
      masks = masks || segment.masks != nullptr;
      scores = scores || !segment.scored.empty();
    }
    if (!scores && (!masks || has_masks_)) return {};
    VOLLEY_RETURN_IF_ERROR(execute(decode::Reserve{segments}));
    has_masks_ = has_masks_ || masks;
    return {};
  }

  explicit Executor(const ResolvedModels& models) : ranks_(models.ranks), vocab_(models.target.decoder.vocab) {}

  const int ranks_;
  const int32_t vocab_;
  nodes::Ready ready_;
  LockstepPlace lockstep_;
  bool has_masks_ = false;  // a step with masks was reserved
};

}  // namespace volley::engine
