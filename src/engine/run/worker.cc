#include "engine/run/worker.h"

#include <algorithm>
#include <chrono>

#include "device/fault.h"
#include "engine/start/replica_options.h"

namespace volley::engine {
namespace {

using Clock = RequestOutput::Clock;

// Multiply-adds of a tower in a second, below which a device is held to hang.
constexpr double kLeastMacs = 2.5e11;

// Prompts that may have their pictures' vectors before they have a slot: these take megabytes.
constexpr size_t kMostSeenAhead = 16;

VerifyConfig verify_config(const WorkerParts& parts, const decode::CostModel& costs) {
  const decode::StepExecutor& round = *parts.replica;
  VerifyConfig config;
  config.policy = parts.verify;
  config.max_draft = round.block_size() - 1;
  config.draft_lengths = round.draft_lengths();
  config.row_buckets = round.row_buckets();
  config.most_shared_rows = round.most_shared_rows();
  config.max_rows = parts.scheduler.max_num_batched_tokens;
  config.costs = &costs;
  return config;
}

}  // namespace

Worker::Worker(WorkerParts parts)
    : parts_(std::move(parts)),
      lockstep_(parts_.replica->lockstep()),
      scheduler_(parts_.scheduler),
      costs_(parts_.costs ? std::move(*parts_.costs) : decode::CostModel()),
      verify_(verify_config(parts_, costs_)),
      acceptance_(parts_.drafters.begin(), parts_.drafters.end()),
      vocab_(parts_.replica->vocab()),
      pictures_(std::move(parts_.pictures)),
      times_before_(parts_.replica->times()),
      queued_(queue_limits(parts_.max_queue)),
      watchdog_(std::chrono::duration<double>(parts_.step_timeout.least),
                [this](std::chrono::duration<double> limit) { return is_late(limit); }) {
  totals_.accepted_at.resize(parts_.scheduler.block_size - 1);
  totals_.drafted_at.resize(parts_.scheduler.block_size - 1);
  set(sched::TargetStep{parts_.target_step_s});
  publish_stats();
  if (lockstep_) {
    lockstep_.with->watch(lockstep_.replica, [this] {
      const std::lock_guard lock(mutex_);  // the thread may be between its look and its sleep
      wake_.notify_all();
    });
  }
  thread_ = std::thread([this] { loop(); });
}

Worker::~Worker() {
  stop();
  join();
}

void Worker::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

void Worker::join() {
  if (!thread_.joinable()) return;
  thread_.join();
  if (parts_.replica) parts_.replica->watch_processes({});
  if (lockstep_) lockstep_.with->watch(lockstep_.replica, {});
}

Status Worker::submit(Admission admission) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) return Error{ErrorCode::kUnavailable, failure_};
    if (stopping_) return Error{ErrorCode::kUnavailable, "The engine is shutting down: send the request elsewhere."};
    VOLLEY_RETURN_IF_ERROR(check_place(queued_, admission.request.tenant));
    queued_.take(admission.request.tenant);
    admission.sink = open_.add(admission.id, std::move(admission.sink));
    commands_.emplace_back(std::move(admission));
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

void Worker::set_verify(const VerifyPolicy& policy) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(policy);
  }
  wake_.notify_all();
}

void Worker::set_target_step(double seconds) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(sched::TargetStep{seconds});
  }
  wake_.notify_all();
}

EngineStats Worker::stats() const {
  std::unique_lock lock(mutex_);
  EngineStats stats = published_;
  const VerifyNews news = published_news_;
  lock.unlock();
  stats.verify.last = in_words(news);
  return stats;
}

FairSpace Worker::queued() const {
  const std::lock_guard lock(mutex_);
  return queued_;
}

void Worker::loop() {
  while (run_until_fault()) {
  }
  end_all();
  if (!device_failure() && parts_.replica) parts_.replica->end_processes();
}

bool Worker::run_until_fault() {
  try {
    // Set on this thread: it may report a loss at once, and a caller that makes workers may hold a lock.
    parts_.replica->watch_processes([this](const std::string& why) { lost_process(why); });
    parts_.replica->attach_thread();
    run();
    return false;
  } catch (const DeviceFault& fault) {
    return recover(fault.what());
  }
}

