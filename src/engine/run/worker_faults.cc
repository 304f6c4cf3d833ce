// Preserves requests when the device fails. Their state is with the host: tokens in the scheduler, committed ones in
// matchers, text in outputs. So a fault preempts all of them, and they go on on a new device. No code here uses the old
// device.
#include "device/fault.h"
#include "engine/run/worker.h"

namespace volley::engine {
namespace {

using Clock = RequestOutput::Clock;

// Sets `before` so that `now - before` continues from `old - old_before`.
void carry(double now, double old, double& before) {
  before = now - (old - before);
}

}  // namespace

bool Worker::recover(const std::string& fault) {
  forget_device_state();
  const auto now = Clock::now();
  const std::chrono::duration<double> least(parts_.least_between_faults_s);
  bool ending = false;
  {
    const std::lock_guard lock(mutex_);
    ending = stopping_;
  }
  std::string failure = fault;
  if (parts_.remake && !ending && !(mended_ && now - *mended_ < least)) {
    if (parts_.on_warning) parts_.on_warning(fault + " The models are loaded again, and requests go on.");
    if (parts_.on_restart) parts_.on_restart(true);
    totals_.devices_restarting = 1;
    publish_stats();
    const Status again = restart();
    mended_ = Clock::now();
    if (again.ok()) {
      if (parts_.on_restart) parts_.on_restart(false);
      return true;
    }
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;  // closing is no failure
    }
    failure += " Starting over failed: " + again.error().message;
  }
  give_up(failure);
  return false;
}

// Steps under way commit nothing, and all slots are free.
void Worker::forget_device_state() {
  for (auto& [id, request] : requests_) request.slot.reset();
  flights_.clear();
  pictures_.restart();
  plan_deadline_ = {};
}

Status Worker::restart() {
  scheduler_.restart();
  const decode::PhaseTimes old = parts_.replica->times();
  experts_before_ += parts_.replica->experts_touched();
  replace_replica(nullptr);  // freed first, because there is no memory for two
  VOLLEY_ASSIGN(std::unique_ptr<Executor> made, remake());
  const decode::PhaseTimes now = made->times();
  replace_replica(std::move(made));
  carry(now.draft, old.draft, times_before_.draft);
  carry(now.target, old.target, times_before_.target);
  carry(now.choose, old.choose, times_before_.choose);
  carry(now.commit, old.commit, times_before_.commit);
  carry(now.device, old.device, times_before_.device);
  carry(now.idle, old.idle, times_before_.idle);
  ++totals_.device_restarts;
  totals_.devices_restarting = 0;
  publish_stats();
  return {};
}

// A load that fails this late counts as a fault of its own, like one that hangs, and is tried once more.
Result<std::unique_ptr<Executor>> Worker::remake() {
  const auto attends = [this] { return attend(); };
  const auto begun = Clock::now();
  Result<std::unique_ptr<Executor>> made = parts_.remake(attends);
  if (made.ok() || made.error().code == ErrorCode::kCancelled) return made;
  if (Clock::now() - begun < std::chrono::duration<double>(parts_.least_between_faults_s)) return made;
  if (parts_.on_warning) parts_.on_warning(made.error().message + " The models are loaded once more.");
  return parts_.remake(attends);
}

// Losses that the old replica reports while it is destroyed do not concern the new one.
void Worker::replace_replica(std::unique_ptr<Executor> by) {
  {
    const std::lock_guard lock(replica_mutex_);
    parts_.replica.swap(by);
  }
  by.reset();
  const std::lock_guard lock(mutex_);
  lost_.clear();
}

bool Worker::is_late(std::chrono::duration<double> limit) {
  const std::string hangs = step_hangs(limit.count());
  {
    const std::lock_guard lock(replica_mutex_);
    // No replica: the step has failed by itself meanwhile.
    if (parts_.remake && (!parts_.replica || parts_.replica->interrupt(hangs))) return true;
  }
  give_up(hangs);
  return false;
}

void Worker::lost_process(const std::string& why) {
  if (!parts_.remake) return give_up(why);
  {
    const std::lock_guard lock(mutex_);
    lost_ = why;
  }
  wake_.notify_all();
}

void Worker::check_processes() {
  std::unique_lock lock(mutex_);
  if (lost_.empty()) return;
  const DeviceFault fault(lost_);
  lock.unlock();
  throw fault;
}

void Worker::give_up(const std::string& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) return;
    failure_ = failure + " The server ends: send the request again when it is back, or elsewhere.";
    stopping_ = true;
  }
  wake_.notify_all();
  // failure_ no longer changes, and gates close behind a last event.
  open_.fail({ErrorCode::kUnavailable, failure_});
  if (parts_.on_device_failure) parts_.on_device_failure(failure);
  // Comes last, so that the others' requests get this cause, not the news of a lost replica.
  if (lockstep_) lockstep_.with->abort(lockstep_.replica);
}

std::optional<Error> Worker::device_failure() const {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) return std::nullopt;
  return Error{ErrorCode::kUnavailable, failure_};
}

// The round is destroyed with its slots.
void Worker::end_all() {
  forget_device_state();
  take_commands();
  while (!pending_.empty()) {
    if (auto* admission = std::get_if<Admission>(&pending_.front())) handle(std::move(*admission));
    pending_.pop_front();
  }
  // give_up() tells every client; this thread may be faster.
  const std::optional<Error> error = device_failure();
  const FinishReason reason = error ? FinishReason::kError : FinishReason::kCancelled;
  while (!requests_.empty()) end(requests_.begin()->first, reason, error);
  publish_stats();
}

}  // namespace volley::engine
