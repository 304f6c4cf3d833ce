#include "ops/selector/selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "ops/choice/kernels.h"
#include "ops/choice/sampler_state_cpu.h"
#include "ops/selector/selector_kernels.h"

namespace volley::ops {
namespace {

using choice::CpuSamplerState;
using choice::Slot;

// The candidates of each row, the best first, then the drawn one; where a row has fewer, the rest are kNone.
struct Candidates {
  static constexpr int32_t kNone = -1;
  TensorView logits;   // [rows, top_k + 1] fp32
  TensorView columns;  // [rows, top_k + 1] int32: of the task's logits
};

void find_row(const float* logits, int64_t vocab, int64_t k, float* values, int32_t* ids) {
  int64_t found = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const float value = logits[v];
    if (std::isnan(value) || (found == k && !(value > values[k - 1]))) continue;
    int64_t at = found < k ? found++ : k - 1;
    for (; at > 0 && value > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value;
    ids[at] = static_cast<int32_t>(v);
  }
  std::fill(ids + found, ids + k, Candidates::kNone);
}

float value_of(TensorView table, int64_t i) {
  if (table.dtype == DType::kBF16) return to_float(table.as<BFloat16>()[i]);
  if (table.dtype == DType::kF16) return to_float(table.as<Float16>()[i]);
  return table.as<float>()[i];
}

choice::PhiloxKey key_of(const Slot& slot, int32_t index) {
  const SlotSampling& sampling = slot.sampling;
  return {.key = {static_cast<uint32_t>(sampling.seed), static_cast<uint32_t>(sampling.seed >> 32)},
          .counter = {static_cast<uint32_t>(index), sampling.params.choice_index, 0}};
}

float noise_of(const Slot& slot, int32_t index, TokenId token) {
  std::array<uint32_t, 4> words;
  choice::philox(key_of(slot, index), static_cast<uint32_t>(token) / 4, 1, words.data());
  float noise;
  choice::gumbel(&words[token % 4], 1, &noise);
  return noise;
}

bool has_filter(const Slot& slot) {
  return slot.rule.top_k > 0 || slot.sampling.params.top_p < 1 || slot.sampling.params.min_p > 0;
}

// The column of the highest logit / T + g; kNone where no score is a number. peak: the highest logit.
int32_t draw_row(const SelectorTask& task, const float* logits, float peak, const Slot& slot, int32_t index) {
  const auto columns = static_cast<int32_t>(task.logits.dim(1));
  const choice::Row row = {.values = logits, .divisor = slot.rule.divisor, .peak = peak / slot.rule.divisor, .cut = {}};
  choice::Scored best;
  if (!std::isfinite(row.peak)) return Candidates::kNone;
  if (task.token_ids.data == nullptr) {
    best = choice::best_noisy(row, 0, columns, key_of(slot, index), row.peak + choice::kGumbelMin);
  } else {
    for (int32_t c = 0; c < columns; ++c) {
      const float z = logits[c] / row.divisor;
      if (!(z + choice::kGumbelMax > best.score) || z < row.peak - choice::kWindow) continue;
      const float score = z + noise_of(slot, index, task.token_ids.as<TokenId>()[c]);
      if (score > best.score) best = {score, c};
    }
  }
  return best.id < columns ? best.id : Candidates::kNone;
}

// The candidates of a segment's rows.
void find_candidates(const SelectorTask& task, const ChoiceSegment& segment, int32_t i, const Candidates& candidates) {
  const int64_t vocab = task.logits.dim(1), k = task.top_k, row = int64_t{segment.row_begin} + i;
  const float* const logits = task.logits.as<float>() + row * vocab;
  float* const values = candidates.logits.as<float>() + row * (k + 1);
  int32_t* const columns = candidates.columns.as<int32_t>() + row * (k + 1);
  find_row(logits, vocab, k, values, columns);
  columns[k] = Candidates::kNone;
  const Slot& slot = static_cast<const CpuSamplerState&>(*task.state).slot(segment.slot);
  if (slot.rule.greedy || has_filter(slot) || k == kMaxCandidates || columns[k - 1] == Candidates::kNone) return;
  const int32_t drawn = draw_row(task, logits, values[0], slot, segment.first_index + i);
  if (drawn == Candidates::kNone || std::find(columns, columns + k, drawn) != columns + k) return;
  columns[k] = drawn;
  values[k] = logits[drawn];
}

float dot(TensorView table, int64_t first, const float* x, int64_t n) {
  float sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += x[j] * value_of(table, first + j);
  return sum;
}

// Where a walk stands in its segment.
struct Walk {
  std::array<float, 2 * kMaxSelectorRank> inputs = {};  // s, then e
  std::array<float, 3 * kMaxSelectorRank> raw;          // hidden + W's product
  std::array<float, kMaxSelectorRank> query;

