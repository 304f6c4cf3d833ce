#include "engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>

#include "base/math.h"

namespace volley::engine {
namespace {

int64_t read_meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib << 10;
  }
  return 0;
}

}  // namespace

std::optional<int64_t> cgroup_memory_left(const std::string& folder) {
  std::ifstream limit_file(folder + "/memory.max"), used_file(folder + "/memory.current");
  int64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return std::nullopt;  // "max" is not a number
  std::ifstream stat_file(folder + "/memory.stat");
  std::string key;
  for (int64_t bytes = 0; stat_file >> key >> bytes;) {
    if (key == "inactive_file" || key == "active_file") used -= bytes;
  }
  return std::clamp<int64_t>(limit - used, 0, limit);
}

int64_t available_memory_bytes() {
  const int64_t available = read_meminfo_available();
  return std::min(available, cgroup_memory_left("/sys/fs/cgroup").value_or(available));
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

Result<MemoryPlan> plan_memory(const MemoryPlanInput& in) {
  MemoryPlan plan;
  plan.weight_bytes = in.weight_bytes;
  plan.page_bytes = in.page_bytes;
  plan.pages_per_request = divide_up(in.positions, in.page_size);
  plan.step_bytes = in.step_bytes;
  plan.graph_bytes = in.graph_bytes;
  const double share = in.fraction > 0 ? in.fraction : 1.0;
  const auto usable = static_cast<int64_t>(share * static_cast<double>(in.available_bytes));
  const int64_t room = std::max<int64_t>(0, usable - plan.weight_bytes - in.step_bytes - in.graph_bytes);
  if (in.kv_pages > 0) {
    plan.pages = in.kv_pages;
  } else if (in.kv_memory_bytes > 0) {
    plan.pages = in.kv_memory_bytes / plan.page_bytes;
  } else {
    // Full contexts in every slot, and where that is little enough more for prefixes of requests that have ended.
    // Without a fraction that says what is the engine's, the rest is for other programs.
    const int64_t most = in.fraction > 0 ? room : room / 2;
    const int64_t prefixes = in.fraction > 0 ? room / 2 : kPrefixBytes;
    plan.pages = std::max(plan.pages_per_request * in.max_num_seqs, prefixes / plan.page_bytes);
    plan.pages = std::min(plan.pages, most / plan.page_bytes);
  }
  if (plan.pages < plan.pages_per_request) {
    return resource_exhausted(
        "The KV cache has " + std::to_string(plan.pages) + (plan.pages == 1 ? " page (" : " pages (") +
        format_bytes(plan.kv_bytes()) + "), but one request of " + std::to_string(in.max_model_len) + " tokens needs " +
        std::to_string(plan.pages_per_request) + " (" + format_bytes(plan.pages_per_request * plan.page_bytes) +
        "): lower --max-model-len, or give the cache more memory.");
  }
  if (plan.kv_bytes() > room) {
    return resource_exhausted("Weights (" + format_bytes(plan.weight_bytes) + "), KV cache (" +
                              format_bytes(plan.kv_bytes()) + ") and a step's memory (" +
                              format_bytes(plan.step_bytes + plan.graph_bytes) + ") need more than the " +
                              format_bytes(usable) +
                              " of memory that may be used: lower --max-model-len, --max-num-seqs or "
                              "--max-num-batched-tokens, raise --memory-fraction, or use a smaller model.");
  }
  return plan;
}

}  // namespace volley::engine
