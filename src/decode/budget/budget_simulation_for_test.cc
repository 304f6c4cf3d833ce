#include "decode/budget/budget_simulation_for_test.h"

#include <algorithm>
#include <cmath>

#include "base/math.h"

namespace volley::decode {
namespace {

constexpr int32_t kSlotBuckets[] = {1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128};

template <typename Sizes>
int32_t rounded_up(const Sizes& sizes, int32_t n) {
  const auto found = std::lower_bound(std::begin(sizes), std::end(sizes), n);
  return found == std::end(sizes) ? n : *found;
}

double between(const std::vector<CurvePoint>& points, double x) {
  return Curve(points).at(x);
}

int64_t kv_of(std::span<const SimulatedRequest> requests) {
  int64_t sum = 0;
  for (const SimulatedRequest& request : requests) sum += request.kv_tokens;
  return sum;
}

double expected_tokens(double p, int32_t verified) {
  double tokens = 1, survival = 1;
  for (int32_t j = 0; j < verified; ++j) tokens += survival *= p;
  return tokens;
}

std::vector<CurvePoint> milliseconds(std::vector<CurvePoint> points) {
  for (CurvePoint& point : points) point.y *= 1e-3;
  return points;
}

}  // namespace

RoundSeconds Machine::seconds(const RoundShape& shape) const {
  int32_t slots = shape.requests, rows = shape.verify_rows;
  if (!config.row_buckets.empty()) {
    slots = rounded_up(kSlotBuckets, slots);
    rows = shape.draft == 0                  ? slots
           : rows <= config.most_shared_rows ? rounded_up(config.row_buckets, rows)
                                             : slots * (config.max_draft + 1);
  }
  const auto whole = [&](int32_t n) { return (n + whole_rows - 1) / whole_rows * whole_rows; };
  RoundSeconds seconds;
  const auto kv_tokens = static_cast<double>(shape.kv_tokens);
  if (shape.draft > 0) {
    const bool chains = shape.drafter >= chains_from;
    const int32_t passes = chains ? shape.draft : 1;
    const double pass = chains ? between(chain, slots) : between(draft, whole(slots * (shape.draft + 1)));
    const double per_position = kv.draft.empty() ? 0 : kv.draft.at(shape.drafter);
    seconds.draft = passes * (pass + kv_tokens * per_position);
  }
  seconds.rest = between(rest, whole(rows + shape.other_rows)) +
                 kv_tokens * (kv.rest + kv.row * shape.verify_rows / shape.requests);
  return seconds;
}

MeasurePlan Machine::plan(int32_t slots) const {
  MeasurePlan plan;
  plan.slots = slots;
  plan.max_rows = config.max_rows;
  plan.page_size = 64;
  plan.pages = 1 << 20;
  plan.max_model_len = 4096;
  plan.target_weight_bytes = 16e9;
  plan.target_kv_bytes = kv.rest / between(rest, 1) * plan.target_weight_bytes;
  for (const double draft_kv : kv.draft) {
    plan.draft_kv_bytes.push_back(draft_kv / between(rest, 1) * plan.target_weight_bytes);
  }
  plan.heads_per_kv_head = 4;
  return plan;
}

CostModel Machine::measured(int32_t slots) const {
  const RoundGeometry geometry = {config.max_draft + 1, config.draft_lengths, config.row_buckets,
                                  config.most_shared_rows};
  return *measure_costs(geometry, plan(slots),
                        [&](const RoundShape& shape) {
                          return CostSample{shape, seconds(shape)};
                        },
                        {});
}

Machine h200() {
  Machine m;
  m.name = "H200";
  m.config.max_draft = 15;
  m.config.draft_lengths = {{1, 2, 3, 4, 5, 7, 9, 11, 13, 15}};
  m.config.row_buckets = {4,   8,   12,  16,  24,  32,  40,  48,  56,  64,  80,  96,  112, 128, 144,
                          160, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1024};
  m.config.most_shared_rows = 1024;
  m.config.max_rows = 4096;
  m.draft =
      milliseconds({{2, 0.85}, {16, 0.92}, {64, 1.1}, {128, 1.3}, {256, 1.9}, {512, 2.9}, {1024, 5.3}, {2048, 10}});
  m.rest = milliseconds({{1, 4.2},
                         {16, 4.45},
                         {32, 4.65},
                         {64, 4.9},
                         {96, 5.4},
                         {128, 6.2},
                         {192, 7.5},
                         {256, 8.6},
                         {384, 12.6},
                         {512, 15.7},
                         {1024, 30},
                         {2048, 58}});
  m.kv = {{4.6e-9}, 33e-9, 1e-9};
  return m;
}

Machine h200_of_two() {
  Machine m = h200();
  m.config.draft_lengths.push_back({1, 2, 3});
  m.chain = milliseconds({{1, 0.35}, {64, 0.42}, {256, 0.75}, {1024, 2.3}});
  m.kv.draft.push_back(1e-9);
  return m;
}

Machine cpu() {
  Machine m;
  m.name = "CPU";
  m.config.max_draft = 15;
  m.config.draft_lengths = {{1, 2, 3, 4, 5, 7, 9, 11, 13, 15}};
  m.config.most_shared_rows = 128;
  m.config.max_rows = 1024;
  m.draft = milliseconds({{2, 9}, {16, 13}, {32, 21}, {64, 42}, {512, 330}});
  m.rest = milliseconds({{1, 27.5}, {4, 29}, {8, 31}, {16, 35}, {32, 60}, {64, 117}, {512, 930}});
  m.kv = {{2e-7}, 1.5e-6, 3e-7};
  return m;
}

Machine small_cpu() {
  Machine m = cpu();
  m.name = "small";
  m.draft = milliseconds({{2, 0.1}, {16, 0.16}, {32, 0.3}, {512, 4.8}});
  m.rest = milliseconds({{1, 0.115}, {8, 0.26}, {16, 0.42}, {32, 0.8}, {512, 12.5}});
  m.kv = {{1e-8}, 3e-8, 1e-8};
  m.whole_rows = 4;
  return m;
}

Simulation::Simulation(Machine machine, CostModel costs, uint64_t seed)
    : machine_(std::move(machine)), costs_(std::move(costs)), policy_(machine_.config, costs_), dice_(seed) {}

std::vector<int32_t> Simulation::share(std::span<const SimulatedRequest> requests, const Decision& decision,
                                       std::span<const Block> blocks) {
  const auto n = static_cast<int32_t>(requests.size());
  std::vector<ops::SlotRow> slots(n);
  std::vector<ops::StepSegment> segments(n);
  std::vector<float> confidence;
  for (int32_t i = 0; i < n; ++i) {
    segments[i].slot = i;
    segments[i].draft = decision.draft;
    segments[i].draft_begin = i * decision.draft;
    segments[i].chooses = 1;
    segments[i].shift = policy_.shift(requests[i].id, decision.drafter);
    confidence.insert(confidence.end(), blocks[i].confidence.begin(), blocks[i].confidence.end());
  }
  if (decision.verify_rows < n * (1 + decision.draft)) {
    ops::Step step;
    step.segments = segments.data();
    step.n = step.blocks = n;
    step.slots = slots.data();
    ops::SharePlan plan;
    plan.decoding = n;
    plan.rows = decision.verify_rows;
    plan.confidence = confidence.data();
    plan.table = &policy_.table(decision.drafter);
    plan.stride = decision.draft;
    Stream stream(pool_);
    ops::share_verify_rows(stream, step, segments.data(), plan);
  }
  std::vector<int32_t> verified;
  for (const ops::StepSegment& segment : segments) verified.push_back(segment.draft);
  return verified;
}

SimulatedRound Simulation::round(std::span<const SimulatedRequest> requests) {
  std::vector<BudgetRequest> asked;
  for (const SimulatedRequest& request : requests) asked.push_back({request.id, machine_.config.max_draft});
  SimulatedRound out;
  out.decision = policy_.decide(asked, {}, kv_of(requests));
  const Decision& decision = out.decision;
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  Flight flight;
  std::vector<std::vector<double>> chances(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Block block = {requests[i].id, {}, 0, 0};
    for (int32_t j = 0; j < decision.draft; ++j) {
      const double p = std::clamp(decision.drafter == 0 ? requests[i].p : requests[i].second, 1e-9, 1 - 1e-9);
      const double odds = std::log(p / (1 - p)) + requests[i].spread * normal(dice_);
      chances[i].push_back(sigmoid(odds));
      block.confidence.push_back(
          static_cast<float>(sigmoid(odds + std::log(requests[i].odds) + requests[i].noise * normal(dice_))));
    }
    flight.blocks.push_back(std::move(block));
  }
  const std::vector<int32_t> verified = share(requests, decision, flight.blocks);
  for (size_t i = 0; i < requests.size(); ++i) {
    Block& block = flight.blocks[i];
    block.verified = verified[i];
    while (block.accepted < block.verified && uniform(dice_) < chances[i][block.accepted]) ++block.accepted;
    double survival = 1;
    out.tokens += 1;
    for (int32_t j = 0; j < block.verified; ++j) out.tokens += survival *= chances[i][j];
    out.committed.push_back(1 + block.accepted);
  }
  flight.shape = {static_cast<int32_t>(requests.size()), decision.draft, decision.verify_rows, 0, kv_of(requests)};
  flight.shape.drafter = decision.drafter;
  flight.seconds = machine_.seconds(flight.shape);
  out.seconds = flight.seconds.total();
  const double factor = slow_ * std::exp(noise_ * normal(dice_));
  flight.seconds.draft *= factor;
  flight.seconds.rest *= factor;
  flights_.push_back(std::move(flight));
  if (flights_.size() > kDelay) observe_oldest();
  return out;
}

void Simulation::observe_oldest() {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  std::vector<BlockOutcome> outcomes;
  for (const Block& block : flight.blocks) {
    outcomes.push_back({block.id, block.confidence, block.verified, block.accepted, false, false, block.accepted + 1});
  }
  costs_.observe(policy_.that_runs(flight.shape), flight.seconds);
  policy_.observe(flight.shape, outcomes);
}

double fixed_rate(const Machine& machine, std::span<const SimulatedRequest> requests, int32_t draft) {
  const auto n = static_cast<int32_t>(requests.size());
  double tokens = 0;
  for (const SimulatedRequest& request : requests) tokens += expected_tokens(request.p, draft);
  return tokens / machine.seconds({n, draft, n * (draft + 1), 0, kv_of(requests)}).total();
}

double best_fixed_rate(const Machine& machine, std::span<const SimulatedRequest> requests) {
  double best = fixed_rate(machine, requests, 0);
  for (const int32_t draft : {1, 3, 7, 15}) best = std::max(best, fixed_rate(machine, requests, draft));
  return best;
}

}  // namespace volley::decode
