// What the scheduler's parts share: plan.cc (the rows of a step), admission.cc (queue to slot), preemption.cc (pages
// under pressure), commit.cc (results). Private to this folder. Threads: one.
//
// Always: every running request arrived before every waiting one. Admission takes the head of the queue, preemption the
// youngest that runs; so the oldest request of all runs, is never preempted, and ends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/page_pool.h"
#include "kv/prefix_tree.h"
#include "sched/request.h"
#include "sched/scheduler.h"
#include "sched/slot_pool.h"

namespace volley::sched {

struct Scheduler::State {
  using ByArrival = std::map<uint64_t, Request*>;

  explicit State(const SchedulerConfig& config);

  // plan.cc
  StepPlan plan(const VerifyLimit& limit);
  DecodingOutlook decoding() const;
  std::vector<Request*> decoding_by_slot() const;
  void plan_decoding(const VerifyLimit& limit, StepPlan& plan);
  static void fit_drafts(const VerifyLimit& limit, int32_t most_rows, StepPlan& plan);
  int32_t rows_for_prompts(int32_t decoding) const;
  static int32_t draft_of(const Request& request, int32_t max_draft);
  void plan_prefill(StepPlan& plan);
  int32_t rows_left(const StepPlan& plan) const { return config.max_num_batched_tokens - plan.rows; }
  static void add_decoding(Request& request, int32_t draft, StepPlan& plan);
  void add_chunk(Request& request, StepPlan& plan) const;
  void publish_pages(StepPlan& plan);

  // admission.cc
  Status check_fits(int64_t prompt, int64_t max_tokens) const;
  void admit(const VerifyLimit& limit, StepPlan& plan);
  void resume(Request& request, const VerifyLimit& limit, StepPlan& plan);
  bool start_next(StepPlan& plan);

  // preemption.cc
  void reserve_for_decoding(StepPlan& plan);
  bool reserve(Request& request, StepPlan& plan);
  int64_t missing_pages(const Request& request) const;  // for the coming rounds; not above 0 when it has enough
  void preempt(Request& request, StepPlan& plan);
  bool reclaim(int64_t pages);
  void vacate(Request& request);
  void cache_pages(Request& request);

  // commit.cc
  void apply(std::span<const StepResult> results);
  void finish_segment(const PlannedSegment& segment, const StepResult* result);

  void forget(RequestId id);  // takes its segments out of the plans under way

  Request* find(RequestId id);
  Request& known(RequestId id);

  const SchedulerConfig config;
  kv::PagePool pool;
  kv::PrefixTree tree;
  SlotPool slots;
  std::unordered_map<RequestId, Request> requests;  // after the pools: what requests hold goes back before they end
  ByArrival queue;
  ByArrival running;
  std::deque<std::vector<PlannedSegment>> flights;  // segments of the plans whose results are not in, oldest first
  uint64_t arrivals = 0;
  int64_t preemptions = 0;
};

}  // namespace volley::sched