  float* embedding(int64_t rank) { return inputs.data() + rank; }
  void step(const SelectorTask& task, int64_t row, TokenId previous);
};

void Walk::step(const SelectorTask& task, int64_t row, TokenId previous) {
  const int64_t rank = task.predecessor.dim(1);
  const ScoringSizes sizes = sizes_of(task.scoring);
  float* const e = embedding(rank);
  for (int64_t j = 0; j < rank; ++j) e[j] = value_of(task.predecessor, previous * rank + j);
  const int64_t outputs = sizes.hidden * rank, n = sizes.inputs * rank;
  for (int64_t i = 0; i < outputs; ++i) {
    raw[i] = task.hidden.as<float>()[row * outputs + i];
    if (n > 0) {
      const Columns& w = task.weight;
      raw[i] += dot(w.matrix, i * w.matrix.dim(1) + w.first, e + rank - n, n);
    }
  }
  for (int64_t j = 0; j < rank; ++j) query[j] = query_element(task.scoring, raw.data(), rank, j, e[j], inputs[j]);
}

float head_chance(const SelectorTask& task, int64_t row, const float* embedding) {
  float sum = task.confidence.as<float>()[row];
  const Columns& w = task.confidence_weight;
  if (w.matrix.data != nullptr) sum += dot(w.matrix, w.first, embedding, task.predecessor.dim(1));
  return sigmoid_of(sum);
}

// The weights of n candidates with these scores, as softmax has them but for a factor; 0 for those that the slot's
// filters leave out. Their sum.
float weigh(const Slot& slot, const float* scores, int64_t n, float* weights) {
  const float highest = n > 0 ? *std::max_element(scores, scores + n) : 0;
  for (int64_t c = 0; c < n; ++c) weights[c] = std::exp(scores[c] - highest);
  if (slot.rule.greedy || !has_filter(slot)) return std::accumulate(weights, weights + n, 0.0f);
  const SamplingParams& params = slot.sampling.params;
  std::array<float, kMaxCandidates> before = {};  // weights of those before it in the order of scores
  float sum = 0;
  for (int64_t c = 0; c < n; ++c) {
    int32_t better = 0;
    for (int64_t other = 0; other < n; ++other) {
      if (!(scores[other] > scores[c]) && (scores[other] != scores[c] || other >= c)) continue;
      ++better;
      before[c] += weights[other];
    }
    if (counts(slot.rule, params.min_p > 0, scores[c], highest, better)) {
      sum += weights[c];
    } else {
      before[c] = std::numeric_limits<float>::infinity();
    }
  }
  const float wanted = static_cast<float>(params.top_p) * sum;
  for (int64_t c = 0; c < n; ++c) {
    if (before[c] >= (params.top_p < 1 ? wanted : std::numeric_limits<float>::infinity())) weights[c] = 0;
  }
  return std::accumulate(weights, weights + n, 0.0f);
}

void walk_segment(const SelectorTask& task, const Candidates& candidates, const ChoiceSegment& segment) {
  const Slot& slot = static_cast<const CpuSamplerState&>(*task.state).slot(segment.slot);
  const int64_t rank = task.predecessor.dim(1), k = std::min<int64_t>(task.top_k + 1, kMaxCandidates);
  const int64_t width = candidates.columns.dim(1);
  const TokenId* const ids = task.token_ids.data == nullptr ? nullptr : task.token_ids.as<TokenId>();
  Walk walk;
  std::array<float, kMaxCandidates> scores, weights;  // scores: over the temperature
  TokenId previous = task.slots[segment.slot].last_token;
  for (int32_t i = 0; i < segment.rows; ++i) {
    const int64_t row = int64_t{segment.row_begin} + i;
    const int32_t* columns = candidates.columns.as<int32_t>() + row * width;
    walk.step(task, row, previous);
    int64_t n = 0, best = 0;
    for (; n < k && columns[n] != Candidates::kNone; ++n) {
      const float sum = dot(task.successor, columns[n] * rank, walk.query.data(), rank);
      scores[n] = (candidates.logits.as<float>()[row * width + n] + sum) / slot.rule.divisor;
    }
    const float sum = weigh(slot, scores.data(), n, weights.data());
    float reached = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < n; ++c) {
      if (weights[c] == 0) continue;
      const TokenId id = ids == nullptr ? columns[c] : ids[columns[c]];
      const float score = slot.rule.greedy ? scores[c] : scores[c] + noise_of(slot, segment.first_index + i, id);
      if (score > reached) reached = score, best = c;
    }
    float probability = n > 0 ? weights[best] / sum : 0;
    if (n > 0 && task.confidence.data != nullptr) probability = head_chance(task, row, walk.embedding(rank));
    const int32_t column = n > 0 ? columns[best] : 0;
    previous = ids == nullptr ? column : ids[column];
    task.tokens[row] = previous;
    task.probability[row] = probability >= 0 ? probability : 0;  // not of NaN
  }
}

void select_cpu(Stream& stream, const SelectorTask& task, Arena& scratch) {
  const int64_t rows = task.logits.dim(0);
  const Candidates candidates = {scratch.take(DType::kF32, {rows, task.top_k + 1}),
                                 scratch.take(DType::kI32, {rows, task.top_k + 1})};
  if (stream.dry()) return;
  std::vector<std::pair<const ChoiceSegment*, int32_t>> found;  // of each row
  for (const ChoiceSegment& segment : task.segments) {
    for (int32_t i = 0; i < segment.rows; ++i) found.emplace_back(&segment, i);
  }
  stream.pool().parallel_for(
      std::ssize(found), [&](int64_t i, int) { find_candidates(task, *found[i].first, found[i].second, candidates); });
  stream.pool().parallel_for(std::ssize(task.segments), [&](int64_t segment, int) {
    if (task.segments[segment].rows > 0) walk_segment(task, candidates, task.segments[segment]);
  });
}

}  // namespace

