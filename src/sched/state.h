// The state that the scheduler's files share: plan.cc (the rows of a step), admission.cc (queue to slot), preemption.cc
// (pages under pressure), commit.cc (results). Private to this folder. Threads: one.
//
// Why every request ends. The running request with the earliest first start is never preempted: alone it has room, so
// it ends. The request whose turn it is to start is not overtaken: while it waits for pages no other starts, the
// running ones end one after the other, and it starts at the latest when it is alone. Turns come around
// (fair_shares.h). A preempted request keeps its age, so it becomes the oldest in the end. A slot goes from one tenant
// to another only if the first then still has as many as the second, so the slot is not asked back. A request that
// waits for its prompt (shared_prompts.h) waits for a running request, and is next when that prompt is computed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/cache.h"
#include "sched/fair_shares.h"
#include "sched/request.h"
#include "sched/scheduler.h"
#include "sched/shared_prompts.h"
#include "sched/slot_pool.h"

namespace volley::sched {

struct Scheduler::State {
  // How far ahead of the others a tenant that was away may be, in longest chunks.
  static constexpr int32_t kCreditChunks = 8;

  explicit State(const SchedulerConfig& config);

  // plan.cc
  StepPlan plan(const VerifyLimit& limit, const PromptBudget& prompts);
  DecodingOutlook decoding(const PromptBudget& prompts) const;
  std::vector<Request*> decoding_by_slot() const;
  void plan_decoding(const VerifyLimit& limit, StepPlan& plan);
  static void fit_drafts(const VerifyLimit& limit, int32_t most_rows, StepPlan& plan);
  int32_t rows_for_prompts(int32_t decoding) const;
  static int32_t draft_of(const Request& request, int32_t max_draft);
  bool shares_prompts() const;
  SharedPrompts shared_prompts() const;
  void plan_prompts(const VerifyLimit& limit, const PromptBudget& prompts, StepPlan& plan);
  int32_t most_prompt_rows(int32_t decode_rows) const;
  int32_t rows_left(const StepPlan& plan) const { return config.max_num_batched_tokens - plan.rows; }
  static void add_decoding(Request& request, int32_t draft, StepPlan& plan);
  void add_chunk(Request& request, int32_t rows, StepPlan& plan);
  int32_t chunk_end(const Request& request) const;
  kv::SnapshotPlace place_of(const Request& request, int32_t position) const;  // place of a snapshot
  void publish_pages(StepPlan& plan);

  // admission.cc
  Status check_fits(int64_t prompt, int64_t max_tokens) const;
  void resume(Request& request, const VerifyLimit& limit, StepPlan& plan);
  bool start(Request& request, StepPlan& plan);
  kv::Lease cached_pages(const Request& request);  // pages of the rows that it must compute
  kv::Need need_to_start(const Request& request, int64_t cached) const;

  // preemption.cc
  void reserve_ahead(StepPlan& plan);
  bool reserve(Request& request, StepPlan& plan);
  kv::Need need_of(const Request& request) const;  // while it runs
  Request& victim();
  bool share_slots(StepPlan& plan);
  Request* next_to_start();  // null: no request waits, except for a prompt that is being computed
  Request* who_gives_a_slot(const std::string& tenant);
  void preempt(Request& request, StepPlan& plan);
  void vacate(Request& request, bool state_moved_on = false, Prefix prefix = Prefix::kKept);
  void keep_prefix(Request& request, bool state_moved_on);
  void restart();

  // commit.cc
  void apply(std::span<const StepResult> results);
  void finish_segment(const PlannedSegment& segment, const StepResult* result);

  void forget(RequestId id);  // removes its segments from the plans under way

  Request* find(RequestId id);
  Request& known(RequestId id);

  const SchedulerConfig config;
  kv::Cache cache;
  SlotPool slots;
  std::unordered_map<RequestId, Request>
      requests;       // declared after cache and slots: requests return their resources before those are destroyed
  FairShares shares;  // all requests
  std::map<uint64_t, Request*> running;             // running requests by age
  std::deque<std::vector<PlannedSegment>> flights;  // segments of the plans whose results are not in, oldest first
  // Copies for the next plan, and for the one after it: states that are saved when the step before is done.
  std::vector<MemoryCopy> copies, later_copies;
  uint64_t starts = 0;
  int64_t preemptions = 0;
};

}  // namespace volley::sched
