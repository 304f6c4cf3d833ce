#include "spec/budget/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "base/check.h"
#include "spec/budget/calibration.h"
#include "spec/budget/options.h"
#include "spec/budget/replay.h"

namespace volley::spec {
namespace {

// A choice is kept until another is better by kClearly, or better at all for kPatience decisions in a row. When the
// number of requests changes by more than a quarter, the best one is taken at once.
constexpr double kClearly = 1.02, kSlightly = 1.002;
constexpr int32_t kPatience = 16;

// Rounds with longer drafts than chosen. While nothing is drafted they are the only news there is: they come as often
// as kPlainProbes' share of the time allows, but at least every so many rounds, or drafts that pay again would be
// noticed late. While something is drafted, what longer drafts would bring is known well enough from the shorter ones.
struct ProbeRule {
  double share;        // of the time that probes may cost
  double least, most;  // rounds from one to the next
};
constexpr ProbeRule kPlainProbes = {0.01, 8, 40}, kLongerProbes = {0.005, 64, 1024};
// And every kRivalGap rounds the best one of another length runs, if it is predicted to lose less than kNearlyEqual: so
// errors in the costs, which were measured in one short moment, show.
constexpr int32_t kRivalGap = 48;
constexpr double kNearlyEqual = 0.04;
// Of lengths to probe, a longer one is taken while it costs hardly more.
constexpr double kHardlyMore = 1.2;
constexpr int32_t kLeastProbedTokens = 4;  // verified, and an eighth of the requests

// A request's own shift: a step along the gradient of its outcomes' likelihood, and a pull back to 0.
constexpr float kShiftRate = 0.02f, kShiftPull = 0.005f, kMostShift = 2.0f;

// Seconds that a round loses against one with `rate` tokens a second.
double loss(const Option& option, double rate) {
  return std::max(0.0, option.charged - option.tokens / rate);
}

}  // namespace

struct BudgetPolicy::State {
  struct Known {
    BlockHistory history;
    float shift = 0;
  };

  State(BudgetConfig given, CostModel model)
      : config(std::move(given)),
        costs(std::move(model)),
        population(config.max_draft),
        reliability(config.max_draft),
        options(config) {}

  Decision fixed(std::span<const BudgetRequest> requests, const RoundToChoose& round, int32_t most) const;
  void evaluate(std::span<const BudgetRequest> requests, const RoundToChoose& round);
  const Option& settle(int32_t requests);
  const Option& nearest(size_t length, double rows) const;
  const Option& to_probe(size_t length, int32_t requests, double rate) const;
  const Option* probe(const RoundToChoose& round, const Option& chosen);
  const Option* rival(const Option& chosen);
  void learn(const BlockOutcome& block);

  BudgetConfig config;
  CostModel costs;
  Calibrator calibrator;
  Population population;
  std::unordered_map<RequestId, Known> known;

  std::vector<Calibration> reliability;
  // Rounds observed, and which were the last that drafted.
  int64_t rounds = 0;
  std::vector<int64_t> drafted;  // latest first, at most kReplayRounds

  Options options;
  Replay replay;
  std::vector<Replay::Request> replayed;
  int32_t strangers = 0;  // requests without a block, of the current decision
  std::vector<int64_t> ages;
  std::vector<float> chances;

