// Runs the scheduler against a device of numbers. Its "model" says the next token as a pure function of all tokens
// before, its K and V of a position are a hash of the tokens up to there, and each row checks that it finds them,
// through the page table that the plan's edits built. Any mistake of the scheduler with pages shows as a wrong hash or
// token.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "base/sanitized.h"
#include "kv/cache_index.h"
#include "kv/page_hash.h"
#include "sched/reservation.h"
#include "sched/scheduler.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

constexpr TokenId kStop = 0;
constexpr uint64_t kGarbage = 0xdead;
constexpr uint64_t kChoices = 1000;  // groups from this number on are the choices of one prompt

uint64_t mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9e3779b97f4a7c15u;
  return state ^ (state >> 29);
}

uint64_t hash(std::span<const TokenId> tokens) {
  uint64_t state = 1;
  for (const TokenId token : tokens) state = mix(state, static_cast<uint64_t>(token) + 7);
  return state;
}

// [i] is the hash of the first i + 1 tokens: the content of position i.
std::vector<uint64_t> contents(std::span<const TokenId> tokens) {
  std::vector<uint64_t> states;
  uint64_t state = 1;
  for (const TokenId token : tokens) states.push_back(state = mix(state, static_cast<uint64_t>(token) + 7));
  return states;
}

TokenId next_token(std::span<const TokenId> history) {
  return static_cast<TokenId>(hash(history) % 50);
}

// How many of `draft` drafted tokens are accepted after `history`.
int32_t acceptance(std::span<const TokenId> history, int32_t draft) {
  return static_cast<int32_t>(mix(hash(history), 99) % static_cast<uint64_t>(draft + 1));
}

struct SimulatedJob {
  std::string space;
  Tokens prompt;
  int32_t max_tokens = 0;
  RequestTraits traits = {};
};

Tokens whole_sequence(const SimulatedJob& job) {
  Tokens tokens = job.prompt;
  do {
    tokens.push_back(next_token(tokens));
  } while (tokens.back() != kStop && std::ssize(tokens) < std::ssize(job.prompt) + job.max_tokens);
  return tokens;
}

// The device's side of a plan: page tables, memory, and the rows' reads and writes.
class FakeDevice {
 public:
  explicit FakeDevice(const SchedulerConfig& config)
      : config_(config), tables_(config.groups.size(), std::vector<Table>(static_cast<size_t>(config.max_num_seqs))) {
    for (const kv::Group& group : config.groups) {
      memory_.emplace_back(static_cast<size_t>((group.pages + 1) * config.page_size), kGarbage);
    }
    states_.resize(static_cast<size_t>(config.max_num_seqs));
    draft_contexts_.resize(static_cast<size_t>(config.max_num_seqs));
    if (has_states()) snapshots_.resize(static_cast<size_t>(config.groups.back().pages));
  }

  void copy(const StepPlan& plan) {
    for (const MemoryCopy& copy : plan.copies) {
      const auto page = [&](PageId id) {
        const auto size = config_.page_size;
        return std::span(memory_[static_cast<size_t>(copy.group)]).subspan(static_cast<size_t>(id.value * size), size);
      };
      switch (copy.kind) {
        case MemoryCopy::Kind::kSave:
          snapshots_.at(static_cast<size_t>(copy.to.value)) = states_.at(static_cast<size_t>(copy.slot.value));
          break;
        case MemoryCopy::Kind::kRestore:
          states_.at(static_cast<size_t>(copy.slot.value)) = snapshots_.at(static_cast<size_t>(copy.from.value));
          break;
        case MemoryCopy::Kind::kPage:
          std::ranges::copy(page(copy.from), page(copy.to).begin());
      }
    }
  }

  // The rule of ops/gated_delta: the stored state is the one after a segment's first rows, and the last rows are on the
  // tape. The rows replayed from the tape must be the sequence's.
  void take_state(const PlannedSegment& segment, std::span<const TokenId> before, std::span<const TokenId> after) {
    if (!has_states()) return;
    State& state = states_[static_cast<size_t>(segment.slot.value)];
    if (segment.start > 0) {
      const int32_t replayed = segment.start - state.position;
      ASSERT_GE(replayed, 0) << "request " << segment.id << " at " << segment.start;
      ASSERT_LT(replayed, std::ssize(state.after));
      ASSERT_EQ(state.after[static_cast<size_t>(replayed)], hash(before.first(static_cast<size_t>(segment.start))))
          << "request " << segment.id << " at " << segment.start;
    }
    const int32_t rows = segment.known + segment.draft, end = segment.start + rows;
    state.position = segment.start + std::max(1, rows - (config_.block_size - 1));
    state.after.clear();
    for (int32_t at = state.position; at <= end; ++at) {
      const std::span<const TokenId> tokens = at <= std::ssize(before) ? before : after;
      // The first drafted tokens were right.
      const bool right = at <= std::ssize(before) || at < std::ssize(after);
      state.after.push_back(right ? hash(tokens.first(static_cast<size_t>(at))) : kGarbage);
    }
  }

