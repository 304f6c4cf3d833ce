#include "engine/worker.h"

#include <chrono>

namespace volley::engine {
namespace {

using Clock = RequestOutput::Clock;

}  // namespace

Worker::Worker(WorkerParts parts) : parts_(std::move(parts)), scheduler_(parts_.scheduler) {
  totals_.accepted_at.resize(parts_.scheduler.block_size - 1);
  totals_.drafted_at.resize(parts_.scheduler.block_size - 1);
  publish_stats();
  thread_ = std::thread([this] { loop(); });
}

Worker::~Worker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Status Worker::submit(Admission admission) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Error{ErrorCode::kUnavailable, "The engine is shutting down: send the request elsewhere."};
    if (queued_ >= static_cast<size_t>(parts_.max_queue)) {
      return resource_exhausted("The queue is full (" + std::to_string(queued_) + " requests wait): try again later.");
    }
    ++queued_;
    commands_.push_back(std::move(admission));
  }
  wake_.notify_all();
  return {};
}

void Worker::cancel(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(Cancel{id});
  }
  wake_.notify_all();
}

void Worker::drop_prefix_cache() {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(DropPrefixCache{});
  }
  wake_.notify_all();
}

EngineStats Worker::stats() const {
  std::lock_guard lock(mutex_);
  return published_;
}

void Worker::loop() {
  std::deque<Command> commands;
  while (take_commands(commands)) {
    for (Command& command : commands) handle(std::move(command));
    commands.clear();
    if (!scheduler_.idle()) step();
    publish_stats();
  }
  for (Command& command : commands) handle(std::move(command));
  while (!requests_.empty()) end(requests_.begin()->first, FinishReason::kCancelled, std::nullopt);
  publish_stats();
}

bool Worker::take_commands(std::deque<Command>& commands) {
  std::unique_lock lock(mutex_);
  if (scheduler_.idle()) wake_.wait(lock, [&] { return stopping_ || !commands_.empty(); });
  commands.swap(commands_);
  return !stopping_;
}

void Worker::handle(Command command) {
  if (auto* admission = std::get_if<Admission>(&command)) return handle(std::move(*admission));
  if (auto* cancel = std::get_if<Cancel>(&command)) return end(cancel->id, FinishReason::kCancelled, std::nullopt);
  scheduler_.drop_prefix_cache();
}

void Worker::handle(Admission admission) {
  GenerateRequest& request = admission.request;
  spec::SlotStart start;
  start.sampling.params = request.sampling;
  start.sampling.seed = *request.sampling.seed;
  start.sampling.prompt_length = static_cast<int32_t>(request.prompt.size());
  start.sampling.min_tokens = request.min_tokens;
  start.limits.end_ids = std::move(request.stop_token_ids);
  if (!request.ignore_eos) {
    start.limits.end_ids.insert(start.limits.end_ids.end(), parts_.eos_ids.begin(), parts_.eos_ids.end());
  }
  start.limits.min_tokens = request.min_tokens;
  start.limits.max_tokens = request.max_tokens;
  start.sampling.end_ids = start.limits.end_ids;
  RequestOutput output(admission.id, std::move(admission.sink), parts_.tokenizer, std::move(request.stop),
                       static_cast<int32_t>(request.prompt.size()), admission.submitted);
  const auto [it, inserted] =
      requests_.emplace(admission.id, Request{std::move(start), std::move(output), std::nullopt});
  VOLLEY_CHECK(inserted);
  const Status added =
      scheduler_.add(admission.id, request.cache_namespace, std::move(request.prompt), request.max_tokens);
  if (!added.ok()) end(admission.id, FinishReason::kError, added.error());
}

void Worker::end(RequestId id, FinishReason reason, std::optional<Error> error) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;  // it has ended already
  scheduler_.remove(id);
  release_slot(it->second);
  ++(reason == FinishReason::kCancelled ? totals_.requests_cancelled : totals_.requests_failed);
  it->second.output.finish(reason, std::move(error), Clock::now());
  requests_.erase(it);
}

void Worker::release_slot(Request& request) {
  if (!request.slot) return;
  parts_.round->clear_slot(*request.slot);
  request.slot.reset();
}

