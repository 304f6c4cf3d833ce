#include "decode/budget/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "base/check.h"

namespace volley::decode {
namespace {

constexpr double square(double x) {
  return x * x;
}

// Variances of the factors' logarithms: at the start, and added each round.
constexpr double kShapeSpread = square(0.03), kShapeDrift = square(0.0005);
constexpr double kKvSpread = square(0.5), kKvDrift = square(0.002);
// Rows of one text choose more alike than independent ones. Only rounds show by how much, so the experts' factor starts
// with a wide spread.
constexpr double kExpertSpread = square(0.2), kExpertDrift = square(0.002);
constexpr double kSpeedSpread = square(0.1), kSpeedDrift = square(0.01);
// Added when the number of requests changes by a factor of e: a GPU under its power limit changes its clock.
constexpr double kSpeedAtOtherLoad = square(0.05);
// The variance of the unexplained part is estimated from the errors themselves.
constexpr double kFirstNoise = square(0.1), kLeastNoise = square(0.005), kMostNoise = square(1.0);
constexpr double kNoiseRate = 0.05;
// a round may be off by this many standard deviations; the rest of its error is ignored
constexpr double kOutlier = 3;
constexpr double kMostFactor = 16;  // corrections stay within this factor of the measured curves

double bounded(double factor) {
  return std::clamp(factor, 1 / kMostFactor, kMostFactor);
}

// Compares each pass with the one that touched fewest experts, and takes the least time for an additional expert. Other
// costs of more rows and disturbances only add time, so the least is nearest the truth and leaves a positive rest.
double seconds_per_expert(std::span<const CostSample> samples) {
  const auto fewest =
      std::ranges::min_element(samples, {}, [](const CostSample& s) { return std::pair(s.experts, s.seconds.rest); });
  // Caps the result: without other evidence, half of that pass's time belongs to its experts.
  double least = fewest->experts > 0 ? 0.5 * fewest->seconds.rest / fewest->experts : 0;
  for (const CostSample& sample : samples) {
    // A few experts more or less are noise.
    if (sample.experts < 1.25 * fewest->experts || sample.experts == 0) continue;
    least = std::min(least, (sample.seconds.rest - fewest->seconds.rest) / (sample.experts - fewest->experts));
  }
  return std::max(least, 0.0);
}

double log_error(double measured, double predicted) {
  return measured > 0 && predicted > 0 ? std::log(measured / predicted) : 0;
}

}  // namespace

Curve::Curve(std::vector<CurvePoint> points) {
  // Walks from the largest point to the smallest.
  std::ranges::sort(points, [](const CurvePoint& a, const CurvePoint& b) { return a.x > b.x; });
  for (const CurvePoint& point : points) {
    const double least = points_.empty() ? point.y : std::min(point.y, points_.back().y);
    if (!points_.empty() && points_.back().x == point.x) points_.pop_back();
    points_.push_back({point.x, least});
  }
  std::ranges::reverse(points_);
  if (points_.empty()) return;
  const CurvePoint last = points_.back();
  if (last.x > 0) last_slope_ = last.y / last.x / 2;
  if (points_.size() > 1) {
    const CurvePoint before = points_[points_.size() - 2];
    last_slope_ = std::max(last_slope_, (last.y - before.y) / (last.x - before.x));
  }
}

double Curve::at(double x) const {
  VOLLEY_CHECK(!points_.empty());
  const auto above = std::ranges::upper_bound(points_, x, {}, &CurvePoint::x);
  if (above == points_.begin()) return points_.front().y;
  const CurvePoint& low = *std::prev(above);
  if (above == points_.end()) return low.y + (x - low.x) * last_slope_;
  return low.y + (above->y - low.y) * (x - low.x) / (above->x - low.x);
}

CostModel::Knot CostModel::knot_of(double rows) {
  const double at = std::clamp(2.0 * std::log2(std::max(static_cast<float>(rows), 1.0f)), 0.0, kKnots - 1.001);
  const int index = static_cast<int>(at);
  return {index, at - index};
}

double CostModel::factor_at(const RowFactors& factors, double rows) {
  const Knot knot = knot_of(rows);
  const double low = factors[knot.index].value, high = factors[knot.index + 1].value;
  return low + (high - low) * knot.above;
}

void CostModel::forget_variances() {
  for (Factor& factor : row_factors_) factor.variance = kShapeSpread;
  for (Drafter& drafter : drafters_) {
    for (DraftCurve& draft : drafter.curves) draft.factor.variance = kShapeSpread;
    drafter.kv_factor.variance = kKvSpread;
  }
  for (Factor* factor : {&kv_rest_, &kv_row_}) factor->variance = kKvSpread;
  experts_differ_.variance = kExpertSpread;
  speed_.variance = kSpeedSpread;
  draft_noise_ = rest_noise_ = {kFirstNoise, 0};
}

void CostModel::drift(int32_t requests) {
  const auto wander = [](Factor& factor, double drift, double spread) {
    factor.variance = std::min(factor.variance + drift, spread);
  };
  for (Factor& factor : row_factors_) wander(factor, kShapeDrift, kShapeSpread);
  for (Drafter& drafter : drafters_) {
    for (DraftCurve& draft : drafter.curves) wander(draft.factor, kShapeDrift, kShapeSpread);
    wander(drafter.kv_factor, kKvDrift, kKvSpread);
  }
  for (Factor* factor : {&kv_rest_, &kv_row_}) wander(*factor, kKvDrift, kKvSpread);
  wander(experts_differ_, kExpertDrift, kExpertSpread);
  const double change = last_requests_ > 0 ? std::log(static_cast<double>(requests) / last_requests_) : 0;
  wander(speed_, kSpeedDrift + kSpeedAtOtherLoad * square(change), kSpeedSpread);
  last_requests_ = requests;
}

void CostModel::learn(std::span<const Share> shares, double error, Noise& noise) {
  double known = 0;
  for (const auto& [factor, part] : shares) known += square(part) * factor->variance;
  const double variance = known + noise.variance, most = kOutlier * std::sqrt(variance);
  const double step = std::clamp(error, -most, most);
  for (const auto& [factor, part] : shares) {
    const double gain = factor->variance * part / variance;
    factor->value = bounded(factor->value * std::exp(gain * step));
    factor->variance *= 1 - gain * part;
  }
  // The rate is high at first, because rounds teach little while the noise seems large.
  const double rate = std::max(kNoiseRate, 1.0 / (2 + noise.seen));
  if (rate > kNoiseRate) ++noise.seen;
  noise.variance += rate * (std::clamp(square(step) - known, kLeastNoise, kMostNoise) - noise.variance);
}

double ExpertCosts::distinct(double rows) const {
  if (layers == 0) return 0;
  return static_cast<double>(layers) * count * (1 - std::pow(1 - static_cast<double>(top_k) / count, rows));
}

CostModel::CostModel(std::vector<CostSample> samples, KvCosts kv, ExpertCosts experts)
    : kv_rest_s_(kv.rest), kv_row_s_(kv.row), experts_(experts) {
  if (experts_.layers > 0) experts_.seconds = seconds_per_expert(samples);
  std::map<std::pair<int32_t, int32_t>, std::vector<CurvePoint>> drafts;  // by drafter and length
  std::vector<CurvePoint> rest;
  for (const auto& [shape, seconds, touched] : samples) {
    const double beside = seconds.rest - experts_.seconds * touched;
    rest.push_back({static_cast<double>(shape.verify_rows + shape.other_rows), beside});
    if (shape.draft == 0) continue;
    drafts[{shape.drafter, shape.draft}].push_back({static_cast<double>(shape.requests), seconds.draft});
  }
  VOLLEY_CHECK(!rest.empty());
  rest_ = Curve(std::move(rest));
  for (auto& [key, points] : drafts) {
    const auto [drafter, length] = key;
    if (std::ssize(drafters_) <= drafter) drafters_.resize(static_cast<size_t>(drafter) + 1);
    drafters_.back().curves.push_back({length, Curve(std::move(points))});
  }
  for (size_t i = 0; i < drafters_.size(); ++i) {
    complete_drafts(drafters_[i].curves);
    if (i < kv.draft.size()) drafters_[i].kv = kv.draft[i];
  }
  forget_variances();
  mixed_ = {0, true};
}

// Extrapolates lengths that were measured for fewer requests than others. The ratio to the interpolation of a length's
// neighbours stays what it was at the last measured number of requests.
void CostModel::complete_drafts(std::vector<DraftCurve>& drafts) {
  double most = 0;
  for (const DraftCurve& draft : drafts) most = std::max(most, draft.seconds.points().back().x);
  std::vector<DraftCurve> complete;
  for (const DraftCurve& draft : drafts) {
    if (draft.seconds.points().back().x == most) complete.push_back(draft);
  }
  for (DraftCurve& draft : drafts) {
    const CurvePoint last = draft.seconds.points().back();
    if (last.x == most) continue;
    const auto above = std::ranges::lower_bound(complete, draft.length, {}, &DraftCurve::length);
    const DraftCurve& high = above == complete.end() ? complete.back() : *above;
    const DraftCurve& low = above == complete.begin() ? high : *std::prev(above);
    const double span = high.length - low.length, part = span > 0 ? (draft.length - low.length) / span : 0;
    const auto between = [&](double x) { return low.seconds.at(x) * (1 - part) + high.seconds.at(x) * part; };
    std::vector<CurvePoint> points(draft.seconds.points().begin(), draft.seconds.points().end());
    for (const CurvePoint& point : high.seconds.points()) {
      if (point.x > last.x) points.push_back({point.x, between(point.x) * last.y / between(last.x)});
    }
    draft.seconds = Curve(std::move(points));
  }
}

const CostModel::Drafter& CostModel::drafter_of(const RoundShape& shape) const {
  const bool known = shape.drafter < std::ssize(drafters_) && !drafters_[shape.drafter].curves.empty();
  VOLLEY_CHECK_MSG(known, "the cost of drafting was not measured");
  return drafters_[shape.drafter];
}

CostModel::Length CostModel::find(const Drafter& drafter, int32_t draft_length) {
  const std::vector<DraftCurve>& curves = drafter.curves;
  const auto found = std::ranges::lower_bound(curves, draft_length, {}, &DraftCurve::length);
  const size_t last = curves.size() - 1, high = std::min<size_t>(found - curves.begin(), last);
  if (high == 0 || found == curves.end()) return {high, high, 0};
  const double below = curves[high - 1].length;
  return {high - 1, high, (draft_length - below) / (curves[high].length - below)};
}

CostModel::DraftParts CostModel::draft_parts(const RoundShape& shape) const {
  if (shape.draft == 0) return {};
  const Drafter& drafter = drafter_of(shape);
  const Length length = find(drafter, shape.draft);
  const auto at = [&](const DraftCurve& curve) { return curve.factor.value * curve.seconds.at(shape.requests); };
  const double pass =
      at(drafter.curves[length.low]) * (1 - length.above) + at(drafter.curves[length.high]) * length.above;
  return {speed_.value * pass, drafter.kv_factor.value * drafter.kv * static_cast<double>(shape.kv_tokens)};
}

CostModel::RestParts CostModel::rest_parts(const RoundShape& shape) const {
  const double rows = shape.verify_rows + shape.other_rows;
  RestParts parts = {.rows = speed_.value * factor_at(row_factors_, rows) * rest_.at(rows)};
  parts.experts = speed_.value * experts_differ_.value * experts_.seconds * experts_.distinct(rows);
  if (shape.requests > 0) {
    const auto kv_tokens = static_cast<double>(shape.kv_tokens);
    parts.kv_read = kv_rest_.value * kv_rest_s_ * kv_tokens;
    parts.kv_row = kv_row_.value * kv_row_s_ * kv_tokens * shape.verify_rows / shape.requests;
  }
  return parts;
}

double CostModel::predict_draft(const RoundShape& shape) const {
  return draft_parts(shape).seconds();
}

double CostModel::predict_rest(const RoundShape& shape) const {
  return rest_parts(shape).seconds();
}

void CostModel::expect_steps(double typical_s, bool by_shape) {
  VOLLEY_CHECK(measured() || !by_shape);
  if (!mixed_.priced()) mixed_ = {typical_s, by_shape};
}

double CostModel::decoding(const RoundShape& shape) const {
  return shape.requests > 0 ? mixed_.base(mixed(shape).decoding_s) : 0;
}

MixedSteps::Step CostModel::mixed(const RoundShape& shape) const {
  RoundShape alone = shape;
  alone.other_rows = 0;
  return {.decode_rows = shape.verify_rows,
          .decoding_s = measured() && shape.requests > 0 ? predict(alone).total() : 0,
          .prompt_rows = shape.other_rows,
          .prompt_positions = static_cast<double>(shape.other_positions)};
}

void CostModel::observe(const RoundShape& shape, const RoundSeconds& seconds) {
  mixed_.observe(mixed(shape), seconds.total());
  if (!measured() || shape.requests == 0 || shape.other_rows > 0) return;
  drift(shape.requests);
  const RestParts r = rest_parts(shape);
  const double rest = r.seconds();
  const Knot knot = knot_of(shape.verify_rows);
  const double rows_part = r.rows / rest, experts_part = r.experts / rest;
  const Share rest_shares[] = {{&speed_, rows_part + experts_part},
                               {&experts_differ_, experts_part},
                               {&row_factors_[knot.index], rows_part * (1 - knot.above)},
                               {&row_factors_[knot.index + 1], rows_part * knot.above},
                               {&kv_rest_, r.kv_read / rest},
                               {&kv_row_, r.kv_row / rest}};
  learn(rest_shares, log_error(seconds.rest, rest), rest_noise_);
  const DraftParts d = draft_parts(shape);  // computed after learn(), so that its corrections do not count twice
  const double draft = d.seconds();
  if (shape.draft == 0 || !(draft > 0)) return;
  Drafter& drafter = drafters_[shape.drafter];
  const Length length = find(drafter, shape.draft);
  const double draft_part = d.pass / draft;
  const Share draft_shares[] = {{&speed_, draft_part},
                                {&drafter.curves[length.low].factor, draft_part * (1 - length.above)},
                                {&drafter.curves[length.high].factor, draft_part * length.above},
                                {&drafter.kv_factor, d.kv / draft}};
  learn(draft_shares, log_error(seconds.draft, draft), draft_noise_);
}

}  // namespace volley::decode
