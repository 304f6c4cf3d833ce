#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "sched/reservation.h"
#include "sched/state.h"

namespace volley::sched {
namespace {

// Shares `rows` out over requests that want `wanted[i]` each, one at a time in turn: the first drafted tokens of a
// block are the likeliest to be accepted, so a row is worth most where the block is still short.
std::vector<int32_t> share_rows(std::span<const int32_t> wanted, int32_t rows) {
  std::vector<int32_t> given(wanted.size());
  for (bool progress = true; progress && rows > 0;) {
    progress = false;
    for (size_t i = 0; i < wanted.size() && rows > 0; ++i) {
      if (given[i] == wanted[i]) continue;
      ++given[i];
      --rows;
      progress = true;
    }
  }
  return given;
}

}  // namespace

StepPlan Scheduler::State::plan(const VerifyLimit& limit, const PromptBudget& prompts) {
  VOLLEY_CHECK_LT(std::ssize(flights), config.reserve_rounds);
  VOLLEY_CHECK_GE(limit.draft, 0);
  VOLLEY_CHECK_LT(limit.draft, config.block_size);
  StepPlan plan;
  reserve_ahead(plan);
  if (plan.waits || !share_slots(plan)) return plan;
  plan_decoding(limit, plan);
  plan_prompts(limit, prompts, plan);
  publish_pages(plan);
  if (!plan.empty()) {
    plan.copies = std::exchange(copies, std::exchange(later_copies, {}));
  }
  VOLLEY_CHECK_LE(plan.rows, config.max_num_batched_tokens);
  VOLLEY_CHECK(!plan.empty() || requests.empty() || !flights.empty());  // some request can always run
  if (plan.empty()) return plan;
  for (const PlannedSegment& segment : plan.segments) {
    known(segment.id).take_off(segment.decodes ? 0 : segment.known, segment.chooses);
    shares.spend(segment.id, segment.known);
  }
  shares.end_step();
  flights.push_back(plan.segments);
  return plan;
}

std::vector<Request*> Scheduler::State::decoding_by_slot() const {
  std::vector<Request*> decoding;
  for (const auto& [age, request] : running) {
    if (request->decodes_next() && request->remaining_next() > 0) decoding.push_back(request);
  }
  std::ranges::sort(decoding, {}, [](const Request* request) { return request->slot(); });
  return decoding;
}

DecodingOutlook Scheduler::State::decoding(const PromptBudget& prompts) const {
  DecodingOutlook outlook;
  for (const Request* request : decoding_by_slot()) {
    outlook.requests.push_back({request->id(), draft_of(*request, config.block_size - 1)});
    outlook.positions += request->length();
  }
  // Drafts leave prompts at most this many rows, so the outlook must not count more.
  const int32_t most = rows_for_prompts(static_cast<int32_t>(outlook.requests.size()));
  PromptAllowance allowance(prompts, !outlook.requests.empty());
  const auto count = [&](const Request& request) {
    const int32_t left = chunk_end(request) - request.next_row();
    const int32_t rows =
        allowance.take(request.next_row(), std::min({config.prefill_chunk, left, most - outlook.prompt_rows}));
    outlook.prompt_rows += rows;
    outlook.prompts_s += prompts.cost(request.next_row(), rows);
    outlook.prompts_ending += request.next_row() + rows == request.prefill_length() ? 1 : 0;
    return rows;
  };
  int32_t free_slots = slots.free();
  std::vector<int64_t> room = cache.room();
  SharedPrompts shared = shared_prompts();
  FairShares::Turns turns(shares);
  while (outlook.prompt_rows < most && !allowance.empty()) {
    const auto id = turns.next();
    if (!id) break;
    const Request& request = requests.at(*id);
    if (!request.running()) {
      if (free_slots > 0 && shared.will_bring(request)) continue;
      const std::vector<int64_t> needed = cache.pages_of(need_to_start(request, 0));
      if (free_slots == 0 || !std::ranges::equal(needed, room, std::less_equal())) {
        turns.pass_waiting();  // this request must wait, and none may overtake it
        continue;
      }
      std::ranges::transform(room, needed, room.begin(), std::minus());
      --free_slots;
      if (shares_prompts()) shared.add(request);
    }
    if (!request.decodes_next()) turns.spend(count(request));
  }
  outlook.prompts_wait = allowance.empty();
  return outlook;
}

// Rows that drafts leave to prompts while prompts are waiting to be computed: speculation must not delay a new request.
int32_t Scheduler::State::rows_for_prompts(int32_t decoding) const {
  const auto prefilling = [](const auto& entry) { return !entry.second->decodes_next(); };
  const bool wanted = std::ranges::any_of(running, prefilling) || (shares.waiting() > 0 && !slots.empty());
  const int32_t most = std::min(config.prefill_chunk, most_prompt_rows(decoding));
  return wanted ? std::min(most, std::max(1, (config.max_num_batched_tokens - decoding) / 2)) : 0;
}

// One row for each decoding request, then drafted ones as far as the rows go.
void Scheduler::State::plan_decoding(const VerifyLimit& limit, StepPlan& plan) {
  for (Request* request : decoding_by_slot()) add_decoding(*request, draft_of(*request, limit.draft), plan);
  const auto count = static_cast<int32_t>(plan.segments.size());
  fit_drafts(limit, config.max_num_batched_tokens - rows_for_prompts(count), plan);
}

int32_t Scheduler::State::draft_of(const Request& request, int32_t max_draft) {
  return request.speculation() ? std::min(max_draft, request.remaining_next() - 1) : 0;
}

// Segments arrive with the drafts that their requests want. REQUIRES: most_rows is enough for a row of each.
void Scheduler::State::fit_drafts(const VerifyLimit& limit, int32_t most_rows, StepPlan& plan) {
  std::vector<int32_t> wanted;
  for (const PlannedSegment& segment : plan.segments) {
    if (segment.decodes) wanted.push_back(segment.draft);
  }
  const auto count = static_cast<int32_t>(wanted.size());
  const int32_t all = std::accumulate(wanted.begin(), wanted.end(), count);
  const int32_t rows = std::min(all, std::max(count, std::min(limit.rows, most_rows)));
  plan.shared = count < rows && rows < all && rows <= limit.most_shared_rows;
  if (!plan.shared && rows < all) {
    const std::vector<int32_t> given = share_rows(wanted, rows - count);
    for (size_t i = 0; i < given.size(); ++i) plan.segments[i].draft = given[i];
  }
  plan.rows += rows - plan.decode_rows;
  plan.decode_rows = rows;
}

// How many prompt rows a step takes beside its other rows: the one place that decides. With several tenants the limit
// is one chunk, whichever tenant has prompts: another tenant's request may arrive next and has to wait for the whole
// step.
int32_t Scheduler::State::most_prompt_rows(int32_t decode_rows) const {
  const int32_t left = config.max_num_batched_tokens - decode_rows;
  return shares.several_tenants() ? std::min(config.prefill_chunk, left) : left;
}

// Whether other requests can use the pages that one request computed.
bool Scheduler::State::shares_prompts() const {
  return config.prefix_cache && (!cache.has_snapshots() || config.groups.back().pages > 0);
}

SharedPrompts Scheduler::State::shared_prompts() const {
  SharedPrompts shared(config.page_size);
  if (!shares_prompts()) return shared;
  for (const auto& [age, request] : running) shared.add(*request);
  return shared;
}

// Gives rows to prompts, and slots to requests, in the order of fair shares. Requests do not overtake: while the next
// waiting request cannot start, no other can. Only a request that waits for its own prompt lets others pass.
void Scheduler::State::plan_prompts(const VerifyLimit& limit, const PromptBudget& prompts, StepPlan& plan) {
  SharedPrompts shared = shared_prompts();
  FairShares::Turns turns(shares);
  // The pages that a preemption freed are for the running requests. If another request put the victim's prompt into the
  // tree meanwhile, the victim might fit again at once; it waits a step, so that no plan both takes a request's slot
  // and gives it one.
  if (!plan.preempted.empty()) turns.pass_waiting();
  const int32_t most = plan.rows + most_prompt_rows(plan.rows);
  PromptAllowance allowance(prompts, plan.decode_rows > 0);
  while (plan.rows < most && !allowance.empty()) {
    const auto id = turns.next();
    if (!id) return;
    Request& request = known(*id);
    const bool waits = !request.running();
    if (waits && !slots.empty() && shared.will_bring(request)) continue;
    if (waits && !start(request, plan)) {
      turns.pass_waiting();
      continue;
    }
    if (waits && shares_prompts()) shared.add(request);
    const int32_t before = plan.rows;
    if (waits && request.decoding()) {
      resume(request, limit, plan);
    } else if (!request.decodes_next()) {
      const int32_t left = chunk_end(request) - request.next_row();
      const int32_t rows = allowance.take(request.next_row(), std::min({config.prefill_chunk, most - plan.rows, left}));
      if (rows > 0) add_chunk(request, rows, plan);
    }
    turns.spend(plan.rows - before);
  }
}

// A request's last token and `draft` drafted ones; fit_drafts() counts the rows.
void Scheduler::State::add_decoding(Request& request, int32_t draft, StepPlan& plan) {
  PlannedSegment segment{.id = request.id(), .slot = request.slot(), .start = request.next_row()};
  segment.known = 1;
  segment.draft = draft;
  segment.chooses = segment.decodes = true;
  plan.segments.push_back(segment);
}

// Where the next chunk ends: at the prompt's end, or where a snapshot of the state is wanted. Snapshots are wanted at
// absolute multiples, at the end of the part that earlier prompts had in common with this one, and, if other requests
// have the same prompt, at the last page that they can use.
int32_t Scheduler::State::chunk_end(const Request& request) const {
  const int32_t end = request.prefill_length();
  if (!cache.has_snapshots()) return end;
  const int32_t row = request.next_row();
  int32_t first = (row / config.snapshot_tokens + 1) * config.snapshot_tokens;
  const auto stop = [&](int64_t at) {
    if (at > row && at < first) first = static_cast<int32_t>(at);
  };
  if (request.running()) stop(request.resources().pages.shared());
  if (request.traits().shares_prompt) stop(shared_length(request, config.page_size));
  return std::min(first, end);
}

// Wanted snapshots are those that other requests are known to share, and the last one from which the same prompt can
// continue.
kv::SnapshotPlace Scheduler::State::place_of(const Request& request, int32_t position) const {
  const bool last =
      position < request.prefill_length() && position + config.snapshot_tokens >= request.prefill_length();
  const bool shared = position == request.resources().pages.shared() ||
                      (request.traits().shares_prompt && position == shared_length(request, config.page_size));
  return last || shared ? kv::SnapshotPlace::kWanted : kv::SnapshotPlace::kRegular;
}

// The next rows of a prefill.
void Scheduler::State::add_chunk(Request& request, int32_t rows, StepPlan& plan) {
  PlannedSegment segment{.id = request.id(), .slot = request.slot(), .start = request.next_row()};
  segment.known = rows;
  segment.chooses = segment.start + segment.known == request.length();
  plan.rows += segment.known;
  const int32_t end = segment.start + segment.known;
  if (cache.has_snapshots() && end == chunk_end(request) &&
      (end < request.prefill_length() || end % config.snapshot_tokens == 0)) {
    kv::Lease& pages = request.resources().pages;
    if (const auto snapshot = cache.snapshot(pages, end, kv::SnapshotKind::kPrompt, place_of(request, end))) {
      later_copies.push_back(
          {.kind = MemoryCopy::Kind::kSave, .slot = segment.slot, .group = 0, .from = {}, .to = *snapshot});
    }
  }
  plan.segments.push_back(segment);
}

void Scheduler::State::publish_pages(StepPlan& plan) {
  for (const auto& [age, request] : running) {
    for (const kv::PageEdit& edit : request->resources().pages.take_edits()) {
      plan.page_edits.push_back({.slot = request->slot(), .group = edit.group, .index = edit.index, .page = edit.page});
    }
  }
}

}  // namespace volley::sched
