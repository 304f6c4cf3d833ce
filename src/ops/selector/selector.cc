#include "ops/selector/selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "device/cpu/thread_pool.h"
#include "ops/choice/kernels.h"
#include "ops/choice/sampler_state_cpu.h"
#include "ops/selector/selector_kernels.h"

namespace volley::ops {
namespace {

using choice::CpuSamplerState;
using choice::Slot;

// The candidates of each row, the best first; where a row has fewer than top_k, the rest are kNone.
struct Candidates {
  static constexpr int32_t kNone = -1;
  TensorView logits;   // [rows, top_k] fp32
  TensorView columns;  // [rows, top_k] int32: of the task's logits
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

void find_candidates(Stream& stream, TensorView logits, const Candidates& candidates) {
  const int64_t vocab = logits.dim(1), k = candidates.columns.dim(1);
  stream.pool().parallel_for(logits.dim(0), [&](int64_t row, int) {
    find_row(logits.as<float>() + row * vocab, vocab, k, candidates.logits.as<float>() + row * k,
             candidates.columns.as<int32_t>() + row * k);
  });
}

float value_of(TensorView table, int64_t i) {
  if (table.dtype == DType::kBF16) return to_float(table.as<BFloat16>()[i]);
  if (table.dtype == DType::kF16) return to_float(table.as<Float16>()[i]);
  return table.as<float>()[i];
}

float noise_of(const Slot& slot, int32_t index, TokenId token) {
  const SlotSampling& sampling = slot.sampling;
  const choice::PhiloxKey key = {
      .key = {static_cast<uint32_t>(sampling.seed), static_cast<uint32_t>(sampling.seed >> 32)},
      .counter = {static_cast<uint32_t>(index), sampling.params.choice_index, 0}};
  std::array<uint32_t, 4> words;
  choice::philox(key, static_cast<uint32_t>(token) / 4, 1, words.data());
  float noise;
  choice::gumbel(&words[token % 4], 1, &noise);
  return noise;
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

void walk_segment(const SelectorTask& task, const Candidates& candidates, const ChoiceSegment& segment) {
  const Slot& slot = static_cast<const CpuSamplerState&>(*task.state).slot(segment.slot);
  const int64_t rank = task.predecessor.dim(1), k = candidates.columns.dim(1);
  const TokenId* const ids = task.token_ids.data == nullptr ? nullptr : task.token_ids.as<TokenId>();
  Walk walk;
  std::array<float, kMaxCandidates> scores;  // over the temperature
  TokenId previous = task.slots[segment.slot].last_token;
  for (int32_t i = 0; i < segment.rows; ++i) {
    const int64_t row = int64_t{segment.row_begin} + i;
    const int32_t* columns = candidates.columns.as<int32_t>() + row * k;
    walk.step(task, row, previous);
    int64_t n = 0, best = 0;
    float highest = -std::numeric_limits<float>::infinity(), reached = highest;
    for (; n < k && columns[n] != Candidates::kNone; ++n) {
      const float sum = dot(task.successor, columns[n] * rank, walk.query.data(), rank);
      scores[n] = (candidates.logits.as<float>()[row * k + n] + sum) / slot.rule.divisor;
      highest = std::max(highest, scores[n]);
      const TokenId id = ids == nullptr ? columns[n] : ids[columns[n]];
      const float score = slot.rule.greedy ? scores[n] : scores[n] + noise_of(slot, segment.first_index + i, id);
      if (score > reached) reached = score, best = n;
    }
    float weights = 0;
    for (int64_t c = 0; c < n; ++c) weights += std::exp(scores[c] - highest);
    float probability = n > 0 ? std::exp(scores[best] - highest) / weights : 0;
    if (n > 0 && task.confidence.data != nullptr) probability = head_chance(task, row, walk.embedding(rank));
    const int32_t column = n > 0 ? columns[best] : 0;
    previous = ids == nullptr ? column : ids[column];
    task.tokens[row] = previous;
    task.probability[row] = probability >= 0 ? probability : 0;  // not of NaN
  }
}

void select_cpu(Stream& stream, const SelectorTask& task, Arena& scratch) {
  const int64_t rows = task.logits.dim(0);
  const Candidates candidates = {scratch.take(DType::kF32, {rows, task.top_k}),
                                 scratch.take(DType::kI32, {rows, task.top_k})};
  if (stream.dry()) return;
  find_candidates(stream, task.logits, candidates);
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
