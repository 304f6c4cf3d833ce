#include "engine/follow.h"

#include <volley/engine.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/gone.h"
#include "device/fault.h"
#include "engine/node_setup.h"
#include "engine/replica_options.h"
#include "engine/step_timeout.h"
#include "engine/watchdog.h"

namespace volley::engine {
namespace {

// For whoever knows the cause to say it, where a rank of another node is gone.
constexpr std::chrono::seconds kForTheCause(5);

Error no_memory() {
  return {ErrorCode::kUnavailable, "The process has no memory left: give it more."};
}

Error no_threads() {
  return resource_exhausted("The system gives this process no more threads.");
}

Error out_of_turn(const std::string& what) {
  return {ErrorCode::kUnavailable, "Node 0 asks for what cannot be: " + what + "."};
}

// One call after the other. An error is node 0's, or means that it is gone.
class Replay {
 public:
  // brings_results: it computes for an engine that has no ranks. on_hang: a call does not end within `timeout`, not
  // even after node 0 is gone. On a thread of its own.
  Replay(nodes::Follower& follower, Replica& replica, int32_t slots, bool brings_results, Watchdog::Seconds timeout,
         std::function<void(Watchdog::Seconds)> on_hang)
      : follower_(follower),
        replica_(replica),
        running_(static_cast<size_t>(slots)),
        brings_results_(brings_results),
        watchdog_(timeout, [hangs = std::move(on_hang)](Watchdog::Seconds limit) { return hangs(limit), false; }) {
    follower_.set_hooks({[this](std::vector<uint32_t> words) { return take_masks(std::move(words)); },
                         [&replica] { replica.abort(); }});
  }
  ~Replay() { follower_.set_hooks({}); }

  Status run() {
    while (!ended_) {
      VOLLEY_ASSIGN(const nodes::Call call, follower_.next());
      const Watchdog::Step watched(watchdog_);
      VOLLEY_RETURN_IF_ERROR(std::visit(*this, call));
    }
    return {};
  }

  Status operator()(const nodes::StartSlot& call) {
    if (is_running(call.slot)) return out_of_turn("a slot starts twice");
    const Status started = replica_.start_slot(call.slot, call.whole());
    running_[static_cast<size_t>(call.slot)] = started.ok();
    return follower_.reply(nodes::Answer{started});
  }
  Status operator()(const nodes::ClearSlot& call) {
    if (is_running(call.slot)) replica_.clear_slot(call.slot);  // one that was refused here is clear
    running_[static_cast<size_t>(call.slot)] = false;
    return {};
  }
  Status operator()(const nodes::SetPage& call) {
    replica_.set_page(call.slot, call.group, call.index, call.page);
    return {};
  }
  Status operator()(const nodes::SaveState& call) {
    replica_.save_state(call.slot, call.snapshot);
    return {};
  }
  Status operator()(const nodes::RestoreState& call) {
    replica_.restore_state(call.snapshot, call.slot);
    return {};
  }
  Status operator()(const nodes::CopyPage& call) {
    replica_.copy_page(call.group, call.from, call.to);
    return {};
  }
  Status operator()(const nodes::Reserve& call) {
    if (replica_.under_way() >= replica_.depth()) return out_of_turn("too many steps are under way");
    return follower_.reply(nodes::Answer{replica_.reserve(call.of.segments)});
  }
  Status operator()(const nodes::Enqueue& call) {
    if (replica_.under_way() >= replica_.depth()) return out_of_turn("too many steps are under way");
    bool masks = false;
    for (const spec::RoundSegment& segment : call.of.segments) {
      if (!is_running(segment.slot)) return out_of_turn("a slot takes part that has not started");
      masks = masks || segment.masks != nullptr;
    }
    if (masks && replica_.under_way() > 0) return out_of_turn("a step with masks comes before the last one's results");
    if (call.budget_rows > replica_.most_shared_rows()) return out_of_turn("a step shares out more rows than it can");
    VOLLEY_RETURN_IF_ERROR(replica_.enqueue(call.of.segments, {call.budget_rows, call.table.get()}));
    if (masks) masked_.fetch_add(1);
    return call.waits ? wait() : Status();
  }
  Status operator()(const nodes::Wait&) {
    if (replica_.under_way() == 0) return out_of_turn("there is no step to wait for");
    return wait();
  }
  Status operator()(const nodes::Masks&) { return out_of_turn("masks are no call"); }
  Status operator()(const nodes::End&) {
    ended_ = true;
    return {};
  }

 private:
  bool is_running(int32_t slot) const { return running_[static_cast<size_t>(slot)]; }

  Status wait() {
    const spec::StepTimes times = replica_.wait(results_);
    if (brings_results_) {
      return follower_.reply(
          nodes::StepResults{std::move(results_), times, replica_.times(), replica_.experts_touched()});
    }
    return follower_.reply(nodes::Report{nodes::digest_of(results_), replica_.experts_touched()});
  }

  // On the follower's thread. Masks of the next step come when this node has told its results of the last one.
  Status take_masks(std::vector<uint32_t> words) {
    if (published_ != masked_.load()) return invalid_argument("masks came before the last ones were used");
    ++published_;
    replica_.publish_masks(std::move(words));
    return {};
  }

