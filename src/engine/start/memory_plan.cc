#include "engine/start/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <utility>

#include "base/math.h"

namespace volley::engine {
namespace {

constexpr int64_t kMaxPages = std::numeric_limits<int32_t>::max() - 1;

int64_t read_meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib << 10;
  }
  return 0;
}

// Pages of a window's group when group 0 has `pages`.
int64_t window_pages(const MemoryPlanInput& in, const kv::Group& group, int64_t pages) {
  const int64_t full = divide_up(in.positions, in.page_size) * in.max_num_seqs;
  const int64_t one = kv::most_pages(group, in.positions, in.prefill_ahead, in.page_size);
  const int64_t running = kv::most_pages(group, in.positions, in.decode_ahead, in.page_size) * in.max_num_seqs +
                          divide_up(in.prompt_rows, in.page_size);
  const int64_t all = std::max({one, running, divide_up(running * pages, full)});
  return std::min(pages, all);
}

std::vector<kv::Group> divide_pages(const MemoryPlanInput& in, int64_t pages) {
  std::vector<kv::Group> groups = in.groups;
  for (kv::Group& group : groups) {
    group.pages = group.life == kv::Life::kWhole ? pages : window_pages(in, group, pages);
  }
  return groups;
}

int64_t bytes_of(const std::vector<kv::Group>& groups) {
  int64_t bytes = 0;
  for (const kv::Group& group : groups) bytes += group.pages * group.bytes;
  return bytes;
}

// The most pages of group 0 that fit into `bytes` with all that goes with them. The search stays below the pages that
// would fit alone, so that no product overflows.
int64_t pages_within(const MemoryPlanInput& in, int64_t bytes) {
  int64_t page = 0;
  for (const kv::Group& group : in.groups) page += group.life == kv::Life::kWhole ? group.bytes : 0;
  int64_t fits = 0, too_many = (page > 0 ? std::min(kMaxPages, bytes / page) : kMaxPages) + 1;
  while (too_many - fits > 1) {
    const int64_t pages = fits + (too_many - fits) / 2;
    (bytes_of(divide_pages(in, pages)) <= bytes ? fits : too_many) = pages;
  }
  return fits;
}

}  // namespace

int64_t MemoryPlan::page_bytes() const {
  int64_t bytes = 0;
  for (const kv::Group& group : groups) bytes += group.bytes;
  return bytes;
}

int64_t MemoryPlan::kv_bytes() const {
  return bytes_of(groups);
}

int32_t default_slots(int32_t most, int64_t slot_bytes, int64_t room) {
  if (slot_bytes == 0) return most;
  return static_cast<int32_t>(std::clamp<int64_t>(room / 2 / slot_bytes, 1, most));
}

