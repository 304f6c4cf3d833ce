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

void find_row(const float* logits, int64_t vocab, int64_t k, float* values, TokenId* ids) {
  int64_t found = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const float value = logits[v];
    if (std::isnan(value) || (found == k && !(value > values[k - 1]))) continue;
    int64_t at = found < k ? found++ : k - 1;
    for (; at > 0 && value > values[at - 1]; --at) values[at] = values[at - 1], ids[at] = ids[at - 1];
    values[at] = value;
    ids[at] = static_cast<TokenId>(v);
  }
  std::fill(ids + found, ids + k, Candidates::kNone);
}

void find_candidates_cpu(Stream& stream, TensorView logits, const Candidates& candidates) {
  if (stream.dry()) return;
  const int64_t vocab = logits.dim(1), k = candidates.ids.dim(1);
  stream.pool().parallel_for(logits.dim(0), [&](int64_t row, int) {
    find_row(logits.as<float>() + row * vocab, vocab, k, candidates.logits.as<float>() + row * k,
             candidates.ids.as<TokenId>() + row * k);
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

void walk_segment(const SelectorTask& task, const Candidates& candidates, const ChoiceSegment& segment) {
  const Slot& slot = static_cast<const CpuSamplerState&>(*task.state).slot(segment.slot);
  const int64_t rank = task.hidden.dim(1), k = candidates.ids.dim(1);
  std::array<float, kMaxSelectorRank> wanted;  // multiplied with a candidate's successor
  std::array<float, kMaxCandidates> scores;    // over the temperature
  TokenId previous = task.slots[segment.slot].last_token;
  for (int32_t i = 0; i < segment.rows; ++i) {
    const int64_t row = int64_t{segment.row_begin} + i;
    const TokenId* ids = candidates.ids.as<TokenId>() + row * k;
    for (int64_t j = 0; j < rank; ++j) {
      wanted[j] = value_of(task.predecessor, previous * rank + j) * task.hidden.as<float>()[row * rank + j];
    }
    int64_t n = 0, best = 0;
    float highest = -std::numeric_limits<float>::infinity(), reached = highest;
    for (; n < k && ids[n] != Candidates::kNone; ++n) {
      float sum = 0;
      for (int64_t j = 0; j < rank; ++j) sum += wanted[j] * value_of(task.successor, ids[n] * rank + j);
      scores[n] = (candidates.logits.as<float>()[row * k + n] + sum) / slot.rule.divisor;
      highest = std::max(highest, scores[n]);
      const float score = slot.rule.greedy ? scores[n] : scores[n] + noise_of(slot, segment.first_index + i, ids[n]);
      if (score > reached) reached = score, best = n;
    }
    float weights = 0;
    for (int64_t c = 0; c < n; ++c) weights += std::exp(scores[c] - highest);
    const float probability = n > 0 ? std::exp(scores[best] - highest) / weights : 0;
    previous = n > 0 ? ids[best] : 0;
    task.tokens[row] = previous;
    task.probability[row] = probability >= 0 ? probability : 0;  // not of NaN
  }
}

void walk_cpu(Stream& stream, const SelectorTask& task, const Candidates& candidates) {
  if (stream.dry()) return;
  stream.pool().parallel_for(std::ssize(task.segments), [&](int64_t segment, int) {
    if (task.segments[segment].rows > 0) walk_segment(task, candidates, task.segments[segment]);
  });
}

}  // namespace

const SelectorKernels SelectorKernels::kCpu = {find_candidates_cpu, walk_cpu};

void select_tokens(Stream& stream, const SelectorTask& task, Arena& scratch) {
  VOLLEY_CHECK(task.logits.rank == 2 && task.logits.dtype == DType::kF32);
  VOLLEY_CHECK(task.hidden.rank == 2 && task.hidden.dtype == DType::kF32);
  const int64_t rows = task.logits.dim(0), vocab = task.logits.dim(1), rank = task.hidden.dim(1);
  VOLLEY_CHECK_EQ(task.hidden.dim(0), rows);
  VOLLEY_CHECK(rank >= 1 && rank <= kMaxSelectorRank && vocab >= 1 && vocab <= kMaxVocab);
  for (const TensorView& table : {task.predecessor, task.successor}) {
    VOLLEY_CHECK(table.rank == 2 && table.dim(0) == vocab && table.dim(1) == rank);
    VOLLEY_CHECK(table.dtype == DType::kBF16 || table.dtype == DType::kF16 || table.dtype == DType::kF32);
  }
  VOLLEY_CHECK(task.top_k >= 1 && task.top_k <= kMaxCandidates);
  VOLLEY_CHECK(task.tokens != nullptr && task.probability != nullptr && task.slots != nullptr);
  VOLLEY_CHECK(task.state != nullptr && task.state->kind() == stream.kind());
  if (rows == 0 || task.segments.empty()) return;
  const ArenaScope scope(scratch);
  const Candidates candidates = {scratch.take(DType::kF32, {rows, task.top_k}),
                                 scratch.take(DType::kI32, {rows, task.top_k})};
  const SelectorKernels& kernels = kernels_on<SelectorKernels>(stream);
  kernels.find_candidates(stream, task.logits, candidates);
  kernels.walk(stream, task, candidates);
}

}  // namespace volley::ops
