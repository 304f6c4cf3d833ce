// A row of logits after penalties, bias, masks and temperature, spread over a team's blocks.
#pragma once

#include "ops/choice/choose_rows_cuda.h"
#include "ops/choice/noise.cuh"
#include "ops/choice/team.cuh"

namespace volley::ops::choice {

// The kernel's input for one row, as a block sees it.
struct RowTask {
  const float* logits;  // [vocab]
  int32_t vocab;
  const DeviceRule* slot;   // the block's copy
  const DeviceSlot* lists;  // the slot's end ids and bias
  int32_t index;
  const TokenId* prefix;  // [prefix_count]
  int32_t prefix_count;   // 0 unless the slot is penalised
  const uint32_t* mask;   // [mask_words] or null
  int32_t mask_words;
  int32_t begin, count;  // this block's tokens: [begin, begin + count); count may be 0
};

__device__ inline float highest_of(float4 v) {
  return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
}

__device__ inline float* values_in_shared() {
  extern __shared__ float4 memory[];
  return reinterpret_cast<float*>(memory);
}

// z of the block's tokens, padded with -inf to a multiple of 4.
template <bool kInShared>
struct RowValues {
  float* in_global;  // unless in shared memory
  int32_t begin, count;

  __device__ float* z() const { return kInShared ? values_in_shared() : in_global; }

  __device__ int32_t groups() const { return (count + 3) / 4; }
  __device__ float4 group(int32_t g) const { return reinterpret_cast<const float4*>(z())[g]; }

  // f(z, id) for this thread's tokens with z >= lowest, and maybe for some below and for the padding.
  template <typename F>
  __device__ void each_from(float lowest, F&& f) const {
    for (int32_t g = threadIdx.x; g < groups(); g += Team::kThreads) {
      const float4 v = group(g);
      if (!(highest_of(v) >= lowest)) continue;
      const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) f(four[j], begin + 4 * g + j);
    }
  }
};

// The highest of the tokens that a thread sees in ascending order, and whether all could be used.
struct Highest {
  float z = -INFINITY;
  int32_t id = 0;
  bool usable = true;

  __device__ void see(float value, int32_t token) {
    usable = usable && value < INFINITY;  // NaN is not either
    if (value > z) z = value, id = token;
  }
  __device__ Key key() const { return !usable ? kNoNumber : z > -INFINITY ? key_of(z, id) : 0; }
};

__device__ inline float penalise(float logit, const DeviceRule& slot, uint32_t outputs) {
  logit = logit > 0.0f ? logit / slot.repetition_penalty : logit * slot.repetition_penalty;
  logit -= slot.frequency_penalty * static_cast<float>(outputs);
  if (outputs > 0) logit -= slot.presence_penalty;
  return logit;
}

// Whether no step before temperature changes the row.
__device__ inline bool is_unadjusted(const RowTask& task) {
  const DeviceRule& slot = *task.slot;
  const bool ends_open = slot.end_count == 0 || task.index - slot.prompt_length >= slot.min_tokens;
  return task.mask == nullptr && slot.penalised == 0 && slot.bias_count == 0 && ends_open;
}

// Copies logits with masks and committed penalties applied. Returns whether the raw logits that this thread saw are
// usable.
__device__ inline bool load_adjusted(const RowTask& task, float* to) {
  constexpr int kAtOnce = 8;  // loads in flight; the compiler moves none of them before a store
  const float* from = task.logits + task.begin;
  const DeviceRule& slot = *task.slot;
  const bool penalised = slot.penalised != 0;
  const uint32_t* history = slot.history + task.begin;
  bool usable = true;
  for (int32_t start = threadIdx.x; start < task.count; start += kAtOnce * Team::kThreads) {
    float v[kAtOnce];
    uint32_t seen[kAtOnce], bits[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t i = start + j * Team::kThreads, token = task.begin + i, word = token / 32;
      const bool inside = i < task.count;
      v[j] = inside ? __ldg(from + i) : -INFINITY;
      seen[j] = inside && penalised ? __ldg(history + i) : 0;
      bits[j] = task.mask == nullptr ? ~0u : inside && word < task.mask_words ? __ldg(task.mask + word) : 0;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int32_t i = start + j * Team::kThreads, token = task.begin + i;
      usable = usable && v[j] < INFINITY;
      if (seen[j] != 0) v[j] = penalise(v[j], slot, seen[j] >> 1);
      if (i < task.count) to[i] = (bits[j] >> (token % 32)) & 1u ? v[j] : -INFINITY;
    }
  }
  return usable;
}

