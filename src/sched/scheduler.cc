#include "sched/scheduler.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "sched/state.h"

namespace volley::sched {

Scheduler::State::State(const SchedulerConfig& options)
    : config(options),
      cache({.page_size = options.page_size,
             .groups = options.groups,
             .prefix_cache = options.prefix_cache,
             .events = options.cache_events}),
      slots(options.max_num_seqs),
      shares(int64_t{kCreditChunks} * options.prefill_chunk) {
  VOLLEY_CHECK_GE(config.max_num_batched_tokens, config.max_num_seqs);  // a row for each decoding request
  VOLLEY_CHECK_GT(config.prefill_chunk, 0);
  VOLLEY_CHECK_GT(config.max_model_len, 0);
  for (const kv::Group& group : config.groups) VOLLEY_CHECK(group.pages > 0 || group.life == kv::Life::kState);
  VOLLEY_CHECK(!cache.has_snapshots() ||
               (config.snapshot_tokens > 0 && config.snapshot_tokens % config.page_size == 0));
  VOLLEY_CHECK_GT(config.block_size, 0);
  VOLLEY_CHECK_GT(config.reserve_rounds, 0);
}

Request* Scheduler::State::find(RequestId id) {
  const auto request = requests.find(id);
  return request != requests.end() ? &request->second : nullptr;
}

Request& Scheduler::State::known(RequestId id) {
  Request* request = find(id);
  VOLLEY_CHECK_MSG(request != nullptr, "request " + std::to_string(id));
  return *request;
}

Scheduler::Scheduler(const SchedulerConfig& config) : state_(std::make_unique<State>(config)) {}

Scheduler::~Scheduler() = default;

Status Scheduler::add(RequestId id, const std::string& space, std::vector<TokenId> prompt, int32_t max_tokens,
                      const RequestTraits& traits) {
  State& s = *state_;
  VOLLEY_CHECK_MSG(s.find(id) == nullptr, "request " + std::to_string(id));
  if (prompt.empty()) return invalid_argument("The prompt is empty: give at least one token.");
  if (max_tokens < 1)
    return invalid_argument("max_tokens is " + std::to_string(max_tokens) + ": ask for at least one.");
  VOLLEY_RETURN_IF_ERROR(s.check_fits(static_cast<int64_t>(prompt.size()), max_tokens));
  Request::Options options{
      .id = id, .space = space, .prompt = std::move(prompt), .max_tokens = max_tokens, .traits = traits};
  const Request& request = s.requests.try_emplace(id, std::move(options)).first->second;
  s.shares.add(id, traits, request.length() - s.cached_pages(request).cached());
  return {};
}

bool Scheduler::remove(RequestId id, Prefix prefix) {
  State& s = *state_;
  Request* request = s.find(id);
  if (request == nullptr) return false;
  s.forget(id);
  if (request->running()) s.vacate(*request, request->under_way(), prefix);
  s.shares.remove(id);
  s.requests.erase(id);
  return true;
}

StepPlan Scheduler::plan(const VerifyLimit& limit, const PromptBudget& prompts) {
  return state_->plan(limit, prompts);
}

DecodingOutlook Scheduler::decoding(const PromptBudget& prompts) const {
  return state_->decoding(prompts);
}

void Scheduler::apply(std::span<const StepResult> results) {
  state_->apply(results);
}

void Scheduler::restart() {
  state_->restart();
}

std::span<const TokenId> Scheduler::tokens(RequestId id) const {
  return state_->known(id).tokens();
}

int32_t Scheduler::prompt_length(RequestId id) const {
  return state_->known(id).prompt_length();
}

int32_t Scheduler::under_way() const {
  return static_cast<int32_t>(state_->flights.size());
}

void Scheduler::drop_prefix_cache() {
  state_->cache.drop_prefixes();
}

std::vector<CacheEvent> Scheduler::take_cache_events() {
  return state_->cache.take_events();
}

const kv::Cache& Scheduler::cache() const {
  return state_->cache;
}

void Scheduler::for_each_tenant(const std::function<void(const std::string&, size_t)>& tell) const {
  state_->shares.for_each_tenant(tell);
}

SchedulerStats Scheduler::stats() const {
  const State& s = *state_;
  SchedulerStats stats;
  stats.waiting = s.shares.waiting();
  stats.running = std::ssize(s.running);
  stats.preemptions = s.preemptions;
  for (size_t group = 0; group < s.cache.groups(); ++group) stats.pages.push_back(s.cache.use(group));
  stats.prompt_snapshot_hits = s.cache.hits(kv::SnapshotKind::kPrompt);
  stats.end_snapshot_hits = s.cache.hits(kv::SnapshotKind::kEnd);
  return stats;
}

bool Scheduler::idle() const {
  return state_->requests.empty();
}

}  // namespace volley::sched
