// What a worker computes on: a replica in this process (replica.h), or one in a process of its own (device_process.h).
// Threads as decode::StepExecutor, but for interrupt().
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
  // The sums over all ranks; on a node that is not the first, over its own.
  const nodes::Ready& ready() const { return ready_; }
  // Where it divides the experts with other replicas; its passes then wait for theirs.
  const LockstepPlace& lockstep() const { return lockstep_; }

  // Other processes compute, too: a call takes its time to get there.
  virtual bool spans_processes() const = 0;
  // Called when one of them is gone, with a sentence, on any thread: calls that wait for it throw DeviceFault. Empty:
  // nobody; returns when no call is running.
  virtual void watch_processes(std::function<void(const std::string&)> on_lost) = 0;
  // They end in order. No call follows.
  virtual void end_processes() = 0;
  // The call under way throws DeviceFault with this sentence, though the device hangs. False: only with this process.
  // Any thread.
  virtual bool interrupt(const std::string& why) = 0;

  // Device::attach_thread().
  virtual void attach_thread() = 0;

 protected:
  // Before Enqueue: what can be refused, which is memory for a prompt's logprobs, and threads for the first masks.
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
