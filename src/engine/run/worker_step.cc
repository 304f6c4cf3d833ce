// Plans a step, enqueues it, and hands out its results when it has ended.
#include <algorithm>
#include <chrono>

#include "engine/run/worker.h"

namespace volley::engine {
namespace {

using Clock = RequestOutput::Clock;

Error nothing_to_choose() {
  return internal_error("There is no token to choose: the model's values are not finite. Try --dtype float32.");
}

}  // namespace

// In lockstep a step takes as long as the slowest replica's, of which what was measured here knows nothing.
void Worker::set(const sched::TargetStep& target) {
  target_ = target;
  costs_.expect_steps(target.seconds, costs_.measured() && !lockstep_);
}

sched::PromptBudget Worker::budget_beside(double decoding_s) const {
  const auto [row, position] = costs_.prompt_price();
  return target_.prompts(decoding_s, row, position);
}

// On the CPU a step is over when it is enqueued. In lockstep other replicas wait for this step.
bool Worker::plans_late() const {
  return parts_.replica->depth() > 1 && !lockstep_ && !parts_.replica->spans_processes();
}

bool Worker::plans_later() const {
  const auto time = plan_deadline_.next();
  return time && *time > Clock::now();
}

// Keeps as many steps under way as the device takes, and hands out the oldest one's results while the others run. Until
// the last one is due, the thread takes commands.
void Worker::step() {
  if (plans_later()) return;
  const Watchdog::Step watched(watchdog_);
  const Clock::time_point begin = Clock::now();
  const double waited = waited_s_;
  bool started = true;
  bool later = false;
  while (started && !later && std::ssize(flights_) < parts_.replica->depth()) {
    started = start_step();
    later = started && plans_later();
  }
  if (!flights_.empty() && !later) finish_step();
  const decode::PhaseTimes& times = parts_.replica->times();
  const decode::PhaseTimes& before = times_before_;
  totals_.draft_s = times.draft - before.draft;
  totals_.target_s = times.target - before.target;
  totals_.choose_s = times.choose - before.choose;
  totals_.commit_s = times.commit - before.commit;
  totals_.device_s = times.device - before.device;
  totals_.idle_s = times.idle - before.idle;
  totals_.host_s += std::chrono::duration<double>(Clock::now() - begin).count() - (waited_s_ - waited);
}

bool Worker::start_step() {
  const Clock::time_point planning = Clock::now();
  // Prompts come before drafts, which may take what prompts and plain decoding leave. What that takes is the step
  // before's.
  const sched::DecodingOutlook outlook = scheduler_.decoding(budget_beside(verify_.plain_s() + seeing_s_));
  VerifyStep verify = verify_.next(outlook, target_.decoding(outlook.prompts_s));
  sched::StepPlan plan = scheduler_.plan(verify.limit, budget_beside(verify.decoding_s + seeing_s_));
  VOLLEY_CHECK_MSG(!plan.empty() || !flights_.empty() || scheduler_.idle(),
                   "the scheduler has requests but plans nothing");
  if (plan.empty()) return false;
  apply_plan(plan);
  if (!plan.started.empty()) count_queued();
  segments_.clear();  // left from a step that a fault ended
  for (const sched::PlannedSegment& planned : plan.segments) segments_.push_back(segment_of(planned, verify));
  const double timeout = parts_.step_timeout.more(plan);
  double under_way = timeout;
  for (const Flight& flight : flights_) under_way += flight.timeout;
  watchdog_.allow(std::chrono::duration<double>(under_way));
  const Clock::time_point begin = Clock::now();
  enqueue(plan, verify);
  if (parts_.replica->depth() == 1) waited_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
  const bool timed = plans_late() && !segments_.empty();
  plan_deadline_.planned(planning, begin, Clock::now(), timed ? costs_.at_least(verify.shape) : 0);
  flights_.push_back({std::move(plan), std::move(verify), !segments_.empty(), timeout});
  seeing_s_ = 0;
  ++planned_steps_;
  segments_.clear();  // with the request's end, only its step still holds the grammar
  if (flights_.size() == 1) fill_masks();
  return true;
}

decode::RoundSegment Worker::segment_of(const sched::PlannedSegment& planned, const VerifyStep& verify) {
  Request& request = requests_.at(planned.id);
  decode::RoundSegment segment;
  segment.slot = planned.slot.value;
  segment.draft = planned.draft;
  segment.chooses = planned.chooses;
  if (planned.chooses) segment.masks = request.grammar;
  if (planned.decodes) {  // from the slot's last token, which the device knows
    segment.shift = verify_.shift(planned.id, verify);
    if (request.simulate) {
      segment.simulate = simulated_at(*request.simulate, request.decoding_steps, verify.shape.drafter);
    }
    ++request.decoding_steps;
    return segment;
  }
  segment.start = planned.start;
  const std::span<const TokenId> tokens = scheduler_.tokens(planned.id);
  segment.known = tokens.subspan(planned.start, planned.known);
  request.prompt_rows.add_to(segment);
  // the row of the last one makes the first choice
  const int32_t last_scored = scheduler_.prompt_length(planned.id) - 1;
  if (request.prompt_logprobs >= 0 && request.output.prompt_logprobs() < last_scored && planned.start < last_scored) {
    segment.scored = tokens.subspan(planned.start + 1, std::min(planned.known, last_scored - planned.start));
  }
  return segment;
}

// Where memory for prompt logprobs or threads for grammar masks are missing, the requests that need them end and the
// others go on. The step is tried without the one kind, then without the other.
void Worker::enqueue(sched::StepPlan& plan, VerifyStep& verify) {
  enum Needs { kScores = 1, kMasks = 2 };
  const auto needs = [](const decode::RoundSegment& segment) {
    return (segment.scored.empty() ? 0 : kScores) | (segment.masks != nullptr ? kMasks : 0);
  };
  Status refusal;
  std::vector<decode::RoundSegment> kept;
  for (const int without : {0, int{kScores}, int{kMasks}, kScores | kMasks}) {
    kept.clear();
    std::ranges::copy_if(segments_, std::back_inserter(kept), [&](const auto& s) { return !(needs(s) & without); });
    if (without != 0 && kept.size() == segments_.size()) continue;  // no request needs that
    Status enqueued;
    if (!kept.empty()) enqueued = parts_.replica->enqueue(kept, verify_.budget(plan, kept, verify));
    if (!enqueued.ok()) {
      refusal = enqueued;
      continue;
    }
    std::vector<RequestId> refused;
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (needs(segments_[i]) & without) refused.push_back(plan.segments[i].id);
    }
    segments_.swap(kept);
    kept.clear();
    std::erase_if(plan.segments, [&](const auto& segment) { return std::ranges::count(refused, segment.id) > 0; });
    for (RequestId id : refused) end(id, FinishReason::kError, refusal.error());
    return;
  }
  VOLLEY_CHECK_MSG(false, refusal.error().message);
}

