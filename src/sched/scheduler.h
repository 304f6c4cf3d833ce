// Which requests run, which rows a step computes, and who owns which page: arithmetic only, no device, no clock.
// plan() decides a step, apply() takes its results in. Threads: one.
//
// A request is waiting, running (it has a slot and pages) or gone; state is a variant that owns its resources. Prompts
// are prefilled in chunks that share a step with decoding. Slots and the rows of a step are given out by fair shares of
// tenants and of their groups of requests: fair_shares.h has the rule, and a bound on each request's wait.
//
// When pages run out a request is preempted: of the tenant that holds most of them, of its latest priority, of the
// group with most requests that run, the youngest; never the oldest of all. "Old" goes by when requests started for the
// first time. The request loses its pages (full ones stay in the prefix tree), keeps its tokens, waits before its
// tenant's other requests, and is computed again. Its text does not change; under a constant VerifyLimit its division
// into verify steps does not either. When all slots are taken, a tenant whose turn it is gets one in the same way from
// the tenant with most running requests, if the other has two more.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "kv/cache.h"
#include "sched/prompt_budget.h"
#include "sched/request_traits.h"

namespace volley::sched {

struct SchedulerConfig {
  int32_t max_num_seqs = 0;            // slots
  int32_t max_num_batched_tokens = 0;  // rows of a step; >= max_num_seqs
  int32_t prefill_chunk = 0;           // most prompt rows of one request a step
  int32_t max_model_len = 0;           // tokens of a request, prompt and output
  int32_t page_size = 0;
  int32_t block_size = 1;      // 1: no drafting. A block writes K and V at up to block_size positions past the context
  int32_t reserve_rounds = 1;  // rounds of block_size positions reserved ahead; steps that may be planned before the
                               // results of the first are in (a device that runs ahead: 2)
  std::vector<kv::Group> groups = {};  // groups of pages
  bool prefix_cache = true;
  bool cache_events = false;    // take_cache_events() will be called
  int32_t snapshot_tokens = 0;  // of recurrent states, while prompts are computed: at multiples of this, which is one
                                // of page_size. Looked at where the last group is of snapshots
};

// How many drafted tokens the decoding requests of a step may verify.
struct VerifyLimit {
  static constexpr int32_t kNoBound = std::numeric_limits<int32_t>::max();
  int32_t draft = 0;             // tokens to draft for each request at most; < block_size
  int32_t rows = kNoBound;       // rows of all decoding requests together, their last tokens included
  int32_t most_shared_rows = 0;  // up to so many rows the device can divide among the drafted tokens
};

// The requests that decode in the next step, as far as known before it is planned: a request may still be preempted, or
// come back from the queue.
struct DecodingOutlook {
  struct Entry {
    RequestId id = 0;
    int32_t most_draft = 0;  // drafted tokens that the request can use
  };
  std::vector<Entry> requests;  // by slot
  int64_t positions = 0;        // positions that the decoding requests attend to, in all
  int32_t prompt_rows = 0;      // prompt rows of the same step, as many as drafts leave
  int32_t prompts_ending = 0;   // prompts that would be finished: about as many requests join
  double prompts_s = 0;         // the cost of those rows, by the budget
  bool prompts_wait = false;    // the budget leaves rows of prompts to later steps
};

// Consecutive rows of one request in a step: known tokens whose K and V are not there yet, then drafted ones.
struct PlannedSegment {
  RequestId id = 0;
  SlotId slot;
  int32_t start = 0;     // sequence index of the first row; of a request with a step under way that decodes: at least
  int32_t known = 0;     // rows of known tokens: a prefill chunk, or the one last token of a decoding request
  int32_t draft = 0;     // tokens to draft after it, > 0 only for decoding requests. StepPlan::shared: at most so many
                         // are verified, else all
  bool chooses = false;  // a token is chosen after the last known row (the last chunk of a new prompt; decoding)
  bool decodes = false;  // a verify step: counts in tokens_per_step (the prompt's last chunk does not)
  int32_t draft_context = 0;  // of a request that has just started: groups that are not required (the drafter's
                              // windows) have no K and V before this position
};

struct PageEdit {
  SlotId slot;
  int32_t group = 0;
  int32_t index = 0;  // page_table of the group [slot][index] = page
  PageId page;
};

using kv::MemoryCopy;

// A plan that preempts starts no request, except the one that gets another tenant's slot.
struct StepPlan {
  std::vector<RequestId> preempted;     // lost their slots (before the rest of the plan)
  std::vector<PlannedSegment> started;  // just got a slot: id and slot; start = cached tokens (from the prefix tree)
  std::vector<PageEdit> page_edits;     // new entries, entries that moved to a page with the same K and V, and those
                                        // of pages that are gone, which become the scrap page
  std::vector<MemoryCopy> copies;  // copies to make in this order, after the steps before this one and before this one
  std::vector<PlannedSegment> segments;  // decoding requests first, by slot; then prefill chunks, in turn
  int32_t rows = 0;                      // rows of the step
  int32_t decode_rows = 0;               // rows of decoding requests among them
  bool shared = false;  // decode_rows are too few for all drafted tokens: the device chooses which tokens get them
  bool waits = false;  // the plan is empty because a request must be preempted first, which has to wait for the results
                       // under way
  bool empty() const { return segments.empty(); }
};

// The tokens that a segment with `chooses` committed. Other segments need no result.
struct StepResult {
  RequestId id = 0;
  std::vector<TokenId> tokens;  // 1 … draft + 1 tokens
  bool finished = false;        // the request ends here
  bool device_knows = false;    // the device knows of the end, too: no step under way has the request
};

// Decides about the computed pages of a request that is taken out.
enum class Prefix {
  kKept,     // other requests may continue from them
  kDropped,  // their content is wrong
};

struct SchedulerStats {
  int64_t waiting = 0, running = 0, preemptions = 0;
  std::vector<kv::Cache::Use> pages;  // by group, snapshots too
  int64_t prompt_snapshot_hits = 0, end_snapshot_hits = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();  // CHECKs that every page is accounted for

