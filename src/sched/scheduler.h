// Which requests run, which rows a step computes, and who owns which page: arithmetic only, no device, no clock.
// plan() decides a step, apply() takes its results in. Threads: one.
//
// A request is waiting, running (it has a slot and pages) or gone; state is a variant that owns its resources.
// Prompts are prefilled in chunks that share a step with decoding. Who comes first, to a slot and to the rows of a
// step, goes by fair shares of tenants and of their groups of requests: fair_shares.h says how, and how long anybody
// waits.
//
// When pages run out somebody is preempted: of the tenant that holds most of them, of its latest priority, of the group
// with most requests that run, the youngest; never the oldest of all. "Old" goes by when requests started for the first
// time. Its pages go (full ones to the prefix tree), it waits before its tenant's other requests with its tokens, and
// is computed again; its text does not change, and under a VerifyLimit that stays the same neither does how its tokens
// fall into verify steps. Where all slots are taken, a tenant whose turn it is gets one in the same way from the tenant
// with most requests that run, if that has two more than it.
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
  std::vector<kv::Group> groups = {};  // of pages
  bool prefix_cache = true;
  bool cache_events = false;    // take_cache_events() is called
  int32_t snapshot_tokens = 0;  // of recurrent states, while prompts are computed: at multiples of this, which is one
                                // of page_size. Looked at where the last group is of snapshots
};

// How many drafted tokens the decoding requests of a step may verify.
struct VerifyLimit {
  static constexpr int32_t kNoBound = std::numeric_limits<int32_t>::max();
  int32_t draft = 0;             // tokens to draft for each request at most; < block_size
  int32_t rows = kNoBound;       // of all decoding requests together, their last tokens included
  int32_t most_shared_rows = 0;  // up to that many rows the device can share out among the drafted tokens
};

// Who decodes in the next step, as far as it can be known before it is planned: a request may still be preempted, or
// come back from the queue.
struct DecodingOutlook {
  struct Entry {
    RequestId id = 0;
    int32_t most_draft = 0;  // drafted tokens that it can use
  };
  std::vector<Entry> requests;  // by slot
  int64_t positions = 0;        // that they attend to, in all
  int32_t prompt_rows = 0;      // of prompts in the same step, as many as drafts leave them
  int32_t prompts_ending = 0;   // of those, that would be computed to their end: about as many requests join
  double prompts_s = 0;         // what those rows cost, by the budget
  bool prompts_wait = false;    // it leaves rows of prompts to later steps
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

// A copy within the device's memory.
struct MemoryCopy {
  enum class Kind { kSave, kRestore, kPage };
  Kind kind = Kind::kPage;
  SlotId slot;        // kSave: its state becomes the snapshot `to`; kRestore: the snapshot `from` becomes its state
  int32_t group = 0;  // kPage: page `from` of the group becomes `to`
  PageId from, to;
};

// A plan that preempts starts nobody, but for the one request that gets another tenant's slot.
struct StepPlan {
  std::vector<RequestId> preempted;      // lost their slots (before anything below happens)
  std::vector<PlannedSegment> started;   // just got a slot: id and slot; start = cached tokens (from the prefix tree)
  std::vector<PageEdit> page_edits;      // new entries, entries that moved to a page with the same K and V, and those
                                         // of pages that are gone, which become the scrap page
  std::vector<MemoryCopy> copies;        // to be made in this order, after the steps before this one and before it
  std::vector<PlannedSegment> segments;  // decoding requests first, by slot; then prefill chunks, in turn
  int32_t rows = 0;                      // of the step
  int32_t decode_rows = 0;               // of these, the decoding requests'
  bool shared = false;  // decode_rows do not suffice for all that is drafted: the device says which tokens get them
  bool waits = false;   // the plan is empty because somebody must be preempted first: not before the results under way
  bool empty() const { return segments.empty(); }
};

// What a segment with `chooses` committed. Segments without it need no result.
struct StepResult {
  RequestId id = 0;
  std::vector<TokenId> tokens;  // 1 … draft + 1 of them
  bool finished = false;        // the request ends here
  bool device_knows = false;    // so does the device: it does not go on in a step that is under way
};

// What becomes of what a request computed that is taken out.
enum class Prefix {
  kKept,     // others may go on from it
  kDropped,  // it is wrong
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
  // place in the queue goes by what the prefix tree has of it now. kInvalidArgument: an empty prompt, or max_tokens
  // below 1. An id that is known already is a CHECK failure.
  Status add(RequestId id, const std::string& space, std::vector<TokenId> prompt, int32_t max_tokens,
             const RequestTraits& traits = {});

  // Takes a request out, wherever it is, and returns its pages (full ones stay in the prefix tree, unless what they
  // hold is of no use; those that went there before it ended do). False: not known. After a step that failed it may be
  // called between plan() and apply() too: that plan's segment then needs no result.
  bool remove(RequestId id, Prefix prefix = Prefix::kKept);

  // The next step; empty when nothing can run. Every segment's pages are reserved. Fewer tokens than `limit` says are
  // drafted where a request's remaining ones or max_model_len say so. Every decoding request gets a row, whatever the
  // limit. Where the rows that the limit and max_num_batched_tokens leave do not suffice for all drafted tokens, the
  // device shares them out if it can (StepPlan::shared); else drafts are cut evenly, until all are verified. While
  // prompts wait to be computed drafts leave them up to half of the rows. While results are not in, requests are
  // planned for as they will then be: it may come out that some had ended, and the plan may be empty though requests
  // run. While somebody decodes prompts get the rows that `prompts` pays for, and kLeastRows in any case.
  // REQUIRES: 0 <= limit.draft < block_size; fewer than reserve_rounds plans without results.
  StepPlan plan(const VerifyLimit& limit, const PromptBudget& prompts = {});
  // What plan() has to do with, for choosing its limit.
  DecodingOutlook decoding(const PromptBudget& prompts = {}) const;

  // The results of the oldest plan without, in any order: all segments with `chooses` of requests that are still there,
  // none twice.
  void apply(std::span<const StepResult> results);

  // The device was lost, and all K and V with it: plans under way get no results, every running request waits again
  // with its tokens, as after a preemption, and no prefix is cached.
  void restart();

  // All tokens of a waiting or running request so far, prompt then output.
  std::span<const TokenId> tokens(RequestId id) const;
  int32_t prompt_length(RequestId id) const;

  int32_t under_way() const;  // plans without results

  void drop_prefix_cache();
  // News of the prefix cache since the last call (volley/cache_events.h); empty unless SchedulerConfig asks for it.
  std::vector<CacheEvent> take_cache_events();
  const kv::Cache& cache() const;
  SchedulerStats stats() const;
  // Every tenant that has requests, or had some lately, and how many of them wait.
  void for_each_tenant(const std::function<void(const std::string& tenant, size_t waiting)>& tell) const;
  bool idle() const;  // nothing waiting or running

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace volley::sched
