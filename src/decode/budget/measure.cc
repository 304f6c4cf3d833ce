#include "decode/budget/measure.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace volley::decode {
namespace {

// The fastest run of a shape counts, because other load only adds time. More runs follow if time is left once every
// shape has had its first ones.
constexpr int32_t kFirstRepeats = 2, kMoreRepeats = 6;

// Grids in the order in which they are measured: on a slow machine the time ends before the last.
enum class Grid { kCorners, kCoarse, kFine };

constexpr size_t kCoarseLengths = 4;  // draft lengths
// Row counts to measure where a pass may have any number of rows.
constexpr int32_t kCoarseRows[] = {2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};
constexpr int32_t kFineRows[] = {2,  3,  4,  5,  6,  7,  8,  9,   10,  11,  12,  13,  14,  15,  16,  20,  24,  28,
                                 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024};

// Takes the shortest, the longest, and lengths that halve the gaps.
std::vector<int32_t> lengths_of(Grid grid, const std::vector<int32_t>& lengths) {
  if (grid == Grid::kFine) return lengths;
  std::set<int32_t> some = {lengths.front(), lengths.back()};
  const size_t most = grid == Grid::kCorners ? 2 : kCoarseLengths;
  for (int32_t wanted = lengths.back(); wanted > 0 && some.size() < most; wanted = (wanted - 1) / 2) {
    some.insert(*std::ranges::lower_bound(lengths, wanted));
  }
  return {some.begin(), some.end()};
}

auto key_of(const RoundShape& shape) {
  return std::tuple(shape.requests, shape.drafter, shape.draft, shape.verify_rows);
}

// Orders shapes by cost: a drafted row costs a fraction of a verified one.
int32_t weight_of(const RoundShape& shape) {
  return 2 * shape.verify_rows + shape.requests * shape.draft;
}

// Returns shapes with empty contexts, the cheapest first.
std::vector<RoundShape> shapes_to_measure(const RoundGeometry& geometry, const MeasurePlan& plan, Grid grid) {
  const int64_t room = plan.pages / plan.pages_per_slot(geometry.block_size);
  const auto most = static_cast<int32_t>(std::min<int64_t>({plan.slots, room, plan.max_rows}));
  std::set<int32_t> counts = {1, most};  // numbers of requests
  for (int32_t n = 1; grid != Grid::kCorners && n < most; n *= 2) counts.insert(n);
  std::span<const int32_t> row_sizes = geometry.row_buckets;
  if (row_sizes.empty()) row_sizes = grid == Grid::kFine ? std::span<const int32_t>(kFineRows) : kCoarseRows;

  std::vector<RoundShape> shapes;
  const auto add = [&](int32_t requests, size_t drafter, int32_t draft, int32_t rows) {
    const int32_t all = requests * (draft + 1);
    const bool possible = rows == all || rows <= geometry.most_shared_rows;
    if (possible && rows >= requests && rows <= all && rows <= plan.max_rows) {
      shapes.push_back({requests, draft, rows, 0, 0, 0, static_cast<int32_t>(drafter)});
    }
  };
  size_t longest = 0;  // the drafter of the longest blocks
  for (size_t i = 0; i < geometry.draft_lengths.size(); ++i) {
    if (geometry.draft_lengths[i].back() == geometry.block_size - 1) longest = i;
  }
  for (const int32_t n : counts) {
    add(n, 0, 0, n);
    // Measures the drafters with as few rows beside them as possible.
    const auto least = std::ranges::upper_bound(row_sizes, n);
    for (size_t drafter = 0; drafter < geometry.draft_lengths.size(); ++drafter) {
      for (const int32_t length : lengths_of(grid, geometry.draft_lengths[drafter])) {
        const int32_t all = n * (length + 1);
        add(n, drafter, length, least == row_sizes.end() ? all : std::min(*least, all));
      }
    }
    if (n == 1 || grid != Grid::kCorners) add(n, longest, geometry.block_size - 1, n * geometry.block_size);
  }
  // Measures rows with as few drafts beside them as possible.
  const int32_t most_rows = std::min({geometry.most_shared_rows, most * geometry.block_size, plan.max_rows});
  const int32_t most_of_sizes = *std::prev(std::ranges::upper_bound(row_sizes, std::max(most_rows, row_sizes.front())));
  for (const int32_t rows : row_sizes) {
    const int32_t n = (rows + geometry.block_size - 1) / geometry.block_size;
    if (n <= most && (grid != Grid::kCorners || rows == most_of_sizes)) add(n, longest, geometry.block_size - 1, rows);
  }
  std::ranges::sort(shapes, {}, [](const RoundShape& shape) { return std::tuple(weight_of(shape), key_of(shape)); });
  const auto same = [](const RoundShape& a, const RoundShape& b) { return key_of(a) == key_of(b); };
  shapes.erase(std::unique(shapes.begin(), shapes.end(), same), shapes.end());
  return shapes;
}

}  // namespace

