#include "apps/bench/step_account.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <vector>

namespace volley::apps {
namespace {

struct Kind {
  const char* name;
  std::array<const char*, 5> in_names;  // parts of mangled names, with files' names; the first kind counts
};

constexpr Kind kKinds[] = {
    {"sums of ranks", {"peer", "nccl"}},
    {"router", {"router"}},
    {"experts", {"grouped"}},
    {"recurrent layers", {"gated_delta", "short_conv"}},
    {"attention", {"attention"}},
    {"K and V", {"paged_kv", "latent_cuda"}},
    {"norms, residual", {"norm_cuda", "block_conv"}},
    {"rows to codes", {"quantise"}},
    {"gates", {"sigmoid_gate"}},
    {"choice", {"choice", "selector", "accept_kernel", "take_masks", "sampler"}},
    {"output head", {"DTypeE1ELb1E", "DTypeE5ELb1E"}},  // linear()'s tiles that summarise
    {"products", {"linear", "narrow_kernel"}},
    {"rest", {}},
};
constexpr size_t kCount = std::size(kKinds);
constexpr const char* kStepEnd = "accept_kernel";  // runs once a step

size_t kind_of(std::string_view name) {
  for (size_t i = 0; i + 1 < kCount; ++i) {
    for (const char* part : kKinds[i].in_names) {
      if (part != nullptr && name.find(part) != std::string_view::npos) return i;
    }
  }
  return kCount - 1;
}

struct Part {
  double target_ns = 0, draft_ns = 0;
  int64_t kernels = 0;
};

struct Account {
  std::array<Part, kCount> parts = {};
  double waits_ns = 0;
  int64_t steps = 0;

  // runs: a step's. before: the end of the step before it.
  void add(std::span<const KernelRun> runs, uint64_t before) {
    ++steps;
    const uint32_t target = runs.back().graph;
    for (const KernelRun& run : runs) {
      if (run.begin_ns > before) waits_ns += static_cast<double>(run.begin_ns - before);
      const uint64_t from = std::max(before, run.begin_ns);
      Part& part = parts[kind_of(run.name)];
      ++part.kernels;
      if (run.end_ns <= from) continue;
      (run.graph == target || run.graph == 0 ? part.target_ns : part.draft_ns) +=
          static_cast<double>(run.end_ns - from);
      before = run.end_ns;
    }
  }
};

}  // namespace

std::string step_account(std::span<const KernelRun> runs) {
  std::vector<std::span<const KernelRun>> steps;
  std::map<size_t, int64_t> lengths;
  size_t begin = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].name.find(kStepEnd) == std::string_view::npos) continue;
    steps.push_back(runs.subspan(begin, i + 1 - begin));
    ++lengths[steps.back().size()];
    begin = i + 1;
  }
  if (steps.size() < 2) return "--kernel-times saw no steps of a GPU.\n";
  // Steps of a prompt have other kernels than the many that only decode.
  const size_t usual = std::ranges::max_element(lengths, {}, [](const auto& entry) { return entry.second; })->first;
  Account account;
  for (size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].size() == usual && steps[i - 1].size() == usual) account.add(steps[i], steps[i - 1].back().end_ns);
  }
  if (account.steps == 0) return "--kernel-times saw no two equal steps in a row.\n";
  const double scale = 1e-6 / static_cast<double>(account.steps);
  double whole = account.waits_ns;
  for (const Part& part : account.parts) whole += part.target_ns + part.draft_ns;
  char line[160];
  std::snprintf(line, sizeof(line),
                "       a step of %.3f ms, mean of %lld:   target, ms   draft, ms   share   kernels\n", whole * scale,
                static_cast<long long>(account.steps));
  std::string text = line;
  const auto add = [&](const char* name, double target, double draft, double kernels) {
    std::snprintf(line, sizeof(line), "       %-34s %10.3f  %10.3f  %5.1f%%  %8.1f\n", name, target * scale,
                  draft * scale, 100 * (target + draft) / whole, kernels);
    text += line;
  };
  for (size_t i = 0; i < kCount; ++i) {
    const Part& part = account.parts[i];
    const double kernels = static_cast<double>(part.kernels) / static_cast<double>(account.steps);
    if (part.kernels > 0) add(kKinds[i].name, part.target_ns, part.draft_ns, kernels);
  }
  add("waits between kernels", account.waits_ns, 0, 0);
  return text;
}

}  // namespace volley::apps
