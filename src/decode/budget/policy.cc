#include "decode/budget/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "base/check.h"
#include "decode/budget/calibration.h"
#include "decode/budget/options.h"
#include "decode/budget/replay.h"

namespace volley::decode {
namespace {

// Deciding takes microseconds, so a decision stands until rounds of this many seconds have run.
constexpr double kDecisionSeconds = 0.001;
// A choice is kept until another is better by kClearly, or by kSlightly for kPatience decisions in a row. When the
// number of requests changes by more than a quarter, the best one is taken at once.
constexpr double kClearly = 1.02, kSlightly = 1.002;
constexpr int32_t kPatience = 16;

// A drafter that does not draft has no outcomes, so some rounds are probes that draft to learn. Their cost may be
// kProbeShare of the time, or kNewShare where another drafter drafts and most requests are new to this one. They come
// at least every kMostProbeGap rounds, or the policy would notice late that its drafts pay again.
constexpr double kProbeShare = 0.005, kNewShare = 0.02;
constexpr double kLeastProbeGap = 8, kMostProbeGap = 40;
// Rivals are all other lengths, and every half octave of rows. Each runs now and then, as often as its cost stays
// within kRivalShare of the time. Rivals reveal errors in the costs, which were measured in one short moment, and show
// how longer blocks continue. An option that would lose even if every token were accepted gets kHopelessShare: only its
// costs can be wrong.
constexpr double kRivalShare = 0.0003, kHopelessShare = 0.0001;
constexpr double kLeastRivalGap = 48;
constexpr int64_t kBetweenRivals = 16;  // rounds between two rivals
// A number of rows that is predicted to lose almost nothing may be the best. Such options run in turn soon after the
// number of requests has changed by more than a quarter, because the actual cost of that size is not known yet.
constexpr int64_t kSettling = 64, kBetweenCloseRivals = 4;  // rounds
constexpr double kClose = 0.04;                             // share of a round's time
constexpr int32_t kRowBands = 32;
// Among lengths to probe, a longer one is taken while it costs hardly more.
constexpr double kHardlyMore = 1.2;
constexpr int32_t kLeastProbedTokens = 4;  // verified tokens of a probe; an eighth of the requests if that is more

// A request's own shift takes a step along the gradient of its outcomes' likelihood, and is pulled back to 0.
constexpr float kShiftRate = 0.02f, kShiftPull = 0.005f, kMostShift = 2.0f;

int32_t row_band(int32_t rows) {
  return std::clamp(static_cast<int32_t>(2 * std::log2(static_cast<float>(rows))), 0, kRowBands - 1);
}

// Rows that verify every token that a draft of this length gives the requests.
int32_t whole_rows(std::span<const BudgetRequest> requests, int32_t draft) {
  int32_t rows = 0;
  for (const BudgetRequest& request : requests) rows += 1 + std::min(draft, request.most_draft);
  return rows;
}

// Seconds that a round loses against one that commits `rate` tokens a second.
double loss(const Option& option, double rate) {
  return std::max(0.0, option.charged - option.tokens / rate);
}

}  // namespace

struct BudgetPolicy::State {
  // A request's blocks by one drafter.
  struct Blocks {
    BlockHistory history;
    float shift = 0;
  };
  using Known = std::vector<Blocks>;  // by drafter

  // What is known of a drafter.
  struct Drafter {
    explicit Drafter(int32_t max_draft) : population(max_draft) {}

    Calibrator calibrator;
    Population population;
    std::vector<int64_t> rounds;  // the last ones in which it drafted, latest first, at most kReplayRounds
    int64_t last = -static_cast<int64_t>(kMostProbeGap);  // the last decision that it drafts
    bool most_new = false;                                // it knows no block of most requests of the coming round
    size_t first_length = 0;                              // length_index() of its shortest drafts
  };

  State(BudgetConfig given, const CostModel& model)
      : config(std::move(given)),
        costs(model),
        reliability(config.max_draft),
        options(config),
        last_length(1),
        replays(config.draft_lengths.size()) {
    for (const std::vector<int32_t>& lengths : config.draft_lengths) {
      drafters.emplace_back(config.max_draft).first_length = last_length.size();
      last_length.resize(last_length.size() + lengths.size());
    }
  }

