// Writes and reads a cost model as text, for the cache file.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "decode/budget/cost_model.h"

namespace volley::decode {
namespace {

using nlohmann::json;

constexpr int kFormat = 5;

json points_of(const Curve& curve) {
  json points = json::array();
  for (const CurvePoint& point : curve.points()) points.push_back({point.x, point.y});
  return points;
}

template <typename Factors>
json values_of(const Factors& factors) {
  json values = json::array();
  for (const auto& factor : factors) values.push_back(factor.value);
  return values;
}

// Returns false for a wrong number of factors.
template <typename Factors>
bool set_values(const json& values, Factors& factors) {
  for (size_t i = 0; i < factors.size(); ++i) factors[i].value = values.at(i).get<double>();
  return values.size() == factors.size();
}

bool usable(double seconds) {
  return std::isfinite(seconds) && seconds >= 0;
}

// Throws json::exception if this is no list of points. The curve is empty if the values make no sense.
Curve curve_of(const json& points) {
  std::vector<CurvePoint> out;
  for (const json& point : points) {
    out.push_back({point.at(0).get<double>(), point.at(1).get<double>()});
    if (!usable(out.back().x) || !usable(out.back().y) || out.back().y == 0) return {};
  }
  return Curve(std::move(out));
}

Error damaged() {
  return data_loss("The file of a round's costs is damaged: delete it, and they are measured again.");
}

}  // namespace

// Keeps the measured curves and the corrections of shapes. The machine's speed may differ at the next start.
std::string CostModel::to_text(std::string_view key) const {
  json out;
  out["format"] = kFormat;
  out["key"] = key;
  out["drafters"] = json::array();
  for (const Drafter& drafter : drafters_) {
    json curves = json::array();
    for (const DraftCurve& draft : drafter.curves) {
      curves.push_back(
          {{"length", draft.length}, {"factor", draft.factor.value}, {"seconds", points_of(draft.seconds)}});
    }
    out["drafters"].push_back({{"lengths", std::move(curves)}, {"kv", drafter.kv * drafter.kv_factor.value}});
  }
  out["rest"] = points_of(rest_);
  out["row_factors"] = values_of(row_factors_);
  out["kv"] = {{"rest", kv_rest_s_ * kv_rest_.value}, {"row", kv_row_s_ * kv_row_.value}};
  out["experts"] = {{"layers", experts_.layers},
                    {"count", experts_.count},
                    {"top_k", experts_.top_k},
                    {"seconds", experts_.seconds},
                    {"factor", experts_differ_.value}};
  return out.dump(1) + "\n";
}

Result<CostModel> CostModel::from_text(std::string_view text, std::string_view key) {
  try {
    const json in = json::parse(text);
    if (in.at("format").get<int>() != kFormat || in.at("key").get<std::string>() != key) {
      return failed_precondition("The costs of a round in this file are those of another device, model or build.");
    }
    const json& kv = in.at("kv");
    CostModel model;
    model.kv_rest_s_ = kv.at("rest").get<double>();
    model.kv_row_s_ = kv.at("row").get<double>();
    const json& experts = in.at("experts");
    model.experts_ = {experts.at("layers").get<int32_t>(), experts.at("count").get<int32_t>(),
                      experts.at("top_k").get<int32_t>(), experts.at("seconds").get<double>()};
    model.experts_differ_.value = experts.at("factor").get<double>();
    for (const json& entry : in.at("drafters")) {
      Drafter& drafter = model.drafters_.emplace_back();
      drafter.kv = entry.at("kv").get<double>();
      for (const json& draft : entry.at("lengths")) {
        drafter.curves.push_back({draft.at("length").get<int32_t>(), curve_of(draft.at("seconds"))});
        drafter.curves.back().factor.value = draft.at("factor").get<double>();
      }
    }
    model.rest_ = curve_of(in.at("rest"));
    if (!set_values(in.at("row_factors"), model.row_factors_) || !model.sane()) return damaged();
    model.forget_variances();
    model.mixed_ = {0, true};
    return model;
  } catch (const json::exception&) {
    return damaged();
  }
}

bool CostModel::sane() const {
  if (rest_.empty() || drafters_.empty() || !usable(kv_rest_s_) || !usable(kv_row_s_)) return false;
  const auto positive = [](const Factor& factor) { return usable(factor.value) && factor.value > 0; };
  if (!std::ranges::all_of(row_factors_, positive) || !positive(experts_differ_)) return false;
  const ExpertCosts& e = experts_;
  if (e.layers < 0 || (e.layers > 0 && (e.top_k < 1 || e.count < e.top_k)) || !usable(e.seconds)) return false;
  return std::ranges::all_of(drafters_, [&](const Drafter& drafter) {
    int32_t before = 0;
    for (const DraftCurve& draft : drafter.curves) {
      if (draft.length <= before || draft.seconds.empty() || !positive(draft.factor)) return false;
      before = draft.length;
    }
    return before > 0 && usable(drafter.kv);
  });
}

}  // namespace volley::decode
