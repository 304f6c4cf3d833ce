// The scheduler's promises to waiting requests, over random loads: no request ends later than in equal parts, none
// starves, and short prompts and small tenants finish early.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "sched/fair_shares.h"
#include "sched/scheduler.h"
#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

struct Job {
  int64_t step = 0;  // step of its arrival
  int32_t prompt = 0;
  int32_t max_tokens = 1;
  std::string tenant = {};
  uint64_t group = 0;
};

// A scheduler and its clock: steps.
class Load {
 public:
  explicit Load(const SchedulerConfig& config) : scheduler_(config) {}

  // No two prompts begin alike.
  void add(RequestId id, const Job& job) {
    RequestTraits traits;
    traits.tenant = job.tenant;
    traits.group = job.group;
    const auto first = static_cast<TokenId>(1'000'000 + 10'000 * id);
    ASSERT_TRUE(scheduler_.add(id, "", counting(first, job.prompt), job.max_tokens, traits).ok());
    left_[id] = job.max_tokens;
  }

  const StepPlan& step() {
    plan_ = scheduler_.plan({});
    std::vector<StepResult> results = results_of(plan_);
    for (StepResult& result : results) {
      result.finished = --left_.at(result.id) == 0;
      if (const PlannedSegment* segment = segment_of(plan_, result.id); !segment->decodes) first_[result.id] = steps_;
    }
    scheduler_.apply(results);
    ++steps_;
    return plan_;
  }

  int64_t steps() const { return steps_; }
  bool idle() const { return scheduler_.idle(); }
  Scheduler& scheduler() { return scheduler_; }
  bool has_first(RequestId id) const { return first_.contains(id); }
  int64_t first(RequestId id) const { return first_.at(id); }  // the step that chose its first token

 private:
  Scheduler scheduler_;
  StepPlan plan_;
  std::map<RequestId, int32_t> left_;
  std::map<RequestId, int64_t> first_;
  int64_t steps_ = 0;
};

SchedulerConfig long_prompts(int32_t rows, int32_t chunk) {
  return {.max_num_seqs = 64,
          .max_num_batched_tokens = rows,
          .prefill_chunk = chunk,
          .max_model_len = 5000,
          .page_size = 16,
          .groups = {{.pages = 40'000}},
          .prefix_cache = false};
}

// Every group with prompts gets an equal part of each row: a slow reference that describes itself.
class EqualParts {
 public:
  void add(RequestId id, uint64_t group, double work) { groups_[group].emplace_back(id, work); }
  std::vector<RequestId> serve(double work) {
    std::vector<RequestId> ended;
    while (work > 1e-9 && !groups_.empty()) {
      double part = work / static_cast<double>(groups_.size());
      for (const auto& [group, queue] : groups_) part = std::min(part, queue.front().second);
      work -= part * static_cast<double>(groups_.size());
      for (auto group = groups_.begin(); group != groups_.end();) {
        auto& queue = group->second;
        queue.front().second -= part;
        if (queue.front().second < 1e-6) {
          ended.push_back(queue.front().first);
          queue.erase(queue.begin());
        }
        group = queue.empty() ? groups_.erase(group) : std::next(group);
      }
    }
    return ended;
  }

 private:
  std::map<uint64_t, std::vector<std::pair<RequestId, double>>> groups_;
};

std::vector<Job> any_jobs(std::mt19937& random, int count) {
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  std::vector<Job> jobs;
  int64_t step = 0;
  while (std::ssize(jobs) < count) {
    step += below(3);
    const int32_t prompt = 1 + below(below(3) == 0 ? 4000 : 100);
    const int members = below(8) == 0 ? 2 + below(12) : 1;
    const auto group = static_cast<uint64_t>(members > 1 ? jobs.size() + 1 : 0);
    for (int i = 0; i < members; ++i) jobs.push_back({.step = step, .prompt = prompt, .group = group});
  }
  return jobs;
}

// The bound in fair_shares.h.
TEST(Fairness, NoPromptEndsMuchLaterThanInEqualParts) {
  int64_t earlier = 0, all = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int32_t chunk = 64 << (seed % 3);
    const SchedulerConfig config = long_prompts(seed % 2 == 0 ? chunk : 4 * chunk, chunk);
    const std::vector<Job> jobs = any_jobs(random, 150);
    Load load(config);
    EqualParts parts;
    std::map<RequestId, int64_t> in_parts;
    int64_t longest = 0;
    for (RequestId added = 0; added < jobs.size() || !load.idle();) {
      for (; added < jobs.size() && jobs[added].step <= load.steps(); ++added) {
        const Job& job = jobs[added];
        load.add(added, job);
        const int64_t work = job.prompt + FairShares::kSlotRows;
        parts.add(added, job.group != 0 ? job.group : 100'000 + added, static_cast<double>(work));
        longest = std::max(longest, work);
      }
      const int64_t now = load.steps();
      const StepPlan& plan = load.step();
      const auto work = plan.rows + std::ssize(plan.started) * FairShares::kSlotRows;
      for (const RequestId id : parts.serve(static_cast<double>(work))) in_parts[id] = now;
      ASSERT_LT(now, 20'000);
    }
    for (RequestId id = 0; id < jobs.size(); ++id) {
      ASSERT_TRUE(in_parts.contains(id)) << "both serve as much";
      const int64_t slack = longest / chunk + jobs[id].prompt / chunk + 2;
      ASSERT_LE(load.first(id), in_parts[id] + slack) << "seed " << seed << ", request " << id;
      earlier += load.first(id) < in_parts[id] ? 1 : 0;
      ++all;
    }
  }
  EXPECT_GT(earlier, all / 3) << "and many end earlier";
}

// Ten clients that always have a long prompt, and one short prompt now and then.
TEST(Fairness, AShortPromptBesideLongOnesTakesAFewSteps) {
  const SchedulerConfig config = long_prompts(256, 256);
  Load load(config);
  RequestId next = 1000;
  std::set<RequestId> open;
  int64_t long_done = 0, worst = 0;
  for (RequestId short_id = 0; short_id < 40; ++short_id) {
    load.add(short_id, {.prompt = 20});
    const int64_t begin = load.steps();
    for (int i = 0; i < 20; ++i) {
      for (; open.size() < 10; ++next) {
        load.add(next, {.prompt = 1900});
        open.insert(next);
      }
      load.step();
      long_done += static_cast<int64_t>(std::erase_if(open, [&](RequestId id) { return load.has_first(id); }));
    }
    worst = std::max(worst, load.first(short_id) - begin);
  }
  EXPECT_LE(worst, 8) << "one long prompt's steps; ten prompts in the order of arrival take 75";
  EXPECT_GE(long_done, 40 * 20 * 256 / 1900 - 11) << "and no row is lost over it";
}

// One request of 200 prompts does not delay others, and others do not delay it.
TEST(Fairness, ManyPromptsOfOneRequestAndASingleOneShare) {
  Load load(long_prompts(256, 256));
  for (RequestId id = 0; id < 200; ++id) load.add(id, {.prompt = 1500, .group = 1});
  for (int i = 0; i < 10; ++i) load.step();
  for (RequestId id = 1000; id < 1040; ++id) {  // one after the other, as a client that always asks again
    load.add(id, {.prompt = 1500});
    const int64_t begin = load.steps();
    while (!load.has_first(id)) load.step();
    ASSERT_LE(load.steps() - begin, 2 * 1516 / 256 + 2 * 6 + 2);
  }
  int64_t of_group = 0;
  for (RequestId id = 0; id < 200; ++id) of_group += load.has_first(id) ? 1 : 0;
  EXPECT_GE(of_group, 30) << "about as many as the other had";
}

// A slot that becomes free does not go to the next prompt of the same request.
TEST(Fairness, SlotsGoToWhoComesNextToo) {
  SchedulerConfig config = long_prompts(256, 256);
  config.max_num_seqs = 4;
  Load load(config);
  for (RequestId id = 0; id < 100; ++id)
    load.add(id, {.prompt = 10, .max_tokens = 5 + static_cast<int32_t>(id), .group = 1});
  for (int i = 0; i < 4; ++i) load.step();
  ASSERT_EQ(load.scheduler().stats().running, 4);
  load.add(1000, {.prompt = 10});
  for (int i = 0; i < 3 && !load.has_first(1000); ++i) load.step();
  EXPECT_TRUE(load.has_first(1000));
}

// A tenant that asks for little is served as if it were alone, whatever the other one has queued.
TEST(Fairness, ASmallTenantHardlyNoticesALargeOne) {
  const SchedulerConfig config = long_prompts(1024, 256);
  Load load(config);
  RequestId next = 100'000;
  int64_t worst = 0;
  for (RequestId id = 0; id < 30; ++id) {
    for (; load.scheduler().stats().waiting < 100; ++next) load.add(next, {.prompt = 1000, .tenant = "large"});
    for (int i = 0; i < 12; ++i) load.step();
    load.add(id, {.prompt = 1000, .tenant = "small"});
    const int64_t begin = load.steps();
    while (!load.has_first(id)) {
      const StepPlan& plan = load.step();
      ASSERT_LE(plan.rows, 256) << "a step that both want to be in is short";
    }
    worst = std::max(worst, load.steps() - begin);
  }
  EXPECT_EQ(worst, 4) << "its four chunks, one a step";
}

// A tenant with many short prompts cannot delay one with long prompts, nor the other way round.
TEST(Fairness, TenantsThatAlwaysAskGetEqualParts) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
    const SchedulerConfig config = long_prompts(512, 128 << (seed % 3));
    Load load(config);
    const int tenants = 2 + static_cast<int>(seed % 3);
    std::map<std::string, int64_t> spent;
    std::map<RequestId, std::string> owners;
    std::vector<int> open(static_cast<size_t>(tenants));
    RequestId next = 0;
    int64_t total = 0;
    for (int step = 0; step < 1500; ++step) {
      for (int t = 0; t < tenants; ++t) {
        int& count = open[static_cast<size_t>(t)];
        for (; count < (t == 0 ? 30 : 1 + t); ++count, ++next) {
          const std::string name(1, static_cast<char>('a' + t));
          load.add(next, {.prompt = t == 0 ? 1 + below(50) : 1 + below(4000), .max_tokens = 2, .tenant = name});
          owners[next] = name;
        }
      }
      const StepPlan& plan = load.step();
      for (const PlannedSegment& started : plan.started) spent[owners.at(started.id)] += FairShares::kSlotRows;
      for (const PlannedSegment& segment : plan.segments) {
        spent[owners.at(segment.id)] += segment.known;
        if (segment.chooses && !segment.decodes) --open[static_cast<size_t>(owners.at(segment.id)[0] - 'a')];
      }
    }
    for (const auto& [name, rows] : spent) total += rows;
    for (const auto& [name, rows] : spent) {
      EXPECT_GE(rows, total / tenants - 8 * config.prefill_chunk - 2 * 512) << name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace volley::sched
