#include "ops/choice/filters.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "base/check.h"

namespace volley::ops::choice {
namespace {

// Usually a few hundred tokens near the peak hold the cut, so look there first.
constexpr std::array<float, 3> kWindows = {5.0f, 12.0f, kWindow};

bool comes_before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

double weight_sum(std::span<const Candidate> candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + static_cast<double>(c.weight); });
}

std::span<Candidate> gather_row(const Row& row, const Slices& slices, float window, Candidate* candidates) {
  std::array<int32_t, Slices::kMax> counts;
  slices.each([&](int32_t slice, int32_t begin, int32_t end) {
    counts[slice] = gather(row, begin, end, window, candidates + begin);
  });
  int32_t total = counts[0];
  for (int32_t slice = 1; slice < slices.count(); ++slice) {
    const Candidate* from = candidates + slice * Slices::kTokens;
    std::copy(from, from + counts[slice], candidates + total);
    total += counts[slice];
  }
  return {candidates, static_cast<size_t>(total)};
}

std::span<Candidate> keep_first(std::span<Candidate> candidates, size_t count) {
  std::nth_element(candidates.begin(), candidates.begin() + (count - 1), candidates.end(), comes_before);
  return candidates.first(count);
}

// Narrows [low, high), where the shortest beginning that weighs `target` ends, from all candidates to those of one bin
// of values. `before` becomes the weight of candidates[0 .. low), which then come first.
void narrow_to_bin(std::span<Candidate> candidates, float peak, float window, double target, size_t& low, size_t& high,
                   double& before) {
  constexpr int kBins = 512;
  const float scale = kBins / window;
  const auto bin_of = [&](const Candidate& c) {  // monotone in the value
    return std::min(kBins - 1, static_cast<int>((peak - c.value) * scale));
  };
  std::array<double, kBins> bins{};
  for (const Candidate& c : candidates) bins[bin_of(c)] += static_cast<double>(c.weight);
  int bin = 0;
  while (bin < kBins - 1 && before + bins[bin] < target) before += bins[bin++];
  const auto begin =
      std::partition(candidates.begin(), candidates.end(), [&](const auto& c) { return bin_of(c) < bin; });
  const auto end = std::partition(begin, candidates.end(), [&](const auto& c) { return bin_of(c) == bin; });
  low = static_cast<size_t>(begin - candidates.begin());
  high = static_cast<size_t>(end - candidates.begin());
}

// The shortest beginning, at least one token, that weighs `target` or more. Whole weights make the sums exact, so that
// it does not matter in which order they are taken. Halves the part that holds the end: linear in the candidates.
std::span<Candidate> keep_weight(std::span<Candidate> candidates, float peak, float window, double target) {
  size_t low = 0;
  size_t high = candidates.size();
  double before = 0.0;  // the weight of candidates[0 .. low), less than target
  narrow_to_bin(candidates, peak, window, target, low, high, before);
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(candidates.begin() + low, candidates.begin() + middle, candidates.begin() + high, comes_before);
    const double upper = weight_sum(candidates.subspan(low, middle - low));
    if (before + upper >= target) {
      high = middle;
    } else {
      before += upper;
      low = middle;
    }
  }
  return candidates.first(high);
}

Cut cut_after_last(std::span<const Candidate> kept) {
  const Candidate& last = *std::max_element(kept.begin(), kept.end(), comes_before);
  return {last.value, last.id};
}

}  // namespace

double row_weight(const Row& row, const Slices& slices) {
  std::array<double, Slices::kMax> sums;
  slices.each([&](int32_t slice, int32_t begin, int32_t end) { sums[slice] = kept_weight(row, begin, end); });
  return std::accumulate(sums.begin(), sums.begin() + slices.count(), 0.0);
}

Cut find_cut(const Row& row, const Slot& slot, const Slices& slices, Candidate* candidates) {
  const SamplingParams& params = slot.sampling.params;
  const size_t top_k = static_cast<size_t>(slot.rule.top_k);
  Row kept = row;
  if (params.min_p > 0.0f) kept.cut.value = static_cast<float>(static_cast<double>(row.peak) + slot.rule.log_min_p);
  if (top_k == 0 && params.top_p >= 1.0f) return kept.cut;

  double total = -1.0;  // weight of all tokens that min-p keeps, once known
  for (const float window : kWindows) {
    std::span<Candidate> c = gather_row(kept, slices, window, candidates);
    bool complete = window == kWindow;  // c holds all that the filters so far keep
    const bool cut_by_k = top_k > 0 && c.size() > top_k;
    if (top_k > 0 && !cut_by_k && !complete) continue;
    if (cut_by_k) {
      c = keep_first(c, top_k);
      complete = true;
    }
    if (params.top_p >= 1.0f) return cut_by_k ? cut_after_last(c) : kept.cut;
    const double near = weight_sum(c);
    if (complete) {
      total = near;
    } else if (total < 0.0) {
      total = row_weight(kept, slices);
    }
    const double target = static_cast<double>(params.top_p) * total;
    if (near >= target) return cut_after_last(keep_weight(c, row.peak, window, target));
  }
  VOLLEY_CHECK_MSG(false, "the widest window holds the whole weight");
  return kept.cut;
}

}  // namespace volley::ops::choice