  Decision fixed(std::span<const BudgetRequest> requests, const RoundToChoose& round, int32_t most) const;
  void evaluate(std::span<const BudgetRequest> requests, const RoundToChoose& round);
  const Option& settle(int32_t requests);
  const Option& nearest(size_t length, double rows) const;
  const Option& to_probe(size_t length, int32_t requests, double rate) const;
  bool could_win(size_t length, double rate) const;
  const Option* probe(const RoundToChoose& round, const Option& chosen);
  const Option* probe(int32_t drafter, const RoundToChoose& round, const Option& chosen) const;
  bool settling() const { return decisions - changed < kSettling; }
  bool rivals_turn() const;
  const Option* rival(const RoundToChoose& round, const Option& chosen);
  const Option* close_rival(std::span<const Option* const> best_of_band, const Option& chosen) const;
  std::optional<Decision> standing(std::span<const BudgetRequest> requests, const RoundToChoose& round);
  Decision choose(std::span<const BudgetRequest> requests, const RoundToChoose& round);
  // 0 is plain decoding, then come the lengths of each drafter.
  size_t length_index(int32_t drafter, int32_t draft) const {
    if (draft == 0) return 0;
    const std::vector<int32_t>& lengths = config.draft_lengths[drafter];
    return drafters[drafter].first_length + (std::ranges::lower_bound(lengths, draft) - lengths.begin());
  }
  Known& remembered(RequestId id) {
    Known& request = known[id];
    request.resize(drafters.size());
    return request;
  }
  void learn(const BlockOutcome& block, int32_t by);

  BudgetConfig config;
  const CostModel& costs;
  std::vector<Drafter> drafters;
  std::unordered_map<RequestId, Known> known;

  std::vector<Calibration> reliability;
  int64_t rounds = 0;  // observed so far

  Options options;
  std::vector<int64_t> ages;
  std::vector<float> chances;

  int32_t drafter = 0, draft = 0, settled_requests = 0, impatience = 0;
  double rows_per_request = 0;
  int64_t changed = -kSettling;  // the last decision that changed the number of requests
  Decision last;
  bool last_whole = false;  // the decision verifies all drafted tokens
  int32_t last_requests = 0;
  double stands_for = 0;  // seconds
  // The number of decisions, and the last one with each length and each band of rows.
  int64_t decisions = 0;
  std::vector<int64_t> last_length;
  std::array<int64_t, kRowBands> last_band = {};