void Worker::step() {
  const Clock::time_point begin = Clock::now();
  const spec::PhaseTimes before = parts_.round->times();
  const sched::StepPlan plan = scheduler_.plan(parts_.scheduler.block_size - 1);
  VOLLEY_CHECK_MSG(!plan.empty(), "the scheduler has requests but plans nothing");
  apply_plan(plan);
  segments_.clear();
  for (const sched::PlannedSegment& planned : plan.segments) {
    segments_.push_back({planned.slot.value, planned.start,
                         scheduler_.tokens(planned.id).subspan(planned.start, planned.known), planned.draft,
                         planned.chooses});
  }
  parts_.round->run(segments_, results_);
  hand_out(plan, results_);
  ++totals_.steps;
  const spec::PhaseTimes& after = parts_.round->times();
  totals_.draft_s = after.draft;
  totals_.target_s = after.target;
  totals_.choose_s = after.choose;
  totals_.commit_s = after.commit;
  const double device = (after.draft - before.draft) + (after.target - before.target) + (after.choose - before.choose) +
                        (after.commit - before.commit);
  totals_.host_s += std::chrono::duration<double>(Clock::now() - begin).count() - device;
}

void Worker::apply_plan(const sched::StepPlan& plan) {
  const Clock::time_point now = Clock::now();
  for (RequestId id : plan.preempted) release_slot(requests_.at(id));
  for (const sched::PlannedSegment& started : plan.started) {
    Request& request = requests_.at(started.id);
    const std::span<const TokenId> tokens = scheduler_.tokens(started.id);
    const auto prompt = static_cast<size_t>(scheduler_.prompt_length(started.id));
    request.start.prompt = tokens.first(prompt);
    request.start.output = tokens.subspan(prompt);
    parts_.round->start_slot(started.slot.value, request.start);
    request.start.prompt = request.start.output = {};  // the scheduler's tokens move as they grow
    request.slot = started.slot.value;
    if (request.output.scheduled(started.start, now)) {
      totals_.prompt_tokens += static_cast<int64_t>(prompt);
      totals_.cached_tokens += started.start;
    }
  }
  for (const sched::PageEdit& edit : plan.page_edits) parts_.round->set_page(edit.slot.value, edit.index, edit.page);
}

void Worker::hand_out(const sched::StepPlan& plan, std::vector<spec::RoundResult>& results) {
  const Clock::time_point now = Clock::now();
  std::vector<sched::StepResult> outcomes;
  std::vector<RequestId> ended;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const sched::PlannedSegment& segment = plan.segments[i];
    if (!segment.chooses) continue;
    Request& request = requests_.at(segment.id);
    const bool failed = !results[i].finite;
    const bool finished = request.output.push(results[i], segment.decodes, segment.draft, now);
    if (finished) {
      ++(failed ? totals_.requests_failed : totals_.requests_finished);
      ended.push_back(segment.id);
    }
    if (failed) {  // its tokens mean nothing: they must not become part of the request
      scheduler_.remove(segment.id);
      continue;
    }
    count(segment, results[i]);
    outcomes.push_back({segment.id, std::move(results[i].tokens), finished});
  }
  scheduler_.apply(outcomes);
  for (RequestId id : ended) {
    release_slot(requests_.at(id));
    requests_.erase(id);
  }
}

void Worker::count(const sched::PlannedSegment& segment, const spec::RoundResult& result) {
  totals_.generated_tokens += static_cast<int64_t>(result.tokens.size());
  if (!segment.decodes) return;
  ++totals_.verify_steps;
  totals_.drafted_tokens += segment.draft;
  totals_.accepted_tokens += result.accepted;
  for (int32_t i = 0; i < segment.draft; ++i) ++totals_.drafted_at[i];
  for (int32_t i = 0; i < result.accepted; ++i) ++totals_.accepted_at[i];
}

void Worker::publish_stats() {
  const sched::SchedulerStats now = scheduler_.stats();
  EngineStats stats = totals_;
  stats.requests_waiting = now.waiting;
  stats.requests_running = now.running;
  stats.preemptions = now.preemptions;
  stats.pages_total = now.pages_total;
  stats.pages_used = now.pages_used;
  stats.pages_cached = now.pages_cached;
  std::lock_guard lock(mutex_);
  published_ = std::move(stats);
  queued_ = static_cast<size_t>(now.waiting);
  for (const Command& command : commands_) queued_ += std::holds_alternative<Admission>(command) ? 1 : 0;
}

}  // namespace volley::engine
