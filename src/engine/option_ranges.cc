#include "engine/option_ranges.h"

#include <string>

#include "engine/validation.h"
#include "ops/attention/attention.h"

namespace volley::engine {
namespace {

// Bounds that no real machine reaches, and that keep products of options within their types.
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxSlots = 65'536;
constexpr int32_t kMaxBlockSize = 1024;
constexpr int32_t kMaxRows = 1 << 20;
// The most rows of a pass on a GPU: plain products have a block for four, and a grid is at most 65,535 high.
constexpr int32_t kMaxGpuRows = 4 * 65'535;

}  // namespace

int32_t most_rows(DeviceKind device) {
  return device == DeviceKind::kCuda ? kMaxGpuRows : kMaxRows;
}

Status check_ranges(const EngineOptions& o) {
  const auto negative = [](const char* name, int64_t value) {
    return invalid_argument(std::string(name) + " is " + std::to_string(value) + ": it must not be negative.");
  };
  if (o.data_parallel_size < 1) return invalid_argument("--data-parallel-size must be at least 1.");
  if (o.threads < 0) return negative("--threads", o.threads);
  if (o.max_num_seqs < 0) return negative("--max-num-seqs", o.max_num_seqs);
  if (o.max_num_batched_tokens < 0) return negative("--max-num-batched-tokens", o.max_num_batched_tokens);
  if (o.prefill_chunk < 0) return negative("--prefill-chunk", o.prefill_chunk);
  if (o.max_model_len < 0) return negative("--max-model-len", o.max_model_len);
  if (o.draft_window < 0) return negative("--draft-window", o.draft_window);
  if (o.kv_pages < 0) return negative("--kv-pages", o.kv_pages);
  if (o.kv_memory_bytes < 0) return negative("kv_memory_bytes", o.kv_memory_bytes);
  if (o.state_snapshot_tokens < 0) return negative("--state-snapshot-tokens", o.state_snapshot_tokens);
  if (o.state_snapshot_memory_bytes < 0) return negative("state_snapshot_memory_bytes", o.state_snapshot_memory_bytes);
  if (o.max_queue < 1) return invalid_argument("max_queue must be at least 1.");
  const auto above = [](const char* name, int64_t value, int64_t most) {
    return invalid_argument(std::string(name) + " is " + std::to_string(value) + ": it must be at most " +
                            std::to_string(most) + ".");
  };
  if (o.data_parallel_size > kMaxReplicas) return above("--data-parallel-size", o.data_parallel_size, kMaxReplicas);
  if (o.threads > kMaxThreads) return above("--threads", o.threads, kMaxThreads);
  if (o.max_num_seqs > kMaxSlots) return above("--max-num-seqs", o.max_num_seqs, kMaxSlots);
  if (o.block_size > kMaxBlockSize) return above("--block-size", o.block_size, kMaxBlockSize);
  if (o.prefill_chunk > kMaxRows) return above("--prefill-chunk", o.prefill_chunk, kMaxRows);
  if (o.max_num_batched_tokens > kMaxRows) return above("--max-num-batched-tokens", o.max_num_batched_tokens, kMaxRows);
  if (const int ranks = o.tensor_parallel_size; ranks != 1 && ranks != 2 && ranks != 4 && ranks != 8) {
    return invalid_argument("--tensor-parallel-size is " + std::to_string(ranks) + ": use 1, 2, 4 or 8.");
  }
  if (const int parts = o.tensor_parallel_parts; parts != 0) {
    const bool power = parts == 1 || parts == 2 || parts == 4 || parts == 8;
    if (!power || parts < o.tensor_parallel_size) {
      return invalid_argument("--tensor-parallel-parts is " + std::to_string(parts) +
                              ": use 1, 2, 4 or 8, and no fewer than --tensor-parallel-size.");
    }
  }
  VOLLEY_RETURN_IF_ERROR(check_nodes(o));
  if (!(o.memory_fraction >= 0 && o.memory_fraction <= 1)) {
    return invalid_argument("--memory-fraction must be between 0 and 1.");
  }
  if (o.page_size < 0 || o.page_size % ops::kKvTile != 0 || o.page_size > 4096) {
    return invalid_argument("--page-size is " + std::to_string(o.page_size) + ": use a multiple of " +
                            std::to_string(ops::kKvTile) + ", at most 4096.");
  }
  if (o.simulate_acceptance) VOLLEY_RETURN_IF_ERROR(check_simulation(*o.simulate_acceptance));
  return {};
}

Status check_rows(const ResolvedModels& models) {
  const std::string most = std::to_string(most_rows(models.device.kind));
  if (models.max_num_batched_tokens > most_rows(models.device.kind)) {
    return invalid_argument("--max-num-batched-tokens is " + std::to_string(models.max_num_batched_tokens) +
                            ": on a GPU it must be at most " + most + ".");
  }
  const int64_t drafted = int64_t{models.max_num_seqs} * models.block_size;
  if (models.device.kind == DeviceKind::kCuda && drafted > kMaxGpuRows) {
    return invalid_argument("--max-num-seqs " + std::to_string(models.max_num_seqs) + " with blocks of " +
                            std::to_string(models.block_size) + " tokens drafts " + std::to_string(drafted) +
                            " rows in one pass, on a GPU at most " + most + ": lower one of them.");
  }
  return {};
}

}  // namespace volley::engine