  // Queues a request. kResourceExhausted: it can never fit (prompt and max_tokens against max_model_len; the most pages
  // that it owns at a time against all pages of a group, since the oldest request must always be able to finish). Its
  // place in the queue depends on how much of it the prefix tree has now. kInvalidArgument: an empty prompt, or
  // max_tokens below 1. An id that is known already is a CHECK failure.
  Status add(RequestId id, const std::string& space, std::vector<TokenId> prompt, int32_t max_tokens,
             const RequestTraits& traits = {});

  // Takes a request out in any state and returns its pages (full ones stay in the prefix tree, unless their content is
  // wrong; those that were put there before stay in any case). False: the id is not known. After a failed step this may
  // also be called between plan() and apply(): that plan's segment then needs no result.
  bool remove(RequestId id, Prefix prefix = Prefix::kKept);

  // The next step; empty when nothing can run. Every segment's pages are reserved. Fewer tokens than `limit` says are
  // drafted where a request's remaining ones or max_model_len say so. Every decoding request gets a row, whatever the
  // limit. Where the limit and max_num_batched_tokens leave too few rows for all drafted tokens, the device divides the
  // rows among the tokens if it can (StepPlan::shared); else drafts are cut evenly, so that all of their tokens are
  // verified. While prompts wait to be computed, drafts leave them up to half of the rows. With results outstanding,
  // the plan assumes the state that requests will then have: some may turn out to have ended, and the plan may be empty
  // though requests run. While any request decodes, prompts get the rows that `prompts` pays for, and at least
  // kLeastRows. REQUIRES: 0 <= limit.draft < block_size; fewer than reserve_rounds plans without results.
  StepPlan plan(const VerifyLimit& limit, const PromptBudget& prompts = {});
  // The input of plan() for choosing its limit.
  DecodingOutlook decoding(const PromptBudget& prompts = {}) const;

  // The results of the oldest plan that has none yet, in any order: one for each segment with `chooses` whose request
  // still exists.
  void apply(std::span<const StepResult> results);

  // The device and all K and V were lost: plans under way get no results, every running request waits again with its
  // tokens, as after a preemption, and no prefix is cached.
  void restart();

  // All tokens of a waiting or running request so far, prompt then output.
  std::span<const TokenId> tokens(RequestId id) const;
  int32_t prompt_length(RequestId id) const;

  int32_t under_way() const;  // plans without results

  void drop_prefix_cache();
  // Events of the prefix cache since the last call (volley/cache_events.h); empty unless SchedulerConfig asks for them.
  std::vector<CacheEvent> take_cache_events();
  const kv::Cache& cache() const;
  SchedulerStats stats() const;
  // Every tenant that has requests, or had some lately, and how many of its requests wait.
  void for_each_tenant(const std::function<void(const std::string& tenant, size_t waiting)>& tell) const;
  bool idle() const;  // no request waits or runs

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::sched