  void edit(const StepPlan& plan) {
    for (const PlannedSegment& started : plan.started) {
      for (size_t group = 0; group < groups(); ++group) table(group, started.slot).clear();
      draft_contexts_.at(static_cast<size_t>(started.slot.value)) = started.draft_context;
    }
    for (const PageEdit& edit : plan.page_edits) {
      Table& pages = table(static_cast<size_t>(edit.group), edit.slot);
      ASSERT_LE(edit.index, std::ssize(pages)) << "a hole in the page table";
      ASSERT_LT(edit.index, page_table_width(config_));
      if (edit.index == std::ssize(pages)) pages.emplace_back();
      pages[static_cast<size_t>(edit.index)] = edit.page;
    }
  }

  // The positions that the segment's first row sees; a page that no row sees any more belongs to no request.
  void check_reads(const PlannedSegment& segment, std::span<const TokenId> tokens) {
    const auto expected = contents(tokens);
    for (size_t group = 0; group < groups(); ++group) {
      const int32_t window = config_.groups[group].window;
      int32_t begin = window > 0 ? std::max(0, segment.start - window + 1) : 0;
      if (!config_.groups[group].required) {
        begin = std::max(begin, draft_contexts_[static_cast<size_t>(segment.slot.value)]);
      }
      for (int32_t at = begin; at < segment.start; ++at) {
        ASSERT_EQ(cell(group, segment.slot, at), expected[static_cast<size_t>(at)])
            << "request " << segment.id << ", group " << group << ", position " << at << " of " << segment.start;
      }
      most_owned_ = std::max(most_owned_, window > 0 ? owned(group, segment.slot) : 0);
    }
  }
  int64_t most_owned() const { return most_owned_; }  // pages of a window, of one request

  // The drafter overwrites all reserved positions (on a device that runs ahead only its block, because the others are
  // for the next step). Then the verified rows are written, and only the accepted ones are right.
  void write(const PlannedSegment& segment, std::span<const TokenId> before, std::span<const TokenId> after,
             const std::set<int32_t>& slots_in_use, bool runs_ahead) {
    const int32_t known_end = segment.start + segment.known;
    const int32_t ahead = runs_ahead ? 0 : config_.block_size * config_.reserve_rounds + 1;
    const int32_t scribbled = segment.decodes   ? segment.start + std::max(ahead, config_.block_size)
                              : segment.chooses ? known_end + ahead
                                                : known_end;
    const auto expected = contents(after.size() > before.size() ? after.first(after.size() - 1) : before);
    for (size_t group = 0; group < groups(); ++group) {
      ASSERT_LE(scribbled, std::ssize(table(group, segment.slot)) * config_.page_size) << "pages are missing";
      for (int32_t at = segment.start; at < scribbled; ++at) {
        const PageId page = page_at(group, segment.slot, at);
        ASSERT_NE(page, kv::scrap_page(config_.groups[group])) << "a page went too early";
        for (const int32_t other : slots_in_use) {
          if (other == segment.slot.value) continue;
          ASSERT_EQ(std::ranges::count(table(group, SlotId(other)), page), 0) << "page " << page << " has two writers";
        }
        const bool valid = at < known_end || (segment.decodes && at < std::ssize(expected));
        cell(group, segment.slot, at) = valid ? expected[static_cast<size_t>(at)] : kGarbage;
      }
    }
  }

 private:
  using Table = std::vector<PageId>;

  struct State {
    int32_t position = 0;
    std::vector<uint64_t> after;  // [i]: the state that replaying i rows of the tape gives
  };

  bool has_states() const { return config_.groups.back().life == kv::Life::kState; }
  size_t groups() const { return config_.groups.size() - (has_states() ? 1 : 0); }  // number of pages
  Table& table(size_t group, SlotId slot) { return tables_[group][static_cast<size_t>(slot.value)]; }
  PageId page_at(size_t group, SlotId slot, int32_t at) {
    return table(group, slot)[static_cast<size_t>(at / config_.page_size)];
  }
  uint64_t& cell(size_t group, SlotId slot, int32_t at) {
    const PageId page = page_at(group, slot, at);
    return memory_[group][static_cast<size_t>(page.value * config_.page_size + at % config_.page_size)];
  }
  int64_t owned(size_t group, SlotId slot) {
    const Table& pages = table(group, slot);
    return std::ssize(pages) - std::ranges::count(pages, kv::scrap_page(config_.groups[group]));
  }

