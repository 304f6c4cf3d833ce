#include "engine/run/stats_sum.h"

#include <string>
#include <utility>

namespace volley::engine {
namespace {

template <typename T>
void add(std::vector<T>& sum, const std::vector<T>& more) {
  if (sum.size() < more.size()) sum.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

template <typename T, typename... Members>
void add_members(T& sum, const T& more, Members... members) {
  ((sum.*members += more.*members), ...);
}

void add(EngineStats::Verify& sum, const EngineStats::Verify& more) {
  using V = EngineStats::Verify;
  add_members(sum, more, &V::steps, &V::probes, &V::plain, &V::rows, &V::expected_tokens, &V::predicted_tokens,
              &V::predicted_s, &V::measured_s);
  add(sum.draft_lengths, more.draft_lengths);
  add(sum.verified_at, more.verified_at);
  add(sum.survived_at, more.survived_at);
  add(sum.predicted_at, more.predicted_at);
  if (sum.drafters.size() < more.drafters.size()) sum.drafters.resize(more.drafters.size());
  for (size_t i = 0; i < more.drafters.size(); ++i) {
    using D = V::Drafter;
    add_members(sum.drafters[i], more.drafters[i], &D::steps, &D::drafted_tokens, &D::accepted_tokens);
  }
}

void add(std::vector<EngineStats::PageGroup>& sum, const std::vector<EngineStats::PageGroup>& more) {
  using G = EngineStats::PageGroup;
  if (sum.size() < more.size()) sum.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    sum[i].window = more[i].window;
    add_members(sum[i], more[i], &G::total, &G::used, &G::cached, &G::bytes);
  }
}

void add(EngineStats& sum, const EngineStats& more) {
  using S = EngineStats;
  add_members(sum, more, &S::requests_waiting, &S::requests_running, &S::requests_finished, &S::requests_cancelled,
              &S::requests_failed, &S::preemptions, &S::device_restarts, &S::devices_restarting, &S::steps,
              &S::verify_steps, &S::experts_touched, &S::prompt_tokens, &S::cached_tokens, &S::generated_tokens,
              &S::drafted_tokens, &S::accepted_tokens, &S::pictures, &S::picture_hits, &S::grammars_cached,
              &S::grammar_bytes, &S::pages_total, &S::pages_used, &S::pages_cached, &S::state_bytes);
  add_members(sum, more, &S::draft_s, &S::target_s, &S::choose_s, &S::commit_s, &S::host_s, &S::device_s, &S::idle_s,
              &S::vision_s);
  add_members(sum.snapshots, more.snapshots, &S::Snapshots::total, &S::Snapshots::held, &S::Snapshots::bytes,
              &S::Snapshots::prompt_hits, &S::Snapshots::end_hits);
  add(sum.accepted_at, more.accepted_at);
  add(sum.drafted_at, more.drafted_at);
  add(sum.page_groups, more.page_groups);
  add(sum.verify, more.verify);
}

}  // namespace

EngineStats sum(std::vector<EngineStats> replicas) {
  EngineStats sum;
  for (size_t i = 0; i < replicas.size(); ++i) {
    add(sum, replicas[i]);
    const std::string& last = replicas[i].verify.last;
    if (last.empty()) continue;
    if (!sum.verify.last.empty()) sum.verify.last += "; ";
    sum.verify.last += "replica " + std::to_string(i) + ": " + last;
  }
  sum.replicas = std::move(replicas);
  return sum;
}

}  // namespace volley::engine