// Tokens of the prefix are penalised again, from their raw logit and with the full count. Masked tokens stay masked.
__device__ inline void penalise_prefix(const RowTask& task, float* values) {
  for (int32_t i = threadIdx.x; i < task.prefix_count; i += Team::kThreads) {
    const TokenId token = task.prefix[i];
    if (token < 0 || token >= task.vocab) __trap();  // our bug
    const int32_t at = token - task.begin;
    if (at < 0 || at >= task.count || values[at] == -INFINITY) continue;
    uint32_t here = 0;
    bool first = true;
    for (int32_t j = 0; j < task.prefix_count; ++j) {
      if (task.prefix[j] != token) continue;
      ++here;
      first = first && j >= i;
    }
    if (first) values[at] = penalise(task.logits[token], *task.slot, (task.slot->history[token] >> 1) + here);
  }
}

__device__ inline void add_bias(const RowTask& task, float* values) {
  const DeviceRule& slot = *task.slot;
  for (int32_t i = threadIdx.x; i < slot.bias_count; i += Team::kThreads) {
    const TokenId token = task.lists->bias[i].token;
    const int32_t at = token - task.begin;
    if (at < 0 || at >= task.count || (i > 0 && task.lists->bias[i - 1].token == token)) continue;
    float v = values[at];
    for (int32_t j = i; j < slot.bias_count && task.lists->bias[j].token == token; ++j) v += task.lists->bias[j].bias;
    values[at] = v;
  }
}

__device__ inline void mask_ends(const RowTask& task, float* values) {
  const DeviceRule& slot = *task.slot;
  if (task.index - slot.prompt_length >= slot.min_tokens) return;
  for (int32_t i = threadIdx.x; i < slot.end_count; i += Team::kThreads) {
    const int32_t at = task.lists->end_ids[i] - task.begin;
    if (at >= 0 && at < task.count) values[at] = -INFINITY;
  }
}

// Unchanged logits, divided and stored at once.
__device__ inline Highest load_unadjusted(const RowTask& task, float divisor, float* values) {
  const float* from = task.logits + task.begin;
  Highest highest;
  if (task.vocab % 4 == 0) {
    constexpr int kAtOnce = 5;  // loads in flight; the compiler moves none of them before a store
    const auto* from4 = reinterpret_cast<const float4*>(from);
    const int32_t groups = task.count / 4;
    for (int32_t start = threadIdx.x; start < groups; start += kAtOnce * Team::kThreads) {
      float4 v[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) v[j] = __ldg(from4 + min(start + j * Team::kThreads, groups - 1));
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int32_t g = start + j * Team::kThreads, id = task.begin + 4 * g;
        if (g >= groups) continue;
        if (divisor != 1.0f) {
          v[j] = make_float4(v[j].x / divisor, v[j].y / divisor, v[j].z / divisor, v[j].w / divisor);
        }
        highest.see(v[j].x, id);
        highest.see(v[j].y, id + 1);
        highest.see(v[j].z, id + 2);
        highest.see(v[j].w, id + 3);
        reinterpret_cast<float4*>(values)[g] = v[j];
      }
    }
    return highest;
  }
  for (int32_t i = threadIdx.x; i < task.count; i += Team::kThreads) {
    const float z = __ldg(from + i) / divisor;
    highest.see(z, task.begin + i);
    values[i] = z;
  }
  return highest;
}

__device__ inline void pad(const RowTask& task, float* values) {
  const int32_t padding = (task.count + 3) / 4 * 4 - task.count;
  if (static_cast<int32_t>(threadIdx.x) < padding) values[task.count + threadIdx.x] = -INFINITY;
}

// Fills the block's values; afterwards they are visible to the block. Returns the highest key this thread saw, or
// kNoNumber where a logit, before or after, is NaN or +inf.
__device__ inline Key load_row(const RowTask& task, float* values) {
  pad(task, values);
  if (is_unadjusted(task)) {
    const Highest highest = load_unadjusted(task, task.slot->divisor, values);
    __syncthreads();
    return highest.key();
  }
  Highest highest;
  highest.usable = load_adjusted(task, values);
  __syncthreads();
  penalise_prefix(task, values);
  __syncthreads();
  add_bias(task, values);
  __syncthreads();
  mask_ends(task, values);
  __syncthreads();
  const float divisor = task.slot->divisor;
  for (int32_t i = threadIdx.x; i < task.count; i += Team::kThreads) {
    const float z = values[i] / divisor;
    values[i] = z;
    highest.see(z, task.begin + i);
  }
  __syncthreads();
  return highest.key();
}

}  // namespace volley::ops::choice