  SchedulerConfig config_;
  std::vector<std::vector<uint64_t>> memory_;  // by group, including the scrap page
  std::vector<std::vector<Table>> tables_;     // by group and slot
  std::vector<State> states_, snapshots_;      // by slot, and by snapshot
  std::vector<int32_t> draft_contexts_;        // by slot
  int64_t most_owned_ = 0;
};

// One request's history of verify steps: where each began, and how many tokens it committed.
using Partition = std::vector<std::pair<int32_t, int32_t>>;

class Simulation {
 public:
  Simulation(const SchedulerConfig& config, uint32_t seed)
      : config_(config), random_(seed), device_(config), scheduler_(std::make_unique<Scheduler>(config)) {}

  bool runs_ahead = false;    // a step is planned and computed before the results of the one before it are applied
  bool vary_limit = false;    // else always whole blocks, all of them verified
  int cancel_one_in = 0;      // steps; 0: never
  int fail_one_in = 0;        // steps in which one request fails on the device
  int drop_cache_one_in = 0;  // steps
  int restart_one_in = 0;     // steps in which the device loses everything
  bool check_events = false;  // REQUIRES: SchedulerConfig::cache_events

  void run(std::vector<SimulatedJob> jobs) {
    jobs_ = std::move(jobs);
    partitions_.resize(jobs_.size());
    size_t added = 0;
    for (; added < jobs_.size() || !scheduler_->idle() || !flights_.empty(); ++steps_) {
      ASSERT_LT(steps_, 20000) << "no progress";
      for (int n = below(3); n > 0 && added < jobs_.size(); --n, ++added) {
        const SimulatedJob& job = jobs_[added];
        ASSERT_TRUE(scheduler_->add(added, job.space, job.prompt, job.max_tokens, job.traits).ok());
        alive_.insert(added);
      }
      if (chance(cancel_one_in)) drop_any();
      if (chance(drop_cache_one_in)) scheduler_->drop_prefix_cache();
      if (chance(restart_one_in)) restart();
      ASSERT_NO_FATAL_FAILURE(this->step());
      if (check_events) ASSERT_NO_FATAL_FAILURE(replay_events());
    }
    preemptions_ = scheduler_->stats().preemptions;
    snapshot_hits_ = {scheduler_->stats().prompt_snapshot_hits, scheduler_->stats().end_snapshot_hits};
    for (const kv::Cache::Use& use : scheduler_->stats().pages) EXPECT_EQ(use.used, use.cached);
    scheduler_->drop_prefix_cache();
    for (const kv::Cache::Use& use : scheduler_->stats().pages) EXPECT_EQ(use.used, 0);
    if (check_events) {
      ASSERT_NO_FATAL_FAILURE(replay_events());
      EXPECT_EQ(index_.size(), 0u);
    }
    scheduler_.reset();  // counts its pages once more
  }