std::optional<int64_t> cgroup_memory_left(const std::string& folder) {
  std::ifstream limit_file(folder + "/memory.max"), used_file(folder + "/memory.current");
  int64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return std::nullopt;  // "max" means no limit
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

namespace {

// Every slot has its states before the first page.
Error too_many_states(const MemoryPlanInput& in, int64_t usable) {
  const bool one = in.max_num_seqs == 1;
  return resource_exhausted(
      "The states of recurrent layers of " + (one ? "one request" : std::to_string(in.max_num_seqs) + " requests") +
      " (" + format_bytes(in.state_bytes) + "), weights (" + format_bytes(in.weight_bytes) + ") and a step's memory (" +
      format_bytes(in.step_bytes + in.graph_bytes) + ") need more than the " + format_bytes(usable) +
      " of memory that may be used: " + (one ? "" : "lower --max-num-seqs, ") +
      "raise --memory-fraction, or use a smaller model.");
}

Status plan_snapshots(const MemoryPlanInput& in, int64_t free, int64_t usable, MemoryPlan& plan) {
  if (in.snapshot_unit == 0) return {};
  const int64_t chosen = std::min(int64_t{2} * in.max_num_seqs, std::max<int64_t>(0, free) / 4 / in.snapshot_unit);
  plan.snapshots = in.snapshot_memory > 0 ? in.snapshot_memory / in.snapshot_unit : chosen;
  plan.snapshot_bytes = plan.snapshots * in.snapshot_unit;
  const std::string asked = "--state-snapshot-memory-mb gives snapshots of recurrent layers ";
  if (in.snapshot_memory > 0 && plan.snapshots == 0) {
    return resource_exhausted(asked + format_bytes(in.snapshot_memory) + ", and one takes " +
                              format_bytes(in.snapshot_unit) + ": raise it, or use --no-prefix-cache.");
  }
  if (in.snapshot_memory == 0 || plan.snapshot_bytes < free) return {};
  return resource_exhausted(asked + format_bytes(in.snapshot_memory) +
                            ", and weights, states and a step's memory leave " +
                            format_bytes(std::max<int64_t>(0, free)) + " of the " + format_bytes(usable) +
                            " of memory that may be used: lower it.");
}

Error too_few_pages(const MemoryPlanInput& in, const MemoryPlan& plan) {
  MemoryPlanInput one = in;
  one.max_num_seqs = 1;
  const int64_t pages = plan.pages();
  std::string message = "The KV cache has " + std::to_string(pages) + (pages == 1 ? " page (" : " pages (") +
                        format_bytes(plan.kv_bytes()) + "), but one request of " + std::to_string(in.max_model_len) +
                        " tokens needs " + std::to_string(plan.pages_per_request) + " (" +
                        format_bytes(bytes_of(divide_pages(one, plan.pages_per_request))) + ")";
  const bool asked = in.kv_pages > 0 || in.kv_memory_bytes > 0;
  if (in.state_bytes == 0 || asked) {
    return resource_exhausted(message + ": lower --max-model-len, or give the cache more memory.");
  }
  const bool many = in.max_num_seqs > 1;
  return resource_exhausted(
      message + ", and states of recurrent layers take " + format_bytes(in.state_bytes + plan.snapshot_bytes) + " (" +
      (many ? std::to_string(in.max_num_seqs) + " requests" : "one request") + " and snapshots): lower " +
      (many ? "--max-num-seqs or " : "") + "--max-model-len, or give the cache more memory.");
}

Result<MemoryPlan> plan_for_slots(const MemoryPlanInput& in) {
  MemoryPlan plan;
  plan.weight_bytes = in.weight_bytes;
  plan.pages_per_request = divide_up(in.positions, in.page_size);
  plan.max_num_seqs = in.max_num_seqs;
  plan.state_bytes = in.state_bytes;
  plan.step_bytes = in.step_bytes;
  plan.graph_bytes = in.graph_bytes;
  const double share = in.fraction > 0 ? in.fraction : 1.0;
  const auto usable = static_cast<int64_t>(share * static_cast<double>(in.available_bytes));
  int64_t free = usable - plan.weight_bytes - in.state_bytes - in.step_bytes - in.graph_bytes;
  for (const kv::Group& group : in.groups) free -= group.bytes;  // each group has a scrap page
  if (in.state_bytes > 0 && free < 0) return too_many_states(in, usable);
  VOLLEY_RETURN_IF_ERROR(plan_snapshots(in, free, usable, plan));
  const int64_t room = std::max<int64_t>(0, free - plan.snapshot_bytes);
  int64_t pages = 0;
  if (in.kv_pages > kMaxPages) {
    return resource_exhausted("--kv-pages is " + std::to_string(in.kv_pages) + ": there can be at most " +
                              std::to_string(kMaxPages) + " pages.");
  }
  if (in.kv_pages > 0) {
    pages = in.kv_pages;
  } else if (in.kv_memory_bytes > 0) {
    pages = pages_within(in, in.kv_memory_bytes);
  } else {
    // Takes full contexts in every slot, and more for prefixes of ended requests if that is little. Unless a fraction
    // reserves memory for the engine, half of the room stays free for other programs.
    const int64_t most = in.fraction > 0 ? room : room / 2;
    const int64_t prefixes = in.fraction > 0 ? room / 2 : kPrefixBytes;
    pages = std::max(plan.pages_per_request * in.max_num_seqs, pages_within(in, prefixes));
    pages = std::min(pages, pages_within(in, most));
  }
  plan.groups = divide_pages(in, pages);
  if (pages < plan.pages_per_request) return too_few_pages(in, plan);
  if (plan.kv_bytes() > room) {
    const std::string states = plan.state_bytes > 0 ? "states of recurrent layers (" +
                                                          format_bytes(plan.state_bytes + plan.snapshot_bytes) + "), "
                                                    : "";
    return resource_exhausted("Weights (" + format_bytes(plan.weight_bytes) + "), " + states + "KV cache (" +
                              format_bytes(plan.kv_bytes()) + ") and a step's memory (" +
                              format_bytes(plan.step_bytes + plan.graph_bytes) + ") need more than the " +
                              format_bytes(usable) +
                              " of memory that may be used: lower --max-model-len, --max-num-seqs or "
                              "--max-num-batched-tokens, raise --memory-fraction, or use a smaller model.");
  }
  return plan;
}

}  // namespace

Result<MemoryPlan> plan_memory(const MemoryPlanInput& in) {
  Result<MemoryPlan> plan = plan_for_slots(in);
  if (plan.ok() || !in.fewer_slots || in.state_bytes == 0) return plan;
  const auto with = [&](int32_t slots) {
    MemoryPlanInput fewer = in;
    fewer.max_num_seqs = slots;
    fewer.state_bytes = in.state_bytes / in.max_num_seqs * slots;
    return plan_for_slots(fewer);
  };
  int32_t fits = 1, too_many = in.max_num_seqs;
  plan = with(fits);
  while (plan.ok() && too_many - fits > 1) {
    const int32_t slots = fits + (too_many - fits) / 2;
    Result<MemoryPlan> more = with(slots);
    (more.ok() ? fits : too_many) = slots;
    if (more.ok()) plan = std::move(more);
  }
  return plan;
}

}  // namespace volley::engine