int32_t MeasurePlan::rounds_per_start() const {
  constexpr int32_t kMost = 64;
  return std::min(kMost, max_model_len - 1);
}

int32_t MeasurePlan::pages_per_slot(int32_t block_size) const {
  return (1 + rounds_per_start() + block_size + page_size - 1) / page_size;
}

KvCosts guess_kv_costs(const MeasurePlan& plan, std::span<const CostSample> samples) {
  std::vector<CurvePoint> points;
  for (const CostSample& sample : samples) {
    points.push_back({static_cast<double>(sample.shape.verify_rows), sample.seconds.rest});
  }
  const Curve rest(std::move(points));
  const CurvePoint last = rest.points().back();
  const double per_byte = rest.at(1) / plan.target_weight_bytes;
  const double per_row = (rest.at(2 * last.x) - last.y) / last.x;
  KvCosts costs;
  costs.rest = plan.target_kv_bytes * per_byte;
  for (const double bytes : plan.draft_kv_bytes) costs.draft.push_back(bytes * per_byte);
  // A weight takes two operations, and so does a value of K or V for each head that uses it. Attention multiplies more
  // slowly, but a guess that is too low is tried and so corrected sooner.
  costs.row = per_row * plan.heads_per_kv_head * plan.target_kv_bytes / plan.target_weight_bytes;
  return costs;
}

Result<CostModel> measure_costs(const RoundGeometry& geometry, const MeasurePlan& plan, const RunRound& run,
                                const std::function<void(double)>& progress) {
  std::map<decltype(key_of({})), CostSample> samples;
  double spent = 0;
  std::set<int32_t> drafted;  // drafters that were measured
  const auto measure = [&](const RoundShape& shape, int32_t repeats) -> Status {
    for (int32_t i = 0; i < repeats; ++i) {
      VOLLEY_ASSIGN(const CostSample ran, run(shape));
      CostSample& fastest = samples.try_emplace(key_of(shape), ran).first->second;
      if (ran.seconds.rest < fastest.seconds.rest) fastest.experts = ran.experts;
      fastest.seconds = {std::min(fastest.seconds.draft, ran.seconds.draft),
                         std::min(fastest.seconds.rest, ran.seconds.rest)};
      spent += ran.seconds.total();
    }
    if (shape.draft > 0) drafted.insert(shape.drafter);
    if (progress) progress(std::min(1.0, spent / plan.seconds));
    return {};
  };
  for (const Grid grid : {Grid::kCorners, Grid::kCoarse, Grid::kFine}) {
    double seconds_per_weight = 0;  // from the last, smaller shape
    for (const RoundShape& shape : shapes_to_measure(geometry, plan, grid)) {
      if (!samples.contains(key_of(shape))) {
        // All plain rounds are measured: they are few, and every other shape is compared with them.
        const bool fits = spent + seconds_per_weight * weight_of(shape) < plan.seconds;
        if (!fits && shape.draft > 0 && drafted.contains(shape.drafter)) continue;
        VOLLEY_RETURN_IF_ERROR(measure(shape, grid == Grid::kCorners ? 1 : kFirstRepeats));
      }
      seconds_per_weight = samples.at(key_of(shape)).seconds.total() / weight_of(shape);
    }
    if (grid != Grid::kCorners) continue;
    // Each shape runs once more in any case: its first run may have touched new memory.
    for (const RoundShape& shape : shapes_to_measure(geometry, plan, grid)) {
      if (shape.draft == 0) VOLLEY_RETURN_IF_ERROR(measure(shape, 1));
    }
  }
  for (int32_t i = 0; i < kMoreRepeats; ++i) {
    const auto measured = samples;
    for (const auto& [key, sample] : measured) {
      if (spent < plan.seconds) VOLLEY_RETURN_IF_ERROR(measure(sample.shape, 1));
    }
  }
  std::vector<CostSample> all;
  for (const auto& [key, sample] : samples) all.push_back(sample);
  const KvCosts kv = guess_kv_costs(plan, all);
  return CostModel(std::move(all), kv, plan.experts);
}

}  // namespace volley::decode