  nodes::Follower& follower_;
  Replica& replica_;
  std::vector<bool> running_;
  std::vector<spec::RoundResult> results_;
  const bool brings_results_;
  Watchdog watchdog_;
  bool ended_ = false;
  std::atomic<uint64_t> masked_{0};  // steps with masks that are enqueued
  uint64_t published_ = 0;           // masks that came; of the follower's thread
};

nodes::Ready ready_of(const Replica& replica) {
  return {replica.threads(), replica.weight_bytes(), replica.target_bytes(), replica.state_bytes()};
}

nodes::Traits traits_of(const Replica& replica) {
  return {replica.depth(),       replica.block_size(),    replica.most_shared_rows(),
          replica.row_buckets(), replica.draft_lengths(), replica.device_name()};
}

// Progress as messages, few of them.
class LoadingNews {
 public:
  explicit LoadingNews(nodes::Follower& follower) : follower_(follower) {}

  void operator()(std::string_view phase, double fraction) {
    if (phase == phase_ && fraction < fraction_ + 0.01) return;
    phase_ = phase;
    fraction_ = fraction;
    (void)follower_.reply(nodes::Loading{phase_, std::clamp(fraction, 0.0, 1.0)});  // who is gone ends all of it
  }

 private:
  nodes::Follower& follower_;
  std::string phase_;
  double fraction_ = 0;
};

}  // namespace

Status follow_links(const EngineOptions& options, const ResolvedModels& models, nodes::Links links,
                    const Progress& progress, const std::function<void()>& started, const Replica::WrapDevice& wrap) {
  const bool for_engine = models.nodes == 1;
  std::optional<nodes::Follower> follows;
  try {
    // Whatever the device does then: nobody needs it any more.
    const auto end_process = [] { std::_Exit(1); };
    follows.emplace(std::move(links.calls.front()), call_limits(models),
                    for_engine ? std::function<void()>(end_process) : std::function<void()>());
  } catch (const std::system_error&) {
    return no_threads();
  }
  nodes::Follower& follower = *follows;
  links.calls.clear();
  const auto fail = [&](const Error& error) {
    (void)follower.reply(nodes::Failed{error.message});  // where node 0 is gone nobody asks
    return error;
  };
  const auto say = [&](const DeviceFault& fault) -> Error {
    // A consequence. Node 0 believes who speaks first, so whoever knows the cause must: it tells node 0, which ends.
    if (dynamic_cast<const comm::PeerLost*>(&fault) != nullptr) {
      if (auto lost = follower.lost_within(kForTheCause)) return std::move(*lost);
    }
    return fail({ErrorCode::kUnavailable, fault.what()});
  };
  LoadingNews news(follower);
  const Progress report = for_engine ? Progress(std::ref(news)) : progress;
  try {
    Result<std::unique_ptr<Replica>> replica =
        Replica::create(options, models, report, wrap, std::move(links), &follower);
    if (!replica.ok()) return fail(replica.error());
    // An engine looks to it itself, and ends this process.
    const Watchdog::Seconds timeout(for_engine ? 0 : step_timeout(options, models).least);
    Replay replay(follower, **replica, models.max_num_seqs, for_engine, timeout, [&](Watchdog::Seconds limit) {
      if (options.on_device_failure) options.on_device_failure(step_hangs(limit.count()));
    });
    if (for_engine) VOLLEY_RETURN_IF_ERROR(follower.reply(traits_of(**replica)));
    VOLLEY_RETURN_IF_ERROR(follower.reply(ready_of(**replica)));
    if (started) started();
    // Before the replica goes: its end is all that node 0 would hear.
    try {
      const Status replayed = replay.run();
      return replayed.ok() ? replayed : fail(replayed.error());
    } catch (const DeviceFault& fault) {
      return say(fault);
    } catch (const std::bad_alloc&) {
      return fail(no_memory());
    }
  } catch (const DeviceFault& fault) {  // before it was ready
    return say(fault);
  } catch (const std::system_error&) {
    return fail(no_threads());
  } catch (const std::bad_alloc&) {
    return fail(no_memory());
  }
}

}  // namespace volley::engine

namespace volley {

Status Engine::follow(const EngineOptions& options, const Progress& progress, const std::function<void()>& started) {
  if (options.node_rank < 1) return invalid_argument("--node-rank 0 has the engine: only nodes after it follow.");
  VOLLEY_ASSIGN(engine::ResolvedModels models, engine::resolve_models(options));
  if (auto warning = engine::too_few_threads(options, models.device.kind)) models.warnings.push_back(*warning);
  if (auto warning = engine::bound_to_few_cores(options, models.device.kind)) models.warnings.push_back(*warning);
  if (options.on_warning) {
    for (const std::string& warning : models.warnings) options.on_warning(warning);
  }
  VOLLEY_ASSIGN(nodes::Links links, engine::meet_nodes(options, models));
  return engine::follow_links(options, models, std::move(links), progress, started);
}

}  // namespace volley
