#include "model/shard.h"

#include <algorithm>
#include <iterator>

#include "base/math.h"

namespace volley::model {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

std::vector<Divided> divided(const Decoder& spec) {
  std::vector<Divided> list;
  for (const Layer& layer : spec.layers) {
    for (Divided& d : layer.divided()) list.push_back(std::move(d));
  }
  return list;
}

// The first number that so many ranks cannot divide; null if they can divide all.
const Divided* undivided(const std::vector<Divided>& list, int ranks) {
  const auto found = std::ranges::find_if(list, [ranks](const Divided& d) { return !d.among(ranks); });
  return found == list.end() ? nullptr : &*found;
}

// Whether ranks can divide the width of each expert, where they cannot divide the experts.
bool cut_would_do(const Decoder& spec, int ranks) {
  if (!spec.divides_by_expert()) return false;
  Decoder cut = spec;
  cut.divide_by_expert(false);
  return undivided(divided(cut), ranks) == nullptr;
}

// The rank's rows of a run.
std::pair<int64_t, int64_t> share_of(const Param::Part::Run& run, int rank, int ranks) {
  if (run.heads > 0 && run.heads % ranks != 0) {
    VOLLEY_CHECK_EQ(ranks % run.heads, 0);
    const int64_t rows = run.rows / run.heads;
    return {rank * run.heads / ranks * rows, rows};
  }
  VOLLEY_CHECK_EQ(run.rows % ranks, 0);
  return {run.rows / ranks * rank, run.rows / ranks};
}

// Rows [first, first + n) of those that `ranges` list.
void append_slice(const Ranges& ranges, int64_t first, int64_t n, Ranges& out) {
  for (const auto& [begin, rows] : ranges) {
    const int64_t from = std::max<int64_t>(first, 0), to = std::min(first + n, rows);
    if (from < to) out.emplace_back(begin + from, to - from);
    first -= rows;
  }
}

// Restricts the part to these of its rows, (first, number) in load order.
void keep_rows(Param::Part& part, const Ranges& rows) {
  if (part.ranges.empty() && rows.size() == 1) {
    part.first += rows[0].first * part.step;
    part.rows = rows[0].second;
    return;
  }
  VOLLEY_CHECK_EQ(part.step, 1);
  Ranges kept;
  const Ranges all = part.ranges.empty() ? Ranges{{part.first, part.rows}} : part.ranges;
  for (const auto& [first, n] : rows) append_slice(all, first, n, kept);
  part.ranges = std::move(kept);
  part.rows = 0;
  for (const auto& [first, n] : part.ranges) part.rows += n;
}

void shard_rows(Param::Part& part, int rank, int ranks) {
  Ranges rows;
  if (part.split == Split::kVocab) {
    rows.push_back(vocabulary_part(part.rows, rank, ranks));
  } else {
    if (part.runs.empty()) part.runs = {{part.rows}};
    int64_t begin = 0;
    for (const Param::Part::Run& run : part.runs) {
      const auto [first, n] = share_of(run, rank, ranks);
      rows.emplace_back(begin + first, n);
      begin += run.rows;
    }
    VOLLEY_CHECK_EQ(begin, part.rows);
  }
  keep_rows(part, rows);
}

void keep_experts(Param& param, int rank, int ranks) {
  VOLLEY_CHECK_EQ(std::ssize(param.parts) % ranks, 0);
  const auto own = std::ssize(param.parts) / ranks, first = own * rank;
  std::vector<Param::Part> kept(std::make_move_iterator(param.parts.begin() + first),
                                std::make_move_iterator(param.parts.begin() + first + own));
  param.parts = std::move(kept);
}

void shard_param(Param& param, int rank, int ranks) {
  for (Param::Part& part : param.parts) part.stored = param.stored_shape(part);
  if (param.parts[0].split == Split::kExperts) keep_experts(param, rank, ranks);
  if (param.parts[0].split == Split::kInputs) {
    VOLLEY_CHECK_EQ(param.columns % ranks, 0);
    param.columns /= ranks;
    param.first_column = rank * param.columns;
  }
  for (Param::Part& part : param.parts) {
    if (part.split == Split::kOutputs || part.split == Split::kVocab) shard_rows(part, rank, ranks);
    part.split = Split::kNone;
    part.runs.clear();
  }
}

}  // namespace

Status check_ranks(const Decoder& spec, int ranks, const std::string& whose) {
  const std::vector<Divided> list = divided(spec);
  const Divided* wrong = undivided(list, ranks);
  if (wrong == nullptr) return {};
  int fits = ranks / 2;
  while (undivided(list, fits) != nullptr) fits /= 2;  // the number of ranks is chosen so that one fits
  const std::string n = std::to_string(ranks);
  const bool whole = wrong->experts > 0 && wrong->experts % ranks == 0;
  return invalid_argument("--tensor-parallel-size " + n + " needs " + whose + "'s " + wrong->what +
                          " to be a multiple of " + n + (wrong->shared ? " or a divisor of it" : "") + ", but it has " +
                          std::to_string(wrong->n) + ": use " + std::to_string(fits) +
                          (whole                       ? ", or --enable-expert-parallel."
                           : cut_would_do(spec, ranks) ? ", or leave --enable-expert-parallel out."
                                                       : "."));
}

Decoder shard_of(const Decoder& spec, int rank, int ranks) {
  VOLLEY_CHECK(rank >= 0 && rank < ranks && check_ranks(spec, ranks, "it").ok());
  Decoder shard = spec;
  for (Layer& layer : shard.layers) layer.keep_share(rank, ranks);
  return shard;
}

std::vector<Param> shard(std::vector<Param> list, int rank, int ranks) {
  VOLLEY_CHECK(rank >= 0 && rank < ranks);
  if (ranks == 1) return list;
  for (Param& param : list) shard_param(param, rank, ranks);
  return list;
}

std::pair<int32_t, int32_t> experts_part(int32_t experts, int replica, int replicas) {
  const auto first = [&](int64_t of) { return static_cast<int32_t>(experts * of / replicas); };
  return {first(replica), first(replica + 1) - first(replica)};
}

std::vector<Param> keep_experts_of(std::vector<Param> list, int replica, int replicas) {
  int32_t experts = 0;  // the current layer's experts, by its router, which comes first in the list
  for (Param& param : list) {
    if (param.role.ends_with("router")) experts = static_cast<int32_t>(param.rows());
    const bool down_bias = param.role.ends_with("experts_down_bias");
    if (!param.is_experts() && !down_bias && !param.role.ends_with("experts_gate_up_bias")) continue;
    VOLLEY_CHECK_GE(experts, replicas);
    const auto [first, count] = experts_part(experts, replica, replicas);
    for (Param::Part& part : param.parts) part.stored = param.stored_shape(part);
    if (down_bias) {
      const int64_t each = param.parts[0].rows / experts;
      keep_rows(param.parts[0], {{first * each, count * each}});
      continue;
    }
    const auto each = std::ssize(param.parts) / experts;
    param.parts.erase(param.parts.begin() + each * (first + count), param.parts.end());
    param.parts.erase(param.parts.begin(), param.parts.begin() + each * first);
  }
  return list;
}

std::pair<int64_t, int64_t> vocabulary_part(int64_t vocab, int rank, int ranks) {
  const int64_t rows = divide_up(divide_up(vocab, ops::kSummaryGroup), ranks) * ops::kSummaryGroup;
  const int64_t first = std::min(rank * rows, vocab);
  return {first, std::min(rows, vocab - first)};
}

}  // namespace volley::model