  std::vector<Replay> replays;  // by drafter
  std::vector<Replay::Request> replayed;
};

BudgetPolicy::BudgetPolicy(BudgetConfig config, const CostModel& costs) {
  int32_t longest = 0;
  for (const std::vector<int32_t>& lengths : config.draft_lengths) longest = std::max(longest, lengths.back());
  VOLLEY_CHECK_EQ(longest, config.max_draft);
  state_ = std::make_unique<State>(std::move(config), costs);
}

BudgetPolicy::~BudgetPolicy() = default;

Decision BudgetPolicy::State::fixed(std::span<const BudgetRequest> requests, const RoundToChoose& round,
                                    int32_t most) const {
  Decision decision;
  VOLLEY_CHECK(most == 0 || config.draft_lengths.size() == 1);
  const std::vector<int32_t>& lengths = config.draft_lengths.front();
  const auto length = std::ranges::lower_bound(lengths, std::min(most, config.max_draft));
  if (most > 0 && round.most_draft > 0 && length != lengths.end()) decision.draft = *length;
  decision.verify_rows = whole_rows(requests, most);
  decision.seconds = costs.predict(options.shape(round, 0, decision.draft, decision.verify_rows)).total();
  return decision;
}

void BudgetPolicy::State::evaluate(std::span<const BudgetRequest> requests, const RoundToChoose& round) {
  for (const BudgetRequest& request : requests) remembered(request.id);
  for (size_t i = 0; i < drafters.size(); ++i) {
    Drafter& drafter = drafters[i];
    replayed.clear();
    size_t unknown = 0;
    for (const BudgetRequest& request : requests) {
      const BlockHistory& history = known.at(request.id)[i].history;
      replayed.push_back({&history, request.most_draft});
      unknown += history.blocks == 0 ? 1 : 0;
    }
    drafter.most_new = 2 * unknown > requests.size();
    ages.clear();
    for (const int64_t round_of : drafter.rounds) ages.push_back(rounds - round_of);
    replays[i].begin(replayed, drafter.population, ages);
  }
  options.evaluate(round, costs, replays);
}

const Option& BudgetPolicy::State::nearest(size_t length, double rows) const {
  const std::span<const Option> all = options.of_length(length);
  return *std::ranges::min_element(all, {}, [&](const Option& option) { return std::abs(option.rows - rows); });
}

const Option& BudgetPolicy::State::settle(int32_t requests) {
  const Option* chosen = &options.best();
  if (options.others_wait() || options.bounded()) return *chosen;  // other options are not comparable with later rounds
  bool kept = false;
  const bool same_load = 4 * std::abs(requests - settled_requests) <= settled_requests;
  for (size_t i = 0; same_load && i < options.lengths(); ++i) {
    const Option& first = options.of_length(i).front();
    if (first.draft != draft || first.drafter != drafter) continue;
    const Option& old = nearest(i, rows_per_request * requests);
    impatience = chosen->rate() > old.rate() * kSlightly ? impatience + 1 : 0;
    kept = chosen->rate() <= old.rate() * kClearly && impatience < kPatience;
    if (kept) chosen = &old;
  }
  if (kept) return *chosen;
  drafter = chosen->drafter;
  draft = chosen->draft;
  rows_per_request = static_cast<double>(chosen->rows) / requests;
  if (!same_load) changed = decisions;
  settled_requests = requests;
  impatience = 0;
  return *chosen;
}

// Chooses the rows to probe a length with: few, or more where that costs hardly more.
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

// Whether the length would win if every token were accepted.
bool BudgetPolicy::State::could_win(size_t length, double rate) const {
  return std::ranges::any_of(options.of_length(length),
                             [&](const Option& option) { return option.rows > rate * option.charged; });
}

// The option to probe a drafter with that the choice leaves idle, or null.
const Option* BudgetPolicy::State::probe(const RoundToChoose& round, const Option& chosen) {
  for (int32_t i = 0; i < std::ssize(drafters); ++i) {
    if (chosen.draft > 0 && chosen.drafter == i) continue;
    if (const Option* option = probe(i, round, chosen)) return option;
  }
  return nullptr;
}

const Option* BudgetPolicy::State::probe(int32_t of, const RoundToChoose& round, const Option& chosen) const {
  const auto since = static_cast<double>(decisions + 1 - drafters[of].last);
  if (since < kLeastProbeGap) return nullptr;
  const Option* probed = nullptr;
  double shortest_loss = 0, lost = 0;
  bool may_pay = false;
  for (size_t i = 1; i < options.lengths(); ++i) {
    if (options.of_length(i).front().drafter != of) continue;
    may_pay = may_pay || could_win(i, chosen.rate());
    const Option& option = to_probe(i, round.requests, chosen.rate());
    const double loses = loss(option, chosen.rate());
    if (probed == nullptr) shortest_loss = loses;
    if (probed != nullptr && loses > kHardlyMore * shortest_loss) continue;
    probed = &option;
    lost = loses;
  }
  const double share = chosen.draft > 0 && drafters[of].most_new ? kNewShare : kProbeShare;
  const bool due = since >= std::min(kMostProbeGap, lost / (share * chosen.charged));
  return may_pay && due ? probed : nullptr;
}

// Whether the coming decision may be a rival's.
bool BudgetPolicy::State::rivals_turn() const {
  return (decisions + 1) % (settling() ? kBetweenCloseRivals : kBetweenRivals) == 0;
}

// The option whose turn it is, of another length or of a band of rows that has not run for long. Null: none has it.
const Option* BudgetPolicy::State::rival(const RoundToChoose& round, const Option& chosen) {
  if (!rivals_turn() || round.other_rows > 0) return nullptr;  // only rounds without prompts teach costs
  std::array<const Option*, kRowBands> best_of_band = {};
  for (size_t i = 0; i < options.lengths(); ++i) {
    for (const Option& option : options.of_length(i)) {
      const Option*& best = best_of_band[row_band(option.rows)];
      if (option.draft > 0 && (best == nullptr || option.rate() > best->rate())) best = &option;
    }
  }
  if (const Option* close = close_rival(best_of_band, chosen)) return close;
  if ((decisions + 1) % kBetweenRivals != 0) return nullptr;
  const Option* rival = nullptr;
  double most_due = 1;
  const auto consider = [&](const Option& option, int64_t last) {
    // It loses even if every token were accepted, unless the costs are wrong.
    const bool hopeless = option.draft > 0 && option.rows <= chosen.rate() * option.charged;
    const double share = hopeless ? kHopelessShare : kRivalShare;
    const double gap = std::max(kLeastRivalGap, loss(option, chosen.rate()) / (share * chosen.charged));
    const double due = static_cast<double>(decisions - last) / gap;
    if (due < most_due) return;
    most_due = due;
    rival = &option;
  };
  for (size_t i = 0; i < options.lengths(); ++i) {
    const Option& first = options.of_length(i).front();
    consider(i == 0 ? first : to_probe(i, round.requests, chosen.rate()),
             last_length[length_index(first.drafter, first.draft)]);
  }
  for (int32_t band = 0; band < kRowBands; ++band) {
    if (best_of_band[band] != nullptr) consider(*best_of_band[band], last_band[band]);
  }
  return rival;
}

// While settling, returns the close option that has not run for longest, among plain decoding and the bands of rows.
// Null: no option is close.
const Option* BudgetPolicy::State::close_rival(std::span<const Option* const> best_of_band,
                                               const Option& chosen) const {
  if (!settling()) return nullptr;
  const Option* next = nullptr;
  int64_t oldest = decisions;
  const auto consider = [&](const Option& option, int64_t last) {
    if (last < oldest && loss(option, chosen.rate()) < kClose * chosen.charged) oldest = last, next = &option;
  };
  if (chosen.draft > 0) consider(options.plain(), last_length[0]);
  for (int32_t band = 0; band < kRowBands; ++band) {
    if (best_of_band[band] != nullptr && band != row_band(chosen.rows)) consider(*best_of_band[band], last_band[band]);
  }
  return next;
}

// Repeats the last decision while it stands: as many requests, no prompt, and no rival's turn can have come.
std::optional<Decision> BudgetPolicy::State::standing(std::span<const BudgetRequest> requests,
                                                      const RoundToChoose& round) {
  if (stands_for <= 0 || round.requests != last_requests || round.other_rows > 0 || rivals_turn() ||
      length_index(last.drafter, round.most_draft) < length_index(last.drafter, last.draft)) {
    return std::nullopt;
  }
  for (const BudgetRequest& request : requests) remembered(request.id);
  stands_for -= last.seconds;
  Decision again = last;
  const int32_t whole = whole_rows(requests, last.draft);
  again.verify_rows = last_whole ? whole : std::min(whole, last.verify_rows);
  return again;
}

Decision BudgetPolicy::State::choose(std::span<const BudgetRequest> requests, const RoundToChoose& round) {
  evaluate(requests, round);
  const Option& chosen = settle(round.requests);
  const Option* probed = nullptr;
  if (!options.others_wait()) {  // a probe would cost the waiting requests time
    probed = probe(round, chosen);
    if (probed == nullptr) probed = rival(round, chosen);
  }
  if (probed != nullptr && !options.allowed(*probed)) probed = nullptr;
  const Option& option = probed != nullptr ? *probed : chosen;
  last = {option.draft,           option.rows,    probed != nullptr, option.rate(),
          options.plain().rate(), option.seconds, option.tokens,     option.drafter};
  last_requests = round.requests;
  last_whole = option.rows == whole_rows(requests, option.draft);
  stands_for = probed != nullptr || round.other_rows > 0 ? 0 : kDecisionSeconds - option.seconds;
  return last;
}

Decision BudgetPolicy::decide(std::span<const BudgetRequest> requests, PassPrompts prompts, int64_t kv_tokens) {
  State& s = *state_;
  if (requests.empty()) return {};
  RoundToChoose round = {
      static_cast<int32_t>(requests.size()), 0, prompts.rows, kv_tokens, prompts.ending, prompts.most_seconds};
  for (const BudgetRequest& request : requests) round.most_draft = std::max(round.most_draft, request.most_draft);
  if (s.config.fixed) return s.fixed(requests, round, *s.config.fixed);
  const std::optional<Decision> again = s.standing(requests, round);
  const Decision decision = again ? *again : s.choose(requests, round);
  ++s.decisions;
  if (decision.draft > 0) s.drafters[decision.drafter].last = s.decisions;
  if (round.other_rows > 0) return decision;  // a round with prompts does not improve the costs
  s.last_length[s.length_index(decision.drafter, decision.draft)] = s.decisions;
  if (decision.draft > 0) s.last_band[row_band(decision.verify_rows)] = s.decisions;
  return decision;
}

void BudgetPolicy::State::learn(const BlockOutcome& block, int32_t by) {
  const auto drafted_tokens = std::min(static_cast<int32_t>(block.confidence.size()), config.max_draft);
  if (drafted_tokens == 0) return;
  const auto found = known.find(block.id);
  Blocks unknown;  // the request has ended, or began under a fixed number; its block still teaches what blocks are like
  Blocks& request = found != known.end() ? found->second[by] : unknown;
  Drafter& drafter = drafters[by];
  const float shift = request.shift;
  const int32_t told = std::min(block.verified, block.accepted + (block.cut ? 0 : 1));  // known outcomes
  float survival = 1, step = 0;
  chances.clear();
  for (int32_t i = 0; i < drafted_tokens; ++i) {
    const float chance = ops::acceptance_chance(drafter.calibrator.table(), i, block.confidence[i], shift);
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
    drafter.calibrator.observe(i, ops::log_odds(block.confidence[i]), i < block.accepted);
  }
  const float pull = kShiftPull * static_cast<float>(told) * shift;
  request.shift = std::clamp(shift + kShiftRate * step - pull, -kMostShift, kMostShift);
  drafter.population.add(chances, request.history);
}

void BudgetPolicy::observe(const RoundShape& ran, std::span<const BlockOutcome> blocks) {
  State& s = *state_;
  ++s.rounds;
  int32_t tokens = 0, ended = 0;
  for (const BlockOutcome& block : blocks) {
    s.learn(block, ran.drafter);
    tokens += block.committed;
    ended += block.ended ? 1 : 0;
  }
  for (int32_t i = 0; i < std::ssize(s.drafters); ++i) {
    State::Drafter& drafter = s.drafters[i];
    const bool drafted = ran.draft > 0 && ran.drafter == i;
    drafter.population.end_round(drafted, tokens, ended);
    drafter.calibrator.end_round(drafted);
    if (!drafted) continue;
    drafter.rounds.insert(drafter.rounds.begin(), s.rounds);
    if (std::ssize(drafter.rounds) > kReplayRounds) drafter.rounds.pop_back();
  }
}

void BudgetPolicy::forget(RequestId id) {
  state_->known.erase(id);
}

float BudgetPolicy::shift(RequestId id, int32_t drafter) const {
  const auto found = state_->known.find(id);
  return found != state_->known.end() ? found->second[drafter].shift : 0;
}

const ops::SurvivalTable& BudgetPolicy::table(int32_t drafter) const {
  return state_->drafters[drafter].calibrator.table();
}

RoundShape BudgetPolicy::that_runs(const RoundShape& asked) const {
  const RoundToChoose round = {
      .requests = asked.requests, .other_rows = asked.other_rows, .kv_tokens = asked.kv_tokens};
  RoundShape shape = state_->options.shape(round, asked.drafter, asked.draft, asked.verify_rows);
  shape.other_positions = asked.other_positions;
  return shape;
}

std::span<const BudgetPolicy::Calibration> BudgetPolicy::calibration() const {
  return state_->reliability;
}

void BudgetPolicy::set_fixed(std::optional<int32_t> fixed) {
  state_->config.fixed = fixed;
}

}  // namespace volley::decode
