// What a worker computes on: a replica in this process (replica.h), or one in a process of its own (device_process.h).
// Threads as spec::StepExecutor, but for interrupt().
#pragma once

#include <functional>
#include <string>

#include "engine/lockstep.h"
#include "spec/step_executor.h"

namespace volley::engine {

class Executor : public spec::StepExecutor {
 public:
  virtual int ranks() const = 0;
  virtual int32_t vocab() const = 0;
  // Sums over all ranks.
  virtual int threads() const = 0;
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t target_bytes() const = 0;  // of these, the target's
  virtual int64_t state_bytes() const = 0;
  virtual std::string device_name() const = 0;  // Device::name()

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

  // Where it divides the experts with other replicas; its passes then wait for theirs.
  virtual const LockstepPlace& lockstep() const = 0;
  // A pass of the target without rows, for those of others. REQUIRES: lockstep(); no step is under way.
  virtual void take_part() = 0;
  // Waits for the last of these passes, which on a GPU may be under way.
  virtual void settle() = 0;

  // Device::attach_thread().
  virtual void attach_thread() = 0;
};

}  // namespace volley::engine