void Worker::run() {
  while (take_commands()) {
    check_processes();
    handle_pending();
    see();
    if (!scheduler_.idle() || !flights_.empty()) {
      step();
    } else if (lockstep_.behind()) {
      take_part();
    }
    publish_stats();
  }
  follow_to_the_end();
}

void Worker::handle_pending() {
  const bool news = !pending_.empty();
  while (!pending_.empty()) {
    Command command = std::move(pending_.front());
    pending_.pop_front();
    handle(std::move(command));
  }
  end_late();
  if (news) count_queued();
}

bool Worker::attend() {
  bool ending = false;
  {
    const std::lock_guard lock(mutex_);
    move_commands();
    ending = stopping_;
  }
  if (!ending) handle_pending();
  return !ending;
}

void Worker::take_part() {
  const Watchdog::Step watched(watchdog_);
  parts_.replica->execute(decode::TakePart{});
  if (!lockstep_.behind()) parts_.replica->execute(decode::Settle{});  // no replica has begun more passes
}

// A replica that ends first still has experts that others' passes need.
void Worker::follow_to_the_end() {
  if (!lockstep_) return;
  lockstep_.with->leave(lockstep_.replica);
  // No client waits for the steps under way, but a pass without rows comes behind them.
  for (; !flights_.empty(); flights_.pop_front()) {
    const Watchdog::Step watched(watchdog_);
    if (flights_.front().enqueued) parts_.replica->wait(results_);
  }
  while (lockstep_.with->wait(lockstep_.replica)) take_part();
}

// Commands that a fault left in pending_ come first.
bool Worker::take_commands() {
  std::unique_lock lock(mutex_);
  if (pending_.empty() && scheduler_.idle() && flights_.empty() && pictures_.idle()) {
    wake_.wait(lock, [&] { return stopping_ || !commands_.empty() || !lost_.empty() || lockstep_.behind(); });
  } else if (const auto time = plan_deadline_.next()) {
    wake_.wait_until(lock, *time, [&] { return stopping_ || !commands_.empty(); });
  }
  move_commands();
  return !stopping_;
}

// REQUIRES: mutex_ is held.
void Worker::move_commands() {
  std::ranges::move(commands_, std::back_inserter(pending_));
  commands_.clear();
}

void Worker::handle(Command command) {
  if (auto* admission = std::get_if<Admission>(&command)) return handle(std::move(*admission));
  if (auto* cancel = std::get_if<Cancel>(&command)) return end(cancel->id, FinishReason::kCancelled, std::nullopt);
  if (const auto* policy = std::get_if<VerifyPolicy>(&command)) return verify_.set(*policy);
  if (const auto* target = std::get_if<sched::TargetStep>(&command)) return set(*target);
  scheduler_.drop_prefix_cache();
}

void Worker::handle(Admission admission) {
  GenerateRequest& request = admission.request;
  decode::SlotStart start;
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
  PromptRows prompt_rows(std::move(request.prompt_spans), start.sampling.prompt_length, parts_.prompt_vectors);
  start.rope_offset = prompt_rows.rope_offset();
  std::vector<TokenId> context = text_context(request);
  RequestOutput output(admission.id, std::move(admission.sink), parts_.tokenizer,
                       {.stop = std::move(request.stop),
                        .min_tokens = request.min_tokens,
                        .skip_special_tokens = request.skip_special_tokens,
                        .parts = std::move(request.parts),
                        .repetition = request.repetition,
                        .context = std::move(context)},
                       static_cast<int32_t>(request.prompt.size()), admission.submitted);
  std::shared_ptr<GrammarMasks> grammar;
  std::optional<TokenRules> rules;
  if (TokenRules::has_any(request)) rules.emplace(request, vocab_);
  if (admission.matcher || rules) {
    grammar = std::make_shared<GrammarMasks>(std::move(admission.matcher), std::move(rules),
                                             GrammarMasks::Limits{start.limits.end_ids, request.min_tokens, vocab_});
  }
  std::optional<Clock::time_point> deadline;
  if (request.timeout_s > 0) {
    const std::chrono::duration<double> timeout(request.timeout_s);
    deadline = admission.submitted + std::chrono::duration_cast<Clock::duration>(timeout);
    deadlines_.emplace(*deadline, admission.id);
  }
  const auto [it, inserted] =
      requests_.emplace(admission.id, Request{.start = std::move(start),
                                              .prompt_rows = std::move(prompt_rows),
                                              .output = std::move(output),
                                              .grammar = std::move(grammar),
                                              .prompt_logprobs = request.prompt_logprobs,
                                              .simulate = std::move(request.simulate_acceptance),
                                              .deadline = deadline});
  VOLLEY_CHECK(inserted);
  sched::RequestTraits traits{.speculation = request.speculation,
                              .reuses_prefix = request.prompt_logprobs < 0,
                              .shares_prompt = request.shares_prompt,
                              .tenant = std::move(request.tenant),
                              .group = request.group,
                              .priority = request.priority,
                              .prompt_keys = std::move(request.prompt_keys)};
  for (const PromptPicture& picture : request.pictures) {
    const int32_t side = parts_.pictures_side;
    traits.unbroken.emplace_back(picture.begin, picture.begin + picture.width / side * (picture.height / side));
  }
  Unseen unseen = {std::move(admission.pictures),
                   {},
                   std::move(request.cache_namespace),
                   std::move(request.prompt),
                   request.max_tokens,
                   std::move(traits)};
  for (size_t i = 0; i < unseen.hashes.size(); ++i) {
    const PictureVectors vectors = pictures_.find(unseen.hashes[i], request.pictures[i], admission.id);
    unseen.seen.push_back(vectors != nullptr);
    if (vectors != nullptr) it->second.prompt_rows.set_vectors(i, vectors);
  }
  if (std::ranges::count(unseen.seen, false) > 0) {
    unseen_.emplace(admission.id, std::move(unseen));
  } else {
    schedule(admission.id, std::move(unseen));
  }
}