  // What was chosen last, and for how many requests.
  int32_t draft = 0, settled_requests = 0, impatience = 0;
  double rows_per_request = 0;
  int32_t since_probe = static_cast<int32_t>(kPlainProbes.most), since_rival = 0;
  int32_t last_rival = 0;  // its length
};

BudgetPolicy::BudgetPolicy(BudgetConfig config, CostModel costs) {
  VOLLEY_CHECK(config.max_draft == 0 || config.draft_lengths.back() == config.max_draft);
  state_ = std::make_unique<State>(std::move(config), std::move(costs));
}

BudgetPolicy::~BudgetPolicy() = default;

Decision BudgetPolicy::State::fixed(std::span<const BudgetRequest> requests, const RoundToChoose& round,
                                    int32_t most) const {
  Decision decision;
  const auto length = std::ranges::lower_bound(config.draft_lengths, std::min(most, config.max_draft));
  if (most > 0 && round.most_draft > 0 && length != config.draft_lengths.end()) decision.draft = *length;
  for (const BudgetRequest& request : requests) decision.verify_rows += 1 + std::min(most, request.most_draft);
  decision.seconds = costs.predict(options.shape(round, decision.draft, decision.verify_rows)).total();
  return decision;
}

void BudgetPolicy::State::evaluate(std::span<const BudgetRequest> requests, const RoundToChoose& round) {
  replayed.clear();
  strangers = 0;
  for (const BudgetRequest& request : requests) {
    const BlockHistory& history = known[request.id].history;
    strangers += history.blocks == 0 && request.most_draft > 0 ? 1 : 0;
    replayed.push_back({&history, request.most_draft});
  }
  ages.clear();
  for (const int64_t round_of : drafted) ages.push_back(rounds - round_of);
  replay.begin(replayed, population, ages);
  options.evaluate(round, costs, replay);
}

const Option& BudgetPolicy::State::nearest(size_t length, double rows) const {
  const std::span<const Option> all = options.of_length(length);
  return *std::ranges::min_element(all, {}, [&](const Option& option) { return std::abs(option.rows - rows); });
}

const Option& BudgetPolicy::State::settle(int32_t requests) {
  const Option* chosen = &options.best();
  bool kept = false;
  const bool same_load = 4 * std::abs(requests - settled_requests) <= settled_requests;
  for (size_t i = 0; same_load && i < options.lengths(); ++i) {
    if (options.of_length(i).front().draft != draft) continue;
    const Option& old = nearest(i, rows_per_request * requests);
    impatience = chosen->rate() > old.rate() * kSlightly ? impatience + 1 : 0;
    kept = chosen->rate() <= old.rate() * kClearly && impatience < kPatience;
    if (kept) chosen = &old;
  }
  if (kept) return *chosen;
  draft = chosen->draft;
  rows_per_request = static_cast<double>(chosen->rows) / requests;
  settled_requests = requests;
  impatience = 0;
  return *chosen;
}

// Of a length: one that verifies some tokens, and more where that costs hardly more.
const Option& BudgetPolicy::State::to_probe(size_t length, int32_t requests, double rate) const {
  const std::span<const Option> all = options.of_length(length);
  const int32_t some = requests + std::max(kLeastProbedTokens, requests / 8);
  const auto enough =
      std::ranges::lower_bound(all, std::max(some, options.best_of_length(length).rows), {}, &Option::rows);
  if (enough == all.end()) return all.back();
  const Option* option = &*enough;
  for (auto more = enough; more != all.end(); ++more) {
    if (loss(*more, rate) <= kHardlyMore * loss(*enough, rate)) option = &*more;
  }
  return *option;
}

// The option to probe in place of `chosen`, or null.
const Option* BudgetPolicy::State::probe(const RoundToChoose& round, const Option& chosen) {
  ++since_probe;
  const ProbeRule& rule = chosen.draft == 0 ? kPlainProbes : kLongerProbes;
  if (since_probe < rule.least) return nullptr;
  const Option* longer = nullptr;
  double shortest_loss = 0, longer_loss = 0;
  bool could_win = false;  // if every token were accepted; or else there is nothing to learn
  for (size_t i = 1; i < options.lengths(); ++i) {
    if (options.of_length(i).front().draft <= chosen.draft) continue;
    for (const Option& option : options.of_length(i)) could_win |= option.rows > chosen.rate() * option.charged;
    const Option& option = to_probe(i, round.requests, chosen.rate());
    const double lost = loss(option, chosen.rate());
    if (longer == nullptr) shortest_loss = lost;
    if (longer != nullptr && lost > kHardlyMore * shortest_loss) continue;
    longer = &option;
    longer_loss = lost;
  }
  if (!could_win) return nullptr;
  double gap = std::min(rule.most, longer_loss / (rule.share * chosen.charged));
  if (chosen.draft == 0 && 4 * strangers >= round.requests) gap /= 2;  // new requests may be of another kind
  if (since_probe < gap) return nullptr;
  since_probe = 0;
  return longer;
}

// Of the other lengths, but for the one that had its turn last.
const Option* BudgetPolicy::State::rival(const Option& chosen) {
  if (++since_rival < kRivalGap) return nullptr;
  const Option* rival = nullptr;
  for (size_t i = 0; i < options.lengths(); ++i) {
    const Option& best = options.best_of_length(i);
    if (best.draft == chosen.draft || best.draft == last_rival) continue;
    if (rival == nullptr || best.rate() > rival->rate()) rival = &best;
  }
  if (rival == nullptr || rival->rate() < (1 - kNearlyEqual) * chosen.rate()) return nullptr;
  since_rival = 0;
  last_rival = rival->draft;
  return rival;
}

Decision BudgetPolicy::decide(std::span<const BudgetRequest> requests, int32_t other_rows, int64_t kv_tokens) {
  State& s = *state_;
  if (requests.empty()) return {};
  RoundToChoose round = {static_cast<int32_t>(requests.size()), 0, other_rows, kv_tokens};
  for (const BudgetRequest& request : requests) round.most_draft = std::max(round.most_draft, request.most_draft);
  if (s.config.fixed) return s.fixed(requests, round, *s.config.fixed);
  s.evaluate(requests, round);
  const Option& chosen = s.settle(round.requests);
  const Option* probe = s.probe(round, chosen);
  if (probe == nullptr) probe = s.rival(chosen);
  const Option& option = probe != nullptr ? *probe : chosen;
  return {option.draft,   option.rows,  probe != nullptr, option.rate(), s.options.plain().rate(),
          option.seconds, option.tokens};
}

void BudgetPolicy::State::learn(const BlockOutcome& block) {
  const auto drafted_tokens = std::min(static_cast<int32_t>(block.confidence.size()), config.max_draft);
  if (drafted_tokens == 0) return;
  const auto found = known.find(block.id);
  const float shift = found != known.end() ? found->second.shift : 0;
  const int32_t told = std::min(block.verified, block.accepted + (block.cut ? 0 : 1));  // outcomes that are known
  float survival = 1, step = 0;
  chances.clear();
  for (int32_t i = 0; i < drafted_tokens; ++i) {
    const float chance = ops::acceptance_chance(calibrator.table(), i, block.confidence[i], shift);
    chances.push_back(chance);
    survival *= chance;
    if (i < told) step += (i < block.accepted ? 1.0f : 0.0f) - chance;
    if (i < block.verified && !block.cut) {
      reliability[i].predicted += survival;
      reliability[i].survived += i < block.accepted ? 1 : 0;
      ++reliability[i].verified;
    }
  }
  for (int32_t i = 0; i < told; ++i) {
    calibrator.observe(i, ops::log_odds(block.confidence[i]), i < block.accepted);
  }
  if (found == known.end()) return;
  const float pull = kShiftPull * static_cast<float>(told) * shift;
  found->second.shift = std::clamp(shift + kShiftRate * step - pull, -kMostShift, kMostShift);
  population.add(chances, found->second.history);
}

void BudgetPolicy::observe(const RoundShape& shape, const RoundSeconds& seconds, std::span<const BlockOutcome> blocks) {
  State& s = *state_;
  const RoundToChoose round = {shape.requests, shape.draft, shape.other_rows, shape.kv_tokens};
  s.costs.observe(s.options.shape(round, shape.draft, shape.verify_rows), seconds);
  ++s.rounds;
  for (const BlockOutcome& block : blocks) s.learn(block);
  s.calibrator.end_round(shape.draft > 0);
  if (shape.draft == 0) return;
  s.population.end_round();
  s.drafted.insert(s.drafted.begin(), s.rounds);
  if (std::ssize(s.drafted) > kReplayRounds) s.drafted.pop_back();
}

void BudgetPolicy::forget(RequestId id) {
  state_->known.erase(id);
}

float BudgetPolicy::shift(RequestId id) const {
  const auto found = state_->known.find(id);
  return found != state_->known.end() ? found->second.shift : 0;
}

const ops::SurvivalTable& BudgetPolicy::table() const {
  return state_->calibrator.table();
}

const CostModel& BudgetPolicy::costs() const {
  return state_->costs;
}

std::span<const BudgetPolicy::Calibration> BudgetPolicy::calibration() const {
  return state_->reliability;
}

void BudgetPolicy::set_fixed(std::optional<int32_t> fixed) {
  state_->config.fixed = fixed;
}

}  // namespace volley::spec
