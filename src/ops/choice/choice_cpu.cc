// Kernels of kernels.h, once per instruction set.

// Highway's plain HWY_SCALAR fallback lacks operations that need two lanes. With compilers that may miscompile 16-bit
// products of the complete one, HWY_EMU128, it must be asked for; no such product is used here, and the tests run it.
#define HWY_BROKEN_EMU128 0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/choice/choice_cpu.cc"
#include <hwy/foreach_target.h>
// Highway's own header must come after the line above.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "ops/choice/kernels.h"
#include "ops/choice/noise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace volley::ops::choice::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kMaxLanes = HWY_MAX_BYTES / sizeof(float);

// Values of a full vector, or the last ones padded with -inf: the same arithmetic for every token of a row.
HWY_INLINE VF load_padded(const float* values, int32_t left) {
  const DF d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  if (left >= lanes) return hn::LoadU(d, values);
  HWY_ALIGN float padded[kMaxLanes];
  for (int32_t i = 0; i < lanes; ++i) padded[i] = i < left ? values[i] : -kInfinity;
  return hn::Load(d, padded);
}

// Processed logits of the tokens id, id + 1, …, -inf where the cut drops a token or `end` is reached.
HWY_INLINE VF load_kept(const Row& row, int32_t id, int32_t end) {
  const DF d;
  const DI di;
  const VF z = hn::Div(load_padded(row.values + id, end - id), hn::Set(d, row.divisor));
  const VF value = hn::Set(d, row.cut.value);
  const auto tie = hn::Not(hn::Gt(hn::Iota(di, id), hn::Set(di, row.cut.last_id)));
  const auto keep = hn::Or(hn::Gt(z, value), hn::And(hn::Eq(z, value), hn::RebindMask(d, tie)));
  return hn::IfThenElse(keep, z, hn::Set(d, -kInfinity));
}

Scan ScanImpl(const float* HWY_RESTRICT values, int32_t begin, int32_t end) {
  const DF d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const VF infinity = hn::Set(d, kInfinity);
  VF max0 = hn::Set(d, -kInfinity);
  VF max1 = max0;
  auto usable = hn::Lt(max0, infinity);
  int32_t i = begin;
  for (; i + 2 * lanes <= end; i += 2 * lanes) {
    const VF v0 = hn::LoadU(d, values + i);
    const VF v1 = hn::LoadU(d, values + i + lanes);
    max0 = hn::Max(max0, v0);
    max1 = hn::Max(max1, v1);
    usable = hn::And(usable, hn::And(hn::Lt(v0, infinity), hn::Lt(v1, infinity)));  // false for NaN
  }
  for (; i < end; i += lanes) {
    const VF v = load_padded(values + i, end - i);
    max0 = hn::Max(max0, v);
    usable = hn::And(usable, hn::Lt(v, infinity));
  }
  return {hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1))), hn::AllTrue(d, usable)};
}

int32_t FindAtLeastImpl(const float* HWY_RESTRICT values, int32_t begin, int32_t end, float threshold) {
  const DF d;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const VF bound = hn::Set(d, threshold);
  int32_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const auto first = hn::FindFirstTrue(d, hn::Ge(hn::LoadU(d, values + i), bound));
    if (first >= 0) return i + static_cast<int32_t>(first);
  }
  for (; i < end; ++i) {
    if (values[i] >= threshold) return i;
  }
  return end;
}

double KeptWeightImpl(const Row& row, int32_t begin, int32_t end) {
  const DF d;
  const hn::Half<DF> dh;
  const hn::RepartitionToWide<DF> dd;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const VF peak = hn::Set(d, row.peak);
  const VF lowest = hn::Set(d, -kWindow);
  auto sum0 = hn::Zero(dd);
  auto sum1 = hn::Zero(dd);
  for (int32_t i = begin; i < end; i += lanes) {
    const VF x = hn::Sub(load_kept(row, i, end), peak);
    const auto counts = hn::Ge(x, lowest);
    if (hn::AllFalse(d, counts)) continue;
    const VF w = hn::IfThenElseZero(counts, weight_of(x));
    sum0 = hn::Add(sum0, hn::PromoteTo(dd, hn::LowerHalf(dh, w)));
    sum1 = hn::Add(sum1, hn::PromoteTo(dd, hn::UpperHalf(dh, w)));
  }
  return hn::GetLane(hn::SumOfLanes(dd, hn::Add(sum0, sum1)));
}

int32_t GatherImpl(const Row& row, int32_t begin, int32_t end, float window, Candidate* HWY_RESTRICT out) {
  const DF d;
  const DI di;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const VF peak = hn::Set(d, row.peak);
  const VF lowest = hn::Set(d, -window);
  HWY_ALIGN float value[kMaxLanes];
  HWY_ALIGN float weight[kMaxLanes];
  HWY_ALIGN int32_t id[kMaxLanes];
  int32_t count = 0;
  for (int32_t i = begin; i < end; i += lanes) {
    const VF z = load_kept(row, i, end);
    const VF x = hn::Sub(z, peak);
    const auto near = hn::Ge(x, lowest);
    if (hn::AllFalse(d, near)) continue;
    hn::CompressStore(z, near, d, value);
    hn::CompressStore(weight_of(x), near, d, weight);
    hn::CompressStore(hn::Iota(di, i), hn::RebindMask(di, near), di, id);
    const int32_t found = static_cast<int32_t>(hn::CountTrue(d, near));
    for (int32_t j = 0; j < found; ++j) out[count++] = {value[j], id[j], weight[j]};
  }
  return count;
}