  int64_t steps() const { return steps_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t finished() const { return finished_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  // hits of prompts' snapshots, and of ends'
  std::pair<int64_t, int64_t> snapshot_hits() const { return snapshot_hits_; }
  int64_t shared_steps() const { return shared_steps_; }
  int64_t without_context() const { return without_context_; }  // starts where windows of a drafter were gone
  // starts of choices whose prompt another one had computed
  int64_t shared_starts() const { return shared_starts_; }
  int64_t most_owned() const { return device_.most_owned(); }
  size_t most_indexed() const { return most_indexed_; }  // pages of the index of events
  int64_t events_of(CacheEvent::Kind kind) const { return events_[static_cast<size_t>(kind)]; }
  const Partition& partition(size_t job) const { return partitions_[job]; }

 private:
  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }
  bool chance(int one_in) { return one_in > 0 && below(one_in) == 0; }

  // Cancels any request, wherever it is. Returns its id, or none.
  std::optional<RequestId> drop_any() {
    if (alive_.empty()) return std::nullopt;
    const RequestId id = *std::next(alive_.begin(), below(static_cast<int>(alive_.size())));
    EXPECT_TRUE(scheduler_->remove(id));
    forget(id);
    return id;
  }

  // Including requests that were computed but whose results are not applied yet.
  void restart() {
    for (const auto& results : flights_) {
      for (const StepResult& result : results) finished_ -= result.finished && alive_.contains(result.id) ? 1 : 0;
    }
    flights_.clear();
    slots_.clear();
    device_ = FakeDevice(config_);
    scheduler_->restart();
    for (const kv::Cache::Use& use : scheduler_->stats().pages) EXPECT_EQ(use.used, 0);
    EXPECT_EQ(scheduler_->stats().running, 0);
    EXPECT_EQ(scheduler_->stats().waiting, std::ssize(alive_));
  }

  // The index of all events so far holds the pages that are cached, and nothing else.
  void replay_events() {
    const std::vector<CacheEvent> events = scheduler_->take_cache_events();
    for (const CacheEvent& event : events) ++events_[static_cast<size_t>(event.kind)];
    index_.apply(events);
    std::set<uint64_t> cached;
    for (const auto& [space, tokens] : scheduler_->cache().prefixes()) {
      const std::vector<uint64_t> pages = kv::page_hashes(space, tokens, config_.page_size);
      ASSERT_EQ(std::ssize(tokens), std::ssize(pages) * config_.page_size);
      ASSERT_EQ(index_.leading(pages), pages.size());
      cached.insert(pages.begin(), pages.end());
    }
    ASSERT_EQ(index_.size(), cached.size());
    most_indexed_ = std::max(most_indexed_, index_.size());
  }

  void forget(RequestId id) {
    alive_.erase(id);
    std::erase_if(slots_, [id](const auto& entry) { return entry.second == id; });
  }

  void step() {
    const VerifyLimit limit = any_limit();
    StepPlan plan = scheduler_->plan(limit);
    ASSERT_NO_FATAL_FAILURE(check_plan(plan, limit));
    shared_steps_ += plan.shared ? 1 : 0;
    device_.copy(plan);
    ASSERT_NO_FATAL_FAILURE(device_.edit(plan));
    const bool planned = !plan.empty();
    if (chance(fail_one_in)) {
      const auto failed = drop_any();
      std::erase_if(plan.segments, [&](const PlannedSegment& segment) { return segment.id == failed; });
    }
    if (planned) {
      ASSERT_NO_FATAL_FAILURE(compute(plan));
    }
    if (!runs_ahead || flights_.size() == 2 || !planned) land();
  }

  VerifyLimit any_limit() {
    if (!vary_limit) return {.draft = config_.block_size - 1};
    VerifyLimit limit{.draft = below(config_.block_size)};
    if (below(3) > 0) limit.rows = below(config_.max_num_batched_tokens + 1);
    if (below(3) > 0) limit.most_shared_rows = below(config_.max_num_batched_tokens + 1);
    return limit;
  }

  // In a shared plan the device gives the rows to drafted tokens of its choice.
  void share_out(const StepPlan& plan, std::vector<PlannedSegment>& segments) {
    if (!plan.shared) return;
    std::vector<std::pair<size_t, int32_t>> drafted;  // one entry a token that may be verified
    int32_t rows = plan.decode_rows;
    for (size_t i = 0; i < segments.size(); ++i) {
      if (!segments[i].decodes) continue;
      --rows;
      for (int32_t token = 0; token < segments[i].draft; ++token) drafted.emplace_back(i, token);
      segments[i].draft = 0;
    }
    std::shuffle(drafted.begin(), drafted.end(), random_);
    drafted.resize(std::min(drafted.size(), static_cast<size_t>(rows)));
    for (const auto& [segment, token] : drafted) ++segments[segment].draft;
  }

  // The device executes a plan. It knows the sequences up to the last step that it computed.
  void compute(const StepPlan& plan) {
    for (const PlannedSegment& started : plan.started) {
      if (!alive_.contains(started.id)) continue;  // it has just failed
      const auto tokens = scheduler_->tokens(started.id);
      sequences_[started.id] = Tokens(tokens.begin(), tokens.end());
    }
    std::vector<PlannedSegment> segments;
    for (PlannedSegment segment : plan.segments) {
      const Tokens& tokens = sequences_.at(segment.id);
      if (segment.decodes) {
        ASSERT_LE(segment.start, std::ssize(tokens) - 1);
        segment.start = static_cast<int32_t>(tokens.size()) - 1;
      }
      ASSERT_NO_FATAL_FAILURE(device_.check_reads(segment, tokens));
      segments.push_back(segment);
    }
    share_out(plan, segments);
    std::set<int32_t> slots_in_use;
    for (const auto& [slot, id] : slots_) slots_in_use.insert(slot);
    std::vector<StepResult> results;
    for (const PlannedSegment& segment : segments) {
      Tokens& tokens = sequences_.at(segment.id);
      const Tokens before = tokens;
      if (!ended(segment.id, before)) {
        tokens = choose(segment, before);
        ASSERT_NO_FATAL_FAILURE(device_.take_state(segment, before, tokens));
      }
      ASSERT_NO_FATAL_FAILURE(device_.write(segment, before, tokens, slots_in_use, runs_ahead));
      if (segment.chooses && tokens.size() > before.size()) results.push_back(result(segment, before, tokens));
    }
    flights_.push_back(std::move(results));
  }

  // The host gets the results of the oldest step.
  void land() {
    std::vector<StepResult> results;
    if (!flights_.empty()) {
      results = std::move(flights_.front());
      flights_.pop_front();
    }
    std::erase_if(results, [&](const StepResult& result) { return !alive_.contains(result.id); });
    std::shuffle(results.begin(), results.end(), random_);
    scheduler_->apply(results);
    for (const StepResult& result : results) {
      if (result.finished) forget(result.id);
    }
  }

  // The device ends a sequence by itself, before the host knows.
  bool ended(RequestId id, const Tokens& tokens) const {
    const SimulatedJob& job = jobs_[id];
    const bool output = tokens.size() > job.prompt.size();
    return output && (tokens.back() == kStop || std::ssize(tokens) == std::ssize(job.prompt) + job.max_tokens);
  }

  // The tokens of the request after this segment.
  Tokens choose(const PlannedSegment& segment, Tokens tokens) const {
    if (!segment.chooses) return tokens;
    const int32_t committed = acceptance(tokens, segment.draft) + 1;
    for (int32_t i = 0; i < committed; ++i) {
      tokens.push_back(next_token(tokens));
      if (ended(segment.id, tokens)) break;
    }
    return tokens;
  }

  StepResult result(const PlannedSegment& segment, const Tokens& before, const Tokens& after) {
    const SimulatedJob& job = jobs_[segment.id];
    const bool finished = ended(segment.id, after);
    if (segment.decodes) {
      partitions_[segment.id].emplace_back(segment.start, static_cast<int32_t>(after.size() - before.size()));
    }
    if (finished && alive_.contains(segment.id)) {
      EXPECT_EQ(after, whole_sequence(job)) << "request " << segment.id;
      ++finished_;
    }
    return {.id = segment.id,
            .tokens = Tokens(after.begin() + static_cast<ptrdiff_t>(before.size()), after.end()),
            .finished = finished,
            .device_knows = finished};
  }

  // Whether a slot went from one tenant to another that then has no more slots than the first.
  bool gives_a_slot(const StepPlan& plan) {
    if (plan.preempted.size() != 1 || plan.started.size() != 1) return false;
    const auto tenant = [&](RequestId id) { return jobs_[id].traits.tenant; };
    const std::string from = tenant(plan.preempted[0]), to = tenant(plan.started[0].id);
    const auto running = [&](const std::string& name) {
      return std::ranges::count_if(slots_, [&](const auto& entry) { return tenant(entry.second) == name; });
    };
    return from != to && std::ssize(slots_) == config_.max_num_seqs - 1 && running(to) + 1 <= running(from);
  }

  void check_plan(const StepPlan& plan, const VerifyLimit& limit) {
    ASSERT_TRUE(plan.preempted.empty() || flights_.empty()) << "a step under way may still write there";
    size_t oldest = ages_.size();
    for (const auto& [slot, id] : slots_) oldest = std::min(oldest, ages_.at(id));
    for (const RequestId id : plan.preempted) {
      ASSERT_GT(ages_.at(id), oldest) << "who started first must always be able to end";
      ASSERT_EQ(std::erase_if(slots_, [id](const auto& entry) { return entry.second == id; }), 1u);
    }
    ASSERT_TRUE(plan.preempted.empty() || plan.started.empty() || gives_a_slot(plan))
        << "preempted for a newcomer, or thrashing";
    for (const PlannedSegment& started : plan.started) {
      ASSERT_TRUE(slots_.emplace(started.slot.value, started.id).second) << "slot " << started.slot << " is taken";
      cached_tokens_ += started.start;
      without_context_ += started.draft_context > 0 ? 1 : 0;
      ASSERT_LE(started.draft_context, started.start);
      ages_.try_emplace(started.id, ages_.size());
      prefilled_[started.id] = started.start;
    }
    ASSERT_NO_FATAL_FAILURE(check_prompts_are_computed_once(plan));
    for (const PlannedSegment& segment : plan.segments) prefilled_[segment.id] = segment.start + segment.known;
    if (flights_.empty()) {
      ASSERT_EQ(plan.empty(), scheduler_->idle()) << "something can always run";
    }
    ASSERT_LE(plan.rows, config_.max_num_batched_tokens);
    ASSERT_LE(std::ssize(slots_), config_.max_num_seqs);
    ASSERT_NO_FATAL_FAILURE(check_segments(plan, limit));
  }

  // No request starts to compute a prompt that another choice of it is computing.
  void check_prompts_are_computed_once(const StepPlan& plan) {
    if (!config_.prefix_cache || no_snapshots()) return;
    for (const PlannedSegment& started : plan.started) {
      const SimulatedJob& job = jobs_[started.id];
      const auto shared = static_cast<int32_t>(std::ssize(job.prompt) - 1) / config_.page_size * config_.page_size;
      const auto fresh = [&](RequestId id) { return scheduler_->tokens(id).size() == job.prompt.size(); };
      if (job.traits.group < kChoices || shared == 0 || !fresh(started.id)) continue;
      if (started.start >= shared) {
        ++shared_starts_;
        continue;
      }
      for (const auto& [slot, id] : slots_) {
        if (id == started.id || jobs_[id].traits.group != job.traits.group || !fresh(id)) continue;
        ASSERT_GE(prefilled_.at(id), shared) << id << " computes the prompt that " << started.id << " starts with";
      }
    }
  }
  bool no_snapshots() const {
    return config_.groups.back().life == kv::Life::kState && config_.groups.back().pages == 0;
  }

  void check_segments(const StepPlan& plan, const VerifyLimit& limit) {
    int32_t chunk_rows = 0, decoding = 0, drafted = 0;
    bool chunks = false;
    SlotId last_slot(-1);
    std::set<RequestId> planned;
    for (const PlannedSegment& segment : plan.segments) {
      ASSERT_TRUE(planned.insert(segment.id).second);
      ASSERT_EQ(slots_.at(segment.slot.value), segment.id);
      const int32_t length = static_cast<int32_t>(scheduler_->tokens(segment.id).size());
      if (segment.decodes) {
        ++decoding;
        drafted += segment.draft;
        ASSERT_LE(segment.draft, limit.draft);
        ASSERT_FALSE(chunks);
        ASSERT_LT(last_slot, segment.slot);
        last_slot = segment.slot;
        ASSERT_TRUE(segment.chooses);
        if (flights_.empty()) {
          ASSERT_EQ(segment.start + segment.known, length);
        }
        ASSERT_LE(length + segment.draft + 1, std::ssize(jobs_[segment.id].prompt) + jobs_[segment.id].max_tokens);
      } else {
        chunks = true;
        chunk_rows += segment.known;
        ASSERT_GT(segment.known, 0);
        ASSERT_LE(segment.known, config_.prefill_chunk);
        ASSERT_EQ(segment.draft, 0);
        ASSERT_EQ(segment.chooses, segment.start + segment.known == length);
      }
    }
    ASSERT_EQ(plan.decode_rows + chunk_rows, plan.rows);
    ASSERT_LE(plan.decode_rows, std::max(limit.rows, decoding));
    if (plan.shared) {
      ASSERT_GT(plan.decode_rows, decoding) << "drafted for nothing";
      ASSERT_LT(plan.decode_rows, decoding + drafted);
      ASSERT_LE(plan.decode_rows, limit.most_shared_rows);
    } else {
      ASSERT_EQ(plan.decode_rows, decoding + drafted);
    }
  }

  SchedulerConfig config_;
  std::mt19937 random_;
  FakeDevice device_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<SimulatedJob> jobs_;
  std::vector<Partition> partitions_;
  std::set<RequestId> alive_;
  std::map<RequestId, size_t> ages_;  // in which order they started for the first time
  std::map<int32_t, RequestId> slots_;
  std::map<RequestId, int32_t> prefilled_;       // running requests, with lengths as planned
  std::map<RequestId, Tokens> sequences_;        // as the device knows them
  std::deque<std::vector<StepResult>> flights_;  // computed, and not yet applied
  kv::CacheIndex index_;
  std::array<int64_t, 3> events_ = {};
  size_t most_indexed_ = 0;
  std::pair<int64_t, int64_t> snapshot_hits_;
  int64_t steps_ = 0, preemptions_ = 0, finished_ = 0, cached_tokens_ = 0, shared_steps_ = 0, shared_starts_ = 0;
  int64_t without_context_ = 0;
};

// Prompts that share beginnings, like chats with one system prompt and several turns.
std::vector<SimulatedJob> any_jobs(uint32_t seed, int count) {
  std::mt19937 random(seed);
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  std::vector<SimulatedJob> jobs;
  for (int i = 0; i < count; ++i) {
    SimulatedJob job{.space = below(5) == 0 ? "salt" : "", .prompt = {}, .max_tokens = 1 + below(25)};
    if (!jobs.empty() && below(3) == 0) {
      const SimulatedJob& earlier = jobs[static_cast<size_t>(below(static_cast<int>(jobs.size())))];
      job.prompt = earlier.prompt.size() < 40 ? whole_sequence(earlier) : earlier.prompt;  // the next turn
    } else {
      job.prompt = counting(1, below(12));
    }
    for (int n = 1 + below(8); n > 0; --n) job.prompt.push_back(1 + below(3));
    if (below(2) == 0) job.traits.tenant = std::string(1, static_cast<char>('a' + below(3)));
    if (below(3) == 0) job.traits.group = 1 + static_cast<uint64_t>(i / 20);
    if (below(4) == 0) job.traits.shares_prompt = true;
    if (below(5) == 0) job.traits.priority = below(5) - 2;
    jobs.push_back(std::move(job));
    if (below(6) > 0) continue;
    // Several choices of one prompt.
    jobs.back().traits.shares_prompt = true;
    jobs.back().traits.group = kChoices + static_cast<uint64_t>(i);
    for (int n = 1 + below(4); n > 0 && i + 1 < count; --n, ++i) jobs.push_back(SimulatedJob(jobs.back()));
  }
  return jobs;
}

// The least memory that add() permits for the largest job, and `more` pages of each group.
void set_smallest_pools(SchedulerConfig& config, const std::vector<SimulatedJob>& jobs, int64_t more) {
  int64_t context = 0;
  for (const SimulatedJob& job : jobs)
    context = std::max(context, last_context(std::ssize(job.prompt), job.max_tokens));
  for (kv::Group& group : config.groups) {
    if (group.life == kv::Life::kState) continue;
    group.pages =
        more + kv::most_pages(group, context + positions_ahead(config), chunks_ahead(config), config.page_size);
  }
}

SchedulerConfig any_config(std::mt19937& random) {
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  SchedulerConfig config{.max_num_seqs = 1 + below(8),
                         .prefill_chunk = 1 + below(16),
                         .max_model_len = 120,
                         .page_size = 1 + below(6),
                         .block_size = 1 + below(6),
                         .reserve_rounds = 1 + below(2),
                         .groups = {{}},
                         .prefix_cache = below(3) > 0};
  config.max_num_batched_tokens = config.max_num_seqs + below(30);
  return config;
}

// Sliding windows of a few positions to a few pages. Every second window is used by a drafter alone.
void add_windows(SchedulerConfig& config, int count, uint32_t seed) {
  std::mt19937 random(seed + 1000);
  for (int i = 0; i < count; ++i) {
    config.groups.push_back({.life = kv::Life::kWindow,
                             .window = 1 + static_cast<int32_t>(random() % 20),
                             .required = (static_cast<uint32_t>(i) + seed) % 2 == 0});
  }
}

// Snapshots of states, few enough to be evicted all the time; the last group.
void add_snapshots(SchedulerConfig& config, uint32_t seed) {
  std::mt19937 random(seed + 2000);
  config.snapshot_tokens = config.page_size * (1 + static_cast<int32_t>(random() % 4));
  config.groups.push_back({.life = kv::Life::kState, .pages = static_cast<int64_t>(random() % 60)});
}

// Windows, and whether there are recurrent layers.
using Layers = std::pair<int, bool>;

// Every text equals the model's own, whatever happened to pages, rows, drafts, cancellations and failures; no page
// leaks and no request stalls.
class AnyText : public ::testing::TestWithParam<Layers> {};

TEST_P(AnyText, NeverDependsOnTheSchedule) {
  const auto [windows, states] = GetParam();
  int64_t steps = 0, preemptions = 0, finished = 0, cached = 0, shared = 0, choices = 0, without_context = 0;
  size_t most_indexed = 0;
  std::array<int64_t, 3> events = {};
  std::pair<int64_t, int64_t> hits;
  const uint32_t seeds = kSanitized ? 100 : 300;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    std::mt19937 random(seed);
    SchedulerConfig config = any_config(random);
    add_windows(config, windows, seed);
    if (states) add_snapshots(config, seed);
    const auto jobs = any_jobs(seed, 150);
    set_smallest_pools(config, jobs, static_cast<int64_t>(seed % 6) * 2);
    config.cache_events = seed % 3 > 0;
    Simulation simulation(config, seed);
    simulation.check_events = config.cache_events;
    simulation.vary_limit = true;
    simulation.cancel_one_in = 12;
    simulation.fail_one_in = 40;
    simulation.drop_cache_one_in = 60;
    simulation.restart_one_in = seed % 2 == 0 ? 50 : 0;
    simulation.runs_ahead = config.reserve_rounds == 2 && seed % 4 < 3;
    ASSERT_NO_FATAL_FAILURE(simulation.run(jobs)) << "seed " << seed;
    steps += simulation.steps();
    preemptions += simulation.preemptions();
    finished += simulation.finished();
    cached += simulation.cached_tokens();
    shared += simulation.shared_steps();
    choices += simulation.shared_starts();
    without_context += simulation.without_context();
    hits.first += simulation.snapshot_hits().first;
    hits.second += simulation.snapshot_hits().second;
    most_indexed = std::max(most_indexed, simulation.most_indexed());
    for (size_t kind = 0; kind < events.size(); ++kind) {
      events[kind] += simulation.events_of(static_cast<CacheEvent::Kind>(kind));
    }
  }
  if (!kSanitized) EXPECT_GT(steps, 170'000) << "a million with all layers";
  // There was pressure on memory: else the test would protect nothing.
  EXPECT_GT(preemptions, 1000);
  EXPECT_GT(finished, states ? 7500 : 8000);
  EXPECT_GT(cached, windows == 0 && !states ? 20000 : 10000) << "with windows so small, others' windows evict much";
  EXPECT_GT(shared, windows == 0 ? 1000 : 500);
  EXPECT_GT(events[static_cast<size_t>(CacheEvent::Kind::kStored)], 10000);
  EXPECT_GT(events[static_cast<size_t>(CacheEvent::Kind::kRemoved)], 5000);
  EXPECT_GT(events[static_cast<size_t>(CacheEvent::Kind::kCleared)], 200);
  EXPECT_GT(most_indexed, 20u);
  EXPECT_GT(choices, 200);
  EXPECT_EQ(without_context > 100, windows > 0) << without_context;
  EXPECT_EQ(hits.first > 500, states) << hits.first;
  EXPECT_EQ(hits.second > 100, states) << hits.second << ": few tails outlive the pressure on pages";
}

INSTANTIATE_TEST_SUITE_P(Of, AnyText,
                         ::testing::Values(Layers{0, false}, Layers{1, false}, Layers{2, false}, Layers{0, true},
                                           Layers{1, true}, Layers{2, true}));

// A request's tokens_per_step is the same alone and under pressure: a preempted request resumes between two verify
// steps.
TEST(Simulation, PreemptionKeepsThePartitionIntoVerifySteps) {
  int64_t preemptions = 0;
  for (uint32_t seed = 0; seed < 24; ++seed) {
    std::mt19937 random(seed);
    SchedulerConfig config = any_config(random);
    add_windows(config, static_cast<int>(seed % 3), seed);
    if (seed % 2 == 1) add_snapshots(config, seed);
    config.max_num_seqs = 6;
    config.max_num_batched_tokens = 6 * config.block_size + 20;  // too few rows never shorten a draft here
    const auto jobs = any_jobs(seed, 60);
    set_smallest_pools(config, jobs, 3);
    Simulation crowded(config, seed);
    ASSERT_NO_FATAL_FAILURE(crowded.run(jobs)) << "seed " << seed;
    preemptions += crowded.preemptions();
    EXPECT_EQ(crowded.finished(), std::ssize(jobs));

    config.prefix_cache = false;
    for (kv::Group& group : config.groups) group.pages = 1000;
    for (size_t job = 0; job < jobs.size(); ++job) {
      Simulation alone(config, seed);
      ASSERT_NO_FATAL_FAILURE(alone.run({jobs[job]}));
      EXPECT_EQ(alone.preemptions(), 0);
      EXPECT_EQ(crowded.partition(job), alone.partition(0)) << "seed " << seed << ", request " << job;
    }
  }
  EXPECT_GT(preemptions, 300);
}

// A long context takes no more of a window than the window and the steps under way, both while prompts are computed and
// while they are continued, and whatever the prefix cache does with the other pages.
TEST(Simulation, WindowsBoundWhatALongContextTakes) {
  for (const bool prefix_cache : {false, true}) {
    for (const int32_t rounds : {1, 2}) {
      SchedulerConfig config = roomy();
      config.max_model_len = 2000;
      config.reserve_rounds = rounds;
      config.prefix_cache = prefix_cache;
      config.groups = {{.pages = 2000}, {.life = kv::Life::kWindow, .window = 40}};
      std::vector<SimulatedJob> jobs;
      for (int i = 0; i < 6; ++i) jobs.push_back({.prompt = counting(1 + 2000 * i, 900), .max_tokens = 300});
      // The most pages that a request holds at any time: the window, chunks of 16 and a block of 4 for each round,
      // rounded to pages.
      const int64_t bound = (40 + 16 * rounds + 4 * rounds + 1) / 4 + 2;
      config.groups[1].pages = bound * config.max_num_seqs;
      Simulation simulation(config, 7);
      simulation.runs_ahead = rounds == 2;
      ASSERT_NO_FATAL_FAILURE(simulation.run(jobs));
      EXPECT_EQ(simulation.finished(), 6);
      EXPECT_EQ(simulation.preemptions(), 0);
      EXPECT_LE(simulation.most_owned(), bound);
      EXPECT_GE(simulation.most_owned(), 40 / 4);
    }
  }
}

}  // namespace
}  // namespace volley::sched
