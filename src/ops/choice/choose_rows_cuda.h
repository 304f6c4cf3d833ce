// The whole rule on a GPU, for rows that need more than one read of their logits: a team of blocks a row. Private to
// this folder.
#pragma once

#include "ops/choice/sampler_state_cuda.h"

namespace volley::ops::choice {

// Rows of one segment that run in order; mostly a single row.
struct RowItem {
  int32_t segment;
  int32_t first;
  int32_t rows;
};

struct ChooseRowsArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int32_t vocab = 0;
  const ChoiceSegment* segments = nullptr;
  const DeviceSlot* slots = nullptr;
  const RowItem* items = nullptr;
  const int32_t* item_count = nullptr;
  ChoiceOutput out;
  int32_t part = 0;         // tokens of a block, a multiple of 4
  float* values = nullptr;  // values of all blocks, unless they lie in shared memory
};

// max_items: bound of *item_count.
void choose_rows_cuda(Stream& stream, const ChooseRowsArgs& args, const CudaSamplerState::Teams& teams,
                      int64_t max_items);

// `values` is left null.
CudaSamplerState::Teams plan_teams(const GpuInfo& gpu, int32_t vocab);

}  // namespace volley::ops::choice