void Worker::schedule(RequestId id, Unseen request) {
  const Status added =
      scheduler_.add(id, request.space, std::move(request.prompt), request.max_tokens, std::move(request.traits));
  if (!added.ok()) end(id, FinishReason::kError, added.error());
}

void Worker::see(RequestId id, const Sha256& hash, const PictureVectors& vectors) {
  const auto found = unseen_.find(id);
  if (found == unseen_.end()) return;
  Unseen& request = found->second;
  for (size_t i = 0; i < request.hashes.size(); ++i) {
    if (request.hashes[i] != hash) continue;
    request.seen[i] = true;
    requests_.at(id).prompt_rows.set_vectors(i, vectors);
  }
  if (std::ranges::count(request.seen, false) > 0) return;
  Unseen ready = std::move(request);
  unseen_.erase(found);
  schedule(id, std::move(ready));
}

// A piece takes what the target leaves beside decoding, and of that a half, for prompts. The host never waits for a
// picture while the device has steps to do: the vectors are there when a step that was enqueued behind them has ended.
void Worker::see() {
  if (pictures_.idle() || (seeing_s_ > 0 && !flights_.empty())) return;
  if (!pictures_.begun()) {
    std::set<const void*> ahead;
    for (const auto& [id, request] : requests_) {
      if (!request.slot && !unseen_.contains(id)) ahead.insert(request.prompt_rows.last_vectors());
    }
    ahead.erase(nullptr);
    if (ahead.size() >= kMostSeenAhead) return;
  }
  const Watchdog::Step watched(watchdog_);
  const double left = target_.seconds - (scheduler_.idle() ? 0 : verify_.plain_s());
  const double seconds = target_.seconds > 0 ? std::max(left, target_.seconds / 5) / 2 : 0;
  if (const auto piece = pictures_.next(seconds)) {
    watchdog_.allow(std::chrono::duration<double>(piece->macs / kLeastMacs));
    const PromptPicture& picture = *piece->picture;
    const std::span<const uint8_t> pixels = piece->begin == 0 ? std::span(*picture.rgb) : std::span<const uint8_t>();
    parts_.replica->execute(decode::See{picture.width, picture.height, pixels, piece->begin, piece->end});
    pictures_.enqueued(*piece);
    seeing_s_ = piece->seconds;
    vectors_behind_ = planned_steps_ + 1;
    if (!flights_.empty() || pictures_.next(0)) return;
  }
  if (!flights_.empty() && planned_steps_ - std::ssize(flights_) < vectors_behind_) return;
  decode::Seen seen = parts_.replica->execute(decode::TakeSeen{});
  if (flights_.empty()) seeing_s_ = 0;  // the device has nothing to do
  const Pictures::Made made = pictures_.made(std::move(seen.vectors), seen.seconds);
  for (const RequestId id : made.waiting) see(id, made.hash, made.vectors);
}

