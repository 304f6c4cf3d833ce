#include "engine/start/option_ranges.h"

#include <algorithm>
#include <string>
#include <type_traits>

#include "engine/run/validation.h"
#include "ops/attention/attention.h"

namespace volley::engine {
namespace {

// No real machine reaches these bounds. They keep products of options within their types.
constexpr int32_t kMaxSlots = 65'536;
constexpr int32_t kMaxRows = 1 << 20;
// Plain products have a block for four rows, and a grid is at most 65,535 high.
constexpr int32_t kMaxGpuRows = 4 * 65'535;

// Whether a given value lies in the option's range; the default may lie outside.
template <typename T>
Status check_range(const EngineOption<T>& option, const EngineOptions& options) {
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    const T value = options.*option.field, otherwise = EngineOptions().*option.field;
    const NumberRange& range = option.range;
    if (*range.phrase == '\0' || value == otherwise || (value < 0 && otherwise < 0)) return {};
    const bool as_given = option.group != OptionGroup::kNone && range.unit == 1;
    const double least = std::min(range.least, static_cast<double>(otherwise));
    if (as_given ? value >= least && value <= range.most : value >= 0) return {};
    return invalid_argument((as_given ? option.name : option.field_name) + (" is " + std::to_string(value)) +
                            ": it must " + (as_given ? std::string("be ") + range.phrase : "not be negative") + ".");
  }
  return {};
}

}  // namespace

int32_t most_rows(DeviceKind device) {
  return device == DeviceKind::kCuda ? kMaxGpuRows : kMaxRows;
}

Status check_ranges(const EngineOptions& o) {
  Status checked;
  for_each_option([&](const auto& option) {
    if (checked.ok()) checked = check_range(option, o);
  });
  VOLLEY_RETURN_IF_ERROR(checked);
  const auto check_most = [](const char* name, int32_t value, int32_t most) -> Status {
    if (value <= most) return {};
    return invalid_argument(std::string(name) + " is " + std::to_string(value) + ": it must be at most " +
                            std::to_string(most) + ".");
  };
  VOLLEY_RETURN_IF_ERROR(check_most("--max-num-seqs", o.max_num_seqs, kMaxSlots));
  VOLLEY_RETURN_IF_ERROR(check_most("--prefill-chunk", o.prefill_chunk, kMaxRows));
  VOLLEY_RETURN_IF_ERROR(check_most("--max-num-batched-tokens", o.max_num_batched_tokens, kMaxRows));
  if (const int ranks = o.tensor_parallel_size; (ranks & (ranks - 1)) != 0) {
    return invalid_argument("--tensor-parallel-size is " + std::to_string(ranks) + ": use 1, 2, 4, 8 or 16.");
  }
  VOLLEY_RETURN_IF_ERROR(check_nodes(o));
  if (o.page_size % ops::kKvTile != 0 || o.page_size > 4096) {
    return invalid_argument("--page-size is " + std::to_string(o.page_size) + ": use a multiple of " +
                            std::to_string(ops::kKvTile) + ", at most 4096.");
  }
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