const SelectorKernels SelectorKernels::kCpu = {select_cpu};

void select_tokens(Stream& stream, const SelectorTask& task, Arena& scratch) {
  VOLLEY_CHECK(task.logits.rank == 2 && task.logits.dtype == DType::kF32);
  const int64_t rows = task.logits.dim(0), columns = task.logits.dim(1), rank = task.predecessor.dim(1);
  const ScoringSizes sizes = sizes_of(task.scoring);
  VOLLEY_CHECK(rank >= 1 && rank <= kMaxSelectorRank && columns >= 1 && columns <= kMaxVocab);
  const auto check_rows = [&](const TensorView& values, int64_t width) {
    VOLLEY_CHECK(values.dtype == DType::kF32 && values.dim(0) == rows && values.count() == rows * width);
  };
  const auto check_matrix = [](const TensorView& matrix, int64_t n, int64_t first, int64_t width) {
    VOLLEY_CHECK(matrix.rank == 2 && matrix.dim(0) == n && first >= 0 && first + width <= matrix.dim(1));
    VOLLEY_CHECK(matrix.dtype == DType::kBF16 || matrix.dtype == DType::kF16 || matrix.dtype == DType::kF32);
  };
  const bool same = task.token_ids.data == nullptr;
  check_matrix(task.predecessor, same ? columns : task.predecessor.dim(0), 0, rank);
  check_matrix(task.successor, columns, 0, rank);
  VOLLEY_CHECK(task.successor.dim(1) == rank);
  if (!same) VOLLEY_CHECK(task.token_ids.dtype == DType::kI32 && task.token_ids.count() == columns);
  if (sizes.hidden > 0) check_rows(task.hidden, sizes.hidden * rank);
  if (sizes.inputs > 0) check_matrix(task.weight.matrix, sizes.hidden * rank, task.weight.first, sizes.inputs * rank);
  if (task.confidence.data != nullptr) check_rows(task.confidence, 1);
  if (task.confidence_weight.matrix.data != nullptr) {
    VOLLEY_CHECK(task.confidence.data != nullptr);
    check_matrix(task.confidence_weight.matrix, 1, task.confidence_weight.first, rank);
  }
  VOLLEY_CHECK(task.top_k >= 1 && task.top_k <= kMaxCandidates);
  VOLLEY_CHECK(task.tokens != nullptr && task.probability != nullptr && task.slots != nullptr);
  VOLLEY_CHECK(task.state != nullptr && task.state->kind() == stream.kind());
  if (rows == 0 || task.segments.empty()) return;
  const ArenaScope scope(scratch);
  kernels_on<SelectorKernels>(stream).select(stream, task, scratch);
}

}  // namespace volley::ops