void Worker::end(RequestId id, FinishReason reason, std::optional<Error> error) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;  // the request has ended already
  if (unseen_.erase(id) > 0) {
    pictures_.forget(id);
  } else {
    scheduler_.remove(id);
  }
  switch (reason) {
    case FinishReason::kCancelled:
      ++totals_.requests_cancelled;
      break;
    case FinishReason::kError:
      ++totals_.requests_failed;
      break;
    default:
      ++totals_.requests_finished;
  }
  it->second.output.finish(reason, std::move(error), Clock::now());
  erase({&id, 1});
}

// A request that waits, or whose prompt is being computed, ends without a token.
void Worker::end_late() {
  const Clock::time_point now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    end(deadlines_.begin()->second, FinishReason::kTimeout, std::nullopt);
  }
}

// The device comes last: the requests are gone even if it fails.
void Worker::erase(std::span<const RequestId> ids) {
  std::vector<int32_t> slots;
  for (const RequestId id : ids) {
    if (const auto slot = forget(requests_.find(id))) slots.push_back(*slot);
  }
  for (const int32_t slot : slots) parts_.replica->execute(decode::ClearSlot{slot});
}

std::optional<int32_t> Worker::forget(Requests::iterator request) {
  if (request->second.deadline) deadlines_.erase({*request->second.deadline, request->first});
  verify_.forget(request->first);
  const std::optional<int32_t> slot = take_slot(request->second);
  if (request->second.grammar && parts_.replica) {
    parts_.replica->discard(std::move(request->second.grammar));
  }
  requests_.erase(request);
  return slot;
}

std::optional<int32_t> Worker::take_slot(Request& request) {
  return std::exchange(request.slot, std::nullopt);
}

void Worker::release_slot(Request& request) {
  if (const auto slot = take_slot(request)) parts_.replica->execute(decode::ClearSlot{*slot});
}

void Worker::publish_stats() {
  if (parts_.on_published) parts_.on_published(scheduler_.take_cache_events());
  const sched::SchedulerStats now = scheduler_.stats();
  EngineStats stats = totals_;
  stats.verify = verify_.stats();
  stats.experts_touched = experts_before_;
  if (parts_.replica) stats.experts_touched += parts_.replica->experts_touched();
  stats.requests_waiting = now.waiting + std::ssize(unseen_);
  stats.requests_running = now.running;
  stats.pictures = pictures_.made_so_far();
  stats.picture_hits = pictures_.hits();
  stats.vision_s = pictures_.seconds();
  stats.preemptions = now.preemptions;
  stats.pages_total = now.pages[0].total;
  stats.pages_used = now.pages[0].used;
  stats.pages_cached = now.pages[0].cached;
  for (size_t i = 0; i < now.pages.size(); ++i) {
    const kv::Group& group = parts_.scheduler.groups[i];
    const kv::Cache::Use& use = now.pages[i];
    if (group.life == kv::Life::kState) {
      stats.snapshots = {use.total, use.used, use.used * group.bytes, now.prompt_snapshot_hits, now.end_snapshot_hits};
      continue;
    }
    stats.page_groups.push_back({group.window, use.total, use.used, use.cached, group.pages * group.bytes});
  }
  if (parts_.replica) stats.state_bytes = parts_.replica->ready().state_bytes;
  std::unique_lock lock(mutex_);
  published_ = std::move(stats);
  published_news_ = verify_.news();
  lock.unlock();
  count_queued();
}

// Counted before a step, which may take long: meanwhile new requests are refused if too many wait, and readers of the
// stats see which have begun.
void Worker::count_queued() {
  const sched::SchedulerStats now = scheduler_.stats();
  FairSpace queued(queue_limits(parts_.max_queue));
  scheduler_.for_each_tenant([&](const std::string& tenant, size_t waiting) { queued.take(tenant, waiting); });
  for (const auto& [id, request] : unseen_) queued.take(request.traits.tenant);
  const std::lock_guard lock(mutex_);
  published_.requests_waiting = now.waiting + std::ssize(unseen_);
  published_.requests_running = now.running;
  for (const auto* commands : {&pending_, &commands_}) {
    for (const Command& command : *commands) {
      if (const auto* admission = std::get_if<Admission>(&command)) queued.take(admission->request.tenant);
    }
  }
  queued_ = std::move(queued);
}

}  // namespace volley::engine