void Worker::finish_step() {
  const Clock::time_point begin = Clock::now();
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  decode::StepTimes times;
  if (flight.enqueued) {
    ++totals_.steps;
    times = parts_.replica->wait(results_);
  } else {
    times.arrived = begin;
    results_.clear();
  }
  plan_deadline_.landed(begin, times.arrived);
  waited_s_ += std::chrono::duration<double>(Clock::now() - begin).count();
  if (flight.enqueued) observe(flight, times);
  hand_out(flight, results_);
  fill_masks();
}

// Masks depend on all committed tokens. The device runs meanwhile, and waits where it needs them.
void Worker::fill_masks() {
  if (parts_.replica->depth() == 1 || flights_.empty() || !flights_.front().verify.waits_for_masks) return;
  parts_.replica->execute(decode::FillMasks{});
}

// Runs before the results are handed out, because stop strings and grammars shorten them.
void Worker::observe(const Flight& flight, const decode::StepTimes& times) {
  decoded_.clear();
  for (const sched::PlannedSegment& segment : flight.plan.segments) {
    if (segment.decodes) decoded_.push_back(requests_.contains(segment.id) ? segment.id : 0);
  }
  verify_.observe(flight.verify, times, decoded_, std::span(results_).first(decoded_.size()));
  // A step that waited for masks took the host's time, too.
  if (!flight.verify.waits_for_masks) costs_.observe(flight.verify.shape, {times.draft, times.rest});
}

Status Worker::start_slot(Request& request, const sched::PlannedSegment& started) {
  const std::span<const TokenId> tokens = scheduler_.tokens(started.id);
  const auto prompt = static_cast<size_t>(scheduler_.prompt_length(started.id));
  request.start.prompt = tokens.first(prompt);
  request.start.output = tokens.subspan(prompt);
  request.start.draft_context = started.draft_context;
  const Status status = parts_.replica->execute(decode::StartSlot{started.slot.value, request.start});
  request.start.prompt = request.start.output = {};  // the scheduler's tokens move as they grow
  if (!status.ok()) return status;
  request.slot = started.slot.value;
  return status;
}