Scored BestNoisyImpl(const Row& row, int32_t begin, int32_t end, const PhiloxKey& noise, float floor) {
  const DF d;
  const DI di;
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(d));
  const VF most = hn::Set(d, kGumbelMax);
  VF bound = hn::Set(d, floor);
  VF best = hn::Set(d, -kInfinity);
  auto best_id = hn::Set(di, std::numeric_limits<int32_t>::max());
  HWY_ALIGN uint32_t words[2 * kMaxLanes];  // a batch of Philox blocks is two vectors of words
  for (int32_t i = begin; i < end; i += 2 * lanes) {
    const VF z0 = load_kept(row, i, end);
    const VF z1 = end - i > lanes ? load_kept(row, i + lanes, end) : hn::Set(d, -kInfinity);
    if (hn::AllFalse(d, hn::Ge(hn::Add(hn::Max(z0, z1), most), bound))) continue;
    philox_batch(noise, static_cast<uint32_t>(i) / 4, words);
    // Strictly greater keeps the lower id of a tie: within a lane ids ascend.
    const VF s0 = hn::Add(z0, gumbel_of(hn::Load(DU(), words)));
    const auto better0 = hn::Gt(s0, best);
    best = hn::IfThenElse(better0, s0, best);
    best_id = hn::IfThenElse(hn::RebindMask(di, better0), hn::Iota(di, i), best_id);
    const VF s1 = hn::Add(z1, gumbel_of(hn::Load(DU(), words + lanes)));
    const auto better1 = hn::Gt(s1, best);
    best = hn::IfThenElse(better1, s1, best);
    best_id = hn::IfThenElse(hn::RebindMask(di, better1), hn::Iota(di, i + lanes), best_id);
    bound = hn::Max(bound, hn::MaxOfLanes(d, best));
  }
  const VF top = hn::MaxOfLanes(d, best);
  const auto none = hn::Set(di, std::numeric_limits<int32_t>::max());
  const auto ids = hn::IfThenElse(hn::RebindMask(di, hn::Eq(best, top)), best_id, none);
  return {hn::GetLane(top), hn::GetLane(hn::MinOfLanes(di, ids))};
}

void PhiloxImpl(const PhiloxKey& key, uint32_t first, int32_t blocks, uint32_t* HWY_RESTRICT words) {
  const int32_t batch = static_cast<int32_t>(hn::Lanes(DU64()));
  HWY_ALIGN uint32_t buffer[2 * kMaxLanes];
  for (int32_t i = 0; i < blocks; i += batch) {
    philox_batch(key, first + static_cast<uint32_t>(i), buffer);
    std::copy_n(buffer, 4 * std::min(batch, blocks - i), words + 4 * i);
  }
}

void GumbelImpl(const uint32_t* HWY_RESTRICT words, int32_t n, float* HWY_RESTRICT noise) {
  const int32_t lanes = static_cast<int32_t>(hn::Lanes(DF()));
  HWY_ALIGN uint32_t in[kMaxLanes] = {};
  HWY_ALIGN float out[kMaxLanes];
  for (int32_t i = 0; i < n; i += lanes) {
    const int32_t count = std::min(lanes, n - i);
    std::copy_n(words + i, count, in);
    hn::Store(gumbel_of(hn::Load(DU(), in)), DF(), out);
    std::copy_n(out, count, noise + i);
  }
}

}  // namespace volley::ops::choice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace volley::ops::choice {

HWY_EXPORT(ScanImpl);
HWY_EXPORT(FindAtLeastImpl);
HWY_EXPORT(KeptWeightImpl);
HWY_EXPORT(GatherImpl);
HWY_EXPORT(BestNoisyImpl);
HWY_EXPORT(PhiloxImpl);
HWY_EXPORT(GumbelImpl);

Scan scan(const float* values, int32_t begin, int32_t end) {
  return HWY_DYNAMIC_DISPATCH(ScanImpl)(values, begin, end);
}

int32_t find_at_least(const float* values, int32_t begin, int32_t end, float threshold) {
  return HWY_DYNAMIC_DISPATCH(FindAtLeastImpl)(values, begin, end, threshold);
}

double kept_weight(const Row& row, int32_t begin, int32_t end) {
  return HWY_DYNAMIC_DISPATCH(KeptWeightImpl)(row, begin, end);
}

int32_t gather(const Row& row, int32_t begin, int32_t end, float window, Candidate* out) {
  return HWY_DYNAMIC_DISPATCH(GatherImpl)(row, begin, end, window, out);
}

Scored best_noisy(const Row& row, int32_t begin, int32_t end, const PhiloxKey& noise, float floor) {
  return HWY_DYNAMIC_DISPATCH(BestNoisyImpl)(row, begin, end, noise, floor);
}

void philox(const PhiloxKey& key, uint32_t first, int32_t blocks, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(PhiloxImpl)(key, first, blocks, words);
}

void gumbel(const uint32_t* words, int32_t n, float* noise) {
  HWY_DYNAMIC_DISPATCH(GumbelImpl)(words, n, noise);
}

}  // namespace volley::ops::choice
#endif
