#include "engine/remote/follow.h"

#include <volley/engine.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/gone.h"
#include "device/fault.h"
#include "engine/remote/node_setup.h"
#include "engine/run/step_timeout.h"
#include "engine/run/watchdog.h"
#include "engine/start/replica_options.h"

namespace volley::engine {
namespace {

// Time for another node to report the cause when a rank of it is gone.
constexpr std::chrono::seconds kForTheCause(5);

Error no_threads() {
  return resource_exhausted("The system gives this process no more threads.");
}

Error out_of_turn(const std::string& what) {
  return {ErrorCode::kUnavailable, "Node 0 asks for what cannot be: " + what + "."};
}

// Replays calls one after the other. An error is node 0's, or says that node 0 is gone.
class Replay {
 public:
  // brings_results: this process computes for an engine and has all its ranks. on_hang: called on a thread of its own
  // when a call lasts longer than `timeout`, even after node 0 is gone.
  Replay(nodes::Follower& follower, Replica& replica, const ResolvedModels& models, bool brings_results,
         Watchdog::Seconds timeout, std::function<void(Watchdog::Seconds)> on_hang)
      : follower_(follower),
        replica_(replica),
        tower_(models.target.decoder.tower),
        rows_of_unit_(model::TowerPass::rows_of_unit(models.device.kind)),
        running_(static_cast<size_t>(models.max_num_seqs)),
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
      VOLLEY_RETURN_IF_ERROR(std::visit(*this, call.message));
    }
    return {};
  }

  Status operator()(const decode::Command& command) {
    VOLLEY_RETURN_IF_ERROR(std::visit([this](const auto& one) { return in_turn(one); }, command));
    decode::Answer answer = replica_.perform(command);
    const bool refused = decode::is_refusal(answer);
    if (const auto* start = std::get_if<decode::StartSlot>(&command)) running_[index(start->slot)] = !refused;
    if (const auto* step = std::get_if<decode::Enqueue>(&command)) {
      const bool masked = asks_for_masks(*step);
      if (masked && replica_.depth() == 1) masked_.fetch_add(1);
      if (replica_.depth() > 1) unfilled_.push_back(masked);
      return std::get<Status>(answer);
    }
    if (std::holds_alternative<decode::FillMasks>(command)) {
      unfilled_.front() = false;
      masked_.fetch_add(1);
    }
    if (std::holds_alternative<decode::Wait>(command) && !unfilled_.empty()) unfilled_.pop_front();
    if (!decode::is_answered(command)) return {};
    const auto* step = std::get_if<decode::StepResults>(&answer);
    if (step == nullptr || brings_results_) return follower_.reply(nodes::Answer{std::move(answer)});
    return follower_.reply(nodes::Report{nodes::digest_of(step->results), step->experts_touched});
  }
  Status operator()(const nodes::Masks&) { return out_of_turn("masks are no call"); }
  Status operator()(const nodes::End&) {
    ended_ = true;
    return {};
  }

 private:
  static size_t index(int32_t slot) { return static_cast<size_t>(slot); }

  static bool asks_for_masks(const decode::Enqueue& step) {
    return std::ranges::any_of(step.segments, [](const auto& segment) { return segment.masks != nullptr; });
  }

  // Whether the command is allowed now. The reader has checked its fields.
  Status in_turn(const auto&) { return {}; }
  Status in_turn(const decode::StartSlot& start) {
    return running_[index(start.slot)] ? Status(out_of_turn("a slot starts twice")) : Status();
  }
  Status in_turn(const decode::ClearSlot& clear) {
    running_[index(clear.slot)] = false;
    return {};
  }
  Status in_turn(const decode::Reserve&) {
    if (replica_.under_way() >= replica_.depth()) return out_of_turn("too many steps are under way");
    return {};
  }
  Status in_turn(const decode::Enqueue& step) {
    if (replica_.under_way() >= replica_.depth()) return out_of_turn("too many steps are under way");
    for (const decode::RoundSegment& segment : step.segments) {
      if (!running_[index(segment.slot)]) return out_of_turn("a slot takes part that has not started");
    }
    if (step.budget.rows > replica_.most_shared_rows()) return out_of_turn("a step shares out more rows than it can");
    return {};
  }
  Status in_turn(const decode::See& see) {
    if (see.begin == 0) {
      const int64_t patch = tower_->rules.patch_size;
      units_ = model::TowerUnits(*tower_, see.width / patch * (see.height / patch), rows_of_unit_).count();
      next_unit_ = 0;
    }
    if (see.begin != next_unit_ || see.end > units_) return out_of_turn("units of a picture are in another order");
    next_unit_ = see.end;
    return {};
  }
  Status in_turn(const decode::TakeSeen&) {
    return units_ == 0 || next_unit_ != std::exchange(units_, 0) ? Status(out_of_turn("no picture is done")) : Status();
  }
  Status in_turn(const decode::FillMasks&) {
    return unfilled_.empty() || !unfilled_.front() ? Status(out_of_turn("no step waits for masks")) : Status();
  }
  Status in_turn(const decode::Wait&) {
    if (!unfilled_.empty() && unfilled_.front()) return out_of_turn("a step still waits for its masks");
    return replica_.under_way() == 0 ? Status(out_of_turn("there is no step to wait for")) : Status();
  }