// Ends requests that cannot start, and removes them from the plan.
void Worker::apply_plan(sched::StepPlan& plan) {
  const Clock::time_point now = Clock::now();
  for (RequestId id : plan.preempted) release_slot(requests_.at(id));
  for (const sched::PlannedSegment& started : plan.started) {
    Request& request = requests_.at(started.id);
    if (const Status status = start_slot(request, started); !status.ok()) {
      std::erase_if(plan.segments, [&](const auto& segment) { return segment.id == started.id; });
      std::erase_if(plan.page_edits, [&](const auto& edit) { return edit.slot == started.slot; });
      end(started.id, FinishReason::kError, status.error());
      continue;
    }
    if (request.output.scheduled(started.start, now)) {
      count_prompt(started.id, request, started.start);
      totals_.cached_tokens += started.start;
    }
  }
  for (const sched::MemoryCopy& copy : plan.copies) parts_.replica->execute(decode::CopyMemory{copy});
  for (const sched::PageEdit& edit : plan.page_edits) {
    parts_.replica->execute(decode::SetPage{edit.slot.value, edit.group, edit.index, edit.page});
  }
}

void Worker::add_prompt_logprobs(const sched::PlannedSegment& segment, Request& request, decode::RoundResult& result) {
  if (result.scores.empty()) return;
  for (PositionLogprobs& score : result.scores) {
    score.top.resize(std::min(score.top.size(), static_cast<size_t>(request.prompt_logprobs)));
  }
  request.output.add_prompt_logprobs(segment.start, std::move(result.scores));
}

void Worker::hand_out(const Flight& flight, std::vector<decode::RoundResult>& results) {
  const sched::StepPlan& plan = flight.plan;
  const Clock::time_point now = Clock::now();
  std::vector<sched::StepResult> outcomes;
  std::vector<RequestId> ended;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const sched::PlannedSegment& segment = plan.segments[i];
    const auto found = requests_.find(segment.id);
    if (found == requests_.end()) continue;  // it ended after this step was enqueued
    Request& request = found->second;
    count_prompt(segment.id, request, segment.start + segment.known);
    add_prompt_logprobs(segment, request, results[i]);
    if (!segment.chooses) continue;
    Result<bool> complete = false;
    if (request.grammar) complete = request.grammar->commit(results[i]);
    bool finished = false;
    if (complete.ok() || !results[i].tokens.empty()) {
      const bool ends = complete.ok() && *complete;
      finished = request.output.push(results[i], segment.decodes, results[i].drafted, ends, now);
    }
    const bool failed = !finished && (!complete.ok() || !results[i].finite);
    if (failed) {
      request.output.finish(FinishReason::kError, complete.ok() ? nothing_to_choose() : complete.error(), now);
    }
    if (finished || failed) {
      ++(failed ? totals_.requests_failed : totals_.requests_finished);
      ended.push_back(segment.id);
    }
    if (!results[i].tokens.empty()) count(segment.decodes, results[i]);
    // A grammar may end a request without a token.
    if (failed || results[i].tokens.empty()) {
      scheduler_.remove(segment.id, results[i].finite ? sched::Prefix::kKept : sched::Prefix::kDropped);
      continue;
    }
    if (segment.decodes) watch(request, results[i], flight.verify.shape.drafter);
    outcomes.push_back({segment.id, std::move(results[i].tokens), finished, results[i].ended || results[i].exhausted});
  }
  scheduler_.apply(outcomes);
  erase(ended);
}

// computed: prompt tokens computed so far. A preempted prompt is computed again and counts once.
void Worker::count_prompt(RequestId id, Request& request, int32_t computed) {
  const int32_t counted = std::min(computed, scheduler_.prompt_length(id));
  totals_.prompt_tokens += std::max(counted - request.counted_prompt, 0);
  request.counted_prompt = std::max(counted, request.counted_prompt);
}

void Worker::count(bool decodes, const decode::RoundResult& result) {
  totals_.generated_tokens += static_cast<int64_t>(result.tokens.size());
  if (!decodes) return;
  ++totals_.verify_steps;
  totals_.drafted_tokens += result.drafted;
  totals_.accepted_tokens += result.accepted;
  for (int32_t i = 0; i < result.drafted; ++i) ++totals_.drafted_at[i];
  for (int32_t i = 0; i < result.accepted; ++i) ++totals_.accepted_at[i];
}

void Worker::watch(const Request& request, const decode::RoundResult& result, int32_t drafter) {
  if (request.simulate || request.grammar || acceptance_.empty()) return;
  const std::optional<std::string> warning = acceptance_[drafter].see(result.drafted, result.accepted);
  if (warning && parts_.on_warning) parts_.on_warning(*warning);
}

}  // namespace volley::engine
