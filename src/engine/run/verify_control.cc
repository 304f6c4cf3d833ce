#include "engine/run/verify_control.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace volley::engine {
namespace {

using Kind = VerifyPolicy::Kind;

// Drafted tokens for each request; nothing with kAuto.
std::optional<int32_t> fixed_of(const VerifyPolicy& policy, int32_t max_draft) {
  switch (policy.kind) {
    case Kind::kAuto:
      return std::nullopt;
    case Kind::kFull:
      return max_draft;
    case Kind::kFixed:
      break;
  }
  return std::min(policy.tokens, max_draft);
}

// Mean number of tokens that a block with n verified ones commits.
double expected_tokens(double p, int32_t n) {
  double tokens = 1, survival = 1;
  for (int32_t i = 0; i < n; ++i) tokens += survival *= p;
  return tokens;
}

}  // namespace

VerifyControl::VerifyControl(VerifyConfig config) : config_(std::move(config)) {
  stats_.draft_lengths.resize(config_.max_draft + 1);
  stats_.verified_at.resize(config_.max_draft);
  stats_.survived_at.resize(config_.max_draft);
  stats_.predicted_at.resize(config_.max_draft);
  stats_.drafters.resize(config_.draft_lengths.size());
  if (config_.max_draft == 0) return;
  const bool measured = config_.costs != nullptr && config_.costs->measured();
  VOLLEY_CHECK(measured || config_.policy.kind != Kind::kAuto);
  if (!measured) return;
  decode::BudgetConfig budget;
  budget.max_draft = config_.max_draft;
  budget.draft_lengths = config_.draft_lengths;
  budget.row_buckets = config_.row_buckets;
  budget.most_shared_rows = config_.most_shared_rows;
  budget.max_rows = config_.max_rows;
  budget.fixed = fixed_of(config_.policy, config_.max_draft);
  policy_ = std::make_unique<decode::BudgetPolicy>(std::move(budget), *config_.costs);
}

void VerifyControl::set(const VerifyPolicy& policy) {
  VOLLEY_CHECK(policy_ || policy.kind != Kind::kAuto);
  config_.policy = policy;
  if (policy_) policy_->set_fixed(fixed_of(policy, config_.max_draft));
}

double VerifyControl::predict(const decode::RoundShape& shape) const {
  if (config_.costs == nullptr) return 0;
  return config_.costs->decoding(policy_ ? policy_->that_runs(shape) : shape);
}

// Requests draft what they can use, within the room of all together.
void VerifyControl::predict_fixed(const sched::DecodingOutlook& outlook, int32_t draft, VerifyStep& step) const {
  const auto n = static_cast<int32_t>(outlook.requests.size());
  int32_t rows = n, longest = 0;
  for (const auto& entry : outlook.requests) {
    rows += std::min(draft, entry.most_draft);
    longest = std::max(longest, std::min(draft, entry.most_draft));
  }
  rows = std::clamp(rows, n, std::max(n, config_.max_rows - outlook.prompt_rows));
  step.decoding_s = predict({n, rows > n ? longest : 0, rows, outlook.prompt_rows, outlook.positions});
}

VerifyStep VerifyControl::next(const sched::DecodingOutlook& outlook, double most_seconds) {
  VerifyStep step;
  // Rows cannot be shared out without a table of survival.
  if (policy_) step.limit.most_shared_rows = config_.most_shared_rows;
  step.shape.kv_tokens = outlook.positions;
  const auto n = static_cast<int32_t>(outlook.requests.size());
  plain_s_ = step.decoding_s = predict({n, 0, n, outlook.prompt_rows, outlook.positions});
  if (config_.max_draft == 0) return step;
  if (const auto fixed = fixed_of(config_.policy, config_.max_draft)) {
    step.limit.draft = *fixed;
    predict_fixed(outlook, *fixed, step);
    return step;
  }
  if (outlook.requests.empty()) return step;  // a resumed request begins with a plain step
  requests_.clear();
  for (const auto& entry : outlook.requests) requests_.push_back({entry.id, entry.most_draft});
  decode::PassPrompts prompts = {outlook.prompt_rows, outlook.prompts_ending};
  // If even plain decoding exceeds its time, drafts only delay prompts that wait.
  const bool matters = outlook.prompts_wait || (outlook.prompt_rows > 0 && plain_s_ <= most_seconds);
  if (matters) prompts.most_seconds = most_seconds / config_.costs->decoding_factor();
  step.decision = policy_->decide(requests_, prompts, outlook.positions);
  step.shape.drafter = step.decision->drafter;
  step.limit.draft = step.decision->draft;
  step.limit.rows = step.decision->verify_rows;
  decode::RoundShape shape = {n, step.limit.draft, step.limit.rows, outlook.prompt_rows, outlook.positions};
  shape.drafter = step.shape.drafter;
  step.decoding_s = predict(shape);
  return step;
}