  // On the follower's thread. Masks of the next step come only after this node has sent the results of the last one.
  Status take_masks(std::vector<uint32_t> words) {
    if (published_ != masked_.load()) return invalid_argument("masks came before the last ones were used");
    ++published_;
    replica_.publish_masks(std::move(words));
    return {};
  }

  nodes::Follower& follower_;
  Replica& replica_;
  const std::optional<model::TowerSpec> tower_;
  const int64_t rows_of_unit_;
  int32_t units_ = 0, next_unit_ = 0;  // of the picture that is being seen
  std::vector<bool> running_;
  const bool brings_results_;
  Watchdog watchdog_;
  bool ended_ = false;
  // for each step under way, oldest first: it waits for masks; used where depth() > 1
  std::deque<bool> unfilled_;
  std::atomic<uint64_t> masked_{0};  // steps that have used their masks
  uint64_t published_ = 0;           // masks that came; on the follower's thread
};

// Reports progress in few messages.
class LoadingNews {
 public:
  explicit LoadingNews(nodes::Follower& follower) : follower_(follower) {}

  void operator()(std::string_view phase, double fraction) {
    // A hundredth of a large model can take a slow disk minutes.
    const auto now = std::chrono::steady_clock::now();
    if (phase == phase_ && fraction < fraction_ + 0.01 && now < last_ + std::chrono::seconds(1)) return;
    last_ = now;
    phase_ = phase;
    fraction_ = fraction;
    // a lost node 0 ends the replay anyway
    (void)follower_.reply(nodes::Loading{phase_, std::clamp(fraction, 0.0, 1.0)});
  }

 private:
  nodes::Follower& follower_;
  std::string phase_;
  double fraction_ = 0;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace

Status follow_links(const EngineOptions& options, const ResolvedModels& models, nodes::Links links,
                    const Progress& progress, const std::function<void()>& started, const Replica::WrapDevice& wrap) {
  const bool for_engine = models.nodes == 1;
  std::optional<nodes::Follower> follows;
  try {
    // The device no longer matters here.
    const auto end_process = [] { std::_Exit(1); };
    follows.emplace(std::move(links.calls.front()), call_limits(models),
                    for_engine ? std::function<void()>(end_process) : std::function<void()>());
  } catch (const std::system_error&) {
    return no_threads();
  }
  nodes::Follower& follower = *follows;
  links.calls.clear();
  const auto fail = [&](const Error& error) {
    (void)follower.reply(nodes::Failed{error.message});  // node 0 may be gone
    return error;
  };
  const auto say = [&](const DeviceFault& fault) -> Error {
    // This node only sees a consequence. Node 0 believes the first report, so the node with the cause must send it;
    // node 0 then ends this one.
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
    // No watchdog for an engine: it times this process's steps, and kills it.
    const Watchdog::Seconds timeout(for_engine ? 0 : step_timeout(options, models).least);
    Replay replay(follower, **replica, models, for_engine, timeout, [&](Watchdog::Seconds limit) {
      if (options.on_device_failure) options.on_device_failure(step_hangs(limit.count()));
    });
    VOLLEY_RETURN_IF_ERROR(follower.reply((*replica)->ready()));
    if (started) started();
    // Sent before the replica is destroyed, because afterwards node 0 would only see the end.
    try {
      const Status replayed = replay.run();
      return replayed.ok() ? replayed : fail(replayed.error());
    } catch (const DeviceFault& fault) {
      return say(fault);
    }
  } catch (const DeviceFault& fault) {  // the failure came before the replica was ready
    return say(fault);
  } catch (const std::system_error&) {
    return fail(no_threads());
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