decode::VerifyBudget VerifyControl::budget(const sched::StepPlan& plan, std::span<const decode::RoundSegment> segments,
                                           VerifyStep& step) const {
  int32_t decoding = 0, drafted = 0;
  step.shape.other_rows = 0;
  step.shape.other_positions = 0;
  step.draft = 0;
  step.simulated.clear();
  step.waits_for_masks = false;
  for (const decode::RoundSegment& segment : segments) {
    step.waits_for_masks = step.waits_for_masks || segment.masks != nullptr;
    if (segment.start != decode::RoundSegment::kLastToken) {
      const auto rows = static_cast<int64_t>(segment.known.size());
      step.shape.other_rows += static_cast<int32_t>(rows);
      step.shape.other_positions += rows * segment.start + rows * (rows + 1) / 2;
      continue;
    }
    ++decoding;
    drafted += segment.draft;
    step.draft = std::max(step.draft, segment.draft);
    step.simulated.push_back(segment.simulate ? segment.simulate->p : -1.0f);
  }
  step.rows = std::min(plan.decode_rows, decoding + drafted);
  step.shape.requests = decoding;
  step.shape.draft = step.draft;
  step.shape.verify_rows = step.rows;
  if (policy_) step.shape = policy_->that_runs(step.shape);
  decode::VerifyBudget budget;
  budget.drafter = step.shape.drafter;
  if (!plan.shared || step.rows == decoding + drafted) return budget;
  budget.rows = step.rows;
  budget.table = &policy_->table(budget.drafter);
  return budget;
}

void VerifyControl::observe(const VerifyStep& step, const decode::StepTimes& times, std::span<const RequestId> ids,
                            std::span<const decode::RoundResult> results) {
  if (step.shape.requests == 0) return;
  blocks_.clear();
  for (size_t i = 0; i < results.size(); ++i) {
    const decode::RoundResult& result = results[i];
    if (ids[i] == 0 || result.tokens.empty()) continue;
    const bool cut = result.ended || result.exhausted || !result.finite;
    blocks_.push_back({ids[i], result.confidence, result.drafted, result.accepted, cut, result.ended,
                       static_cast<int32_t>(result.tokens.size())});
    if (step.simulated[i] >= 0) stats_.expected_tokens += expected_tokens(step.simulated[i], result.drafted);
    if (cut) continue;  // outcomes after the end are unknown
    for (int32_t j = 0; j < result.drafted; ++j) ++stats_.verified_at[j];
    for (int32_t j = 0; j < result.accepted; ++j) ++stats_.survived_at[j];
  }
  if (policy_) policy_->observe(step.shape, blocks_);
  if (step.draft > 0) {
    EngineStats::Verify::Drafter& drafter = stats_.drafters[step.shape.drafter];
    ++drafter.steps;
    for (const decode::RoundResult& result : results) {
      drafter.drafted_tokens += result.drafted;
      drafter.accepted_tokens += result.accepted;
    }
  }
  ++stats_.steps;
  ++stats_.draft_lengths[step.draft];
  stats_.plain += step.draft == 0 ? 1 : 0;
  stats_.rows += step.rows;
  const bool names = step.draft > 0 && config_.draft_lengths.size() > 1;
  news_ = {step.draft,
           step.rows,
           step.shape.requests,
           names ? step.shape.drafter + 1 : 0,
           config_.policy.kind == Kind::kAuto,
           step.decision};
  if (!step.decision) return;
  stats_.probes += step.decision->probe ? 1 : 0;
  stats_.predicted_tokens += step.decision->tokens;
  stats_.predicted_s += step.decision->seconds;
  stats_.measured_s += times.draft + times.rest;
}

void VerifyControl::forget(RequestId id) {
  if (policy_) policy_->forget(id);
}

EngineStats::Verify VerifyControl::stats() const {
  EngineStats::Verify stats = stats_;
  if (!policy_) return stats;
  const auto calibration = policy_->calibration();
  for (size_t i = 0; i < calibration.size() && i < stats.verified_at.size(); ++i) {
    stats.predicted_at[i] = calibration[i].predicted;
    stats.verified_at[i] = calibration[i].verified;
    stats.survived_at[i] = calibration[i].survived;
  }
  return stats;
}

std::string in_words(const VerifyNews& news) {
  if (news.requests == 0) return "";
  const std::string by = news.drafter > 0 ? " of drafter " + std::to_string(news.drafter) : "";
  const std::string what = std::to_string(news.draft) + " drafted tokens a request" + by + ", " +
                           std::to_string(news.rows) + " rows for " + std::to_string(news.requests) +
                           (news.requests == 1 ? " request" : " requests");
  if (!news.decision) return what + (news.automatic ? "" : ", as asked for");
  const decode::Decision& d = *news.decision;
  char why[128];
  std::snprintf(why, sizeof(why), ": %.1f tokens in %.2f ms expected, %.0f a second (plain: %.0f)", d.tokens,
                d.seconds * 1e3, d.tokens_per_s, d.plain_tokens_per_s);
  return (d.probe ? "probe: " : "") + what + why;
}

decode::SimulatedAcceptance simulated_at(const SimulatedAcceptance& simulated, int64_t step, int32_t drafter) {
  double p = 0;
  for (const SimulatedAcceptance::Phase& phase : simulated.phases) {
    if (phase.from_step <= step) p = drafter > 0 ? phase.second.value_or(phase.p) : phase.p;
  }
  const double weight = p * simulated.confidence_odds;
  return {static_cast<float>(p), static_cast<float>(weight / (weight + 1 - p))};
}

}  // namespace volley::engine
