#include "apps/bench/rounds.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/occupancy.h"
#include "apps/bench/workload.h"
#include "apps/standard_streams.h"

namespace volley::apps {
namespace {

constexpr int kDefaultRepeats = 3;
constexpr int kSlackSteps = 64;  // what one load may take longer than it should: steps under way, snapshots missed

class RoundsMeasurement {
 public:
  RoundsMeasurement(Engine& engine, const BenchCommand& command, InterruptWatch* interrupt, Console* console,
                    RoundsReport* report)
      : engine_(engine), command_(command), interrupt_(interrupt), console_(*console), report_(*report) {}

  Status run() {
    for (const Simulation* load : loads()) {
      for (const int concurrency : command_.concurrency) {
        VOLLEY_RETURN_IF_ERROR(measure_cell(load, concurrency));
        if (interrupt_->interrupted()) return {};
      }
    }
    return {};
  }

 private:
  bool drafts() const { return engine_.info().block_size > 1; }

  // Null: acceptance is what it is.
  std::vector<const Simulation*> loads() const {
    std::vector<const Simulation*> all;
    if (drafts()) {
      for (const Simulation& simulation : command_.engine.simulations) all.push_back(&simulation);
    }
    return all.empty() ? std::vector<const Simulation*>{nullptr} : all;
  }

  // Modes in turn, again and again: what else the machine does meets all of them.
  Status measure_cell(const Simulation* load, int concurrency) {
    std::vector<VerifyPolicy> policies = command_.verify;
    if (policies.empty() || !drafts()) policies.resize(1);
    const int repeats = command_.repeat > 0 ? command_.repeat : kDefaultRepeats;
    const size_t first = report_.runs.size();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (const VerifyPolicy& policy : policies) {
        RoundsRun run;
        run.load = !drafts() ? "" : load != nullptr ? load->text : "real";
        run.concurrency = concurrency;
        run.mode = drafts() ? verify_name(policy) : "off";
        run.repeat = repeat;
        console_.progress(run.load + ", " + std::to_string(concurrency) + " requests, " + run.mode,
                          static_cast<double>(repeat) / repeats);
        VOLLEY_RETURN_IF_ERROR(measure(load, policy, &run));
        if (interrupt_->interrupted()) return {};
        report_.runs.push_back(std::move(run));
      }
    }
    console_.clear_progress();
    if (first == 0) std::printf("%s\n", rounds_header().c_str());
    const std::span<const RoundsRun> cell = std::span<const RoundsRun>(report_.runs).subspan(first);
    std::fputs(rounds_lines(cell).c_str(), stdout);
    return flush_standard_output();
  }

  Status measure(const Simulation* load, const VerifyPolicy& policy, RoundsRun* run) {
    std::vector<GenerateRequest> requests = rounds_workload(engine_, command_, load, run->concurrency);
    // Plain until all decode: the first ones should not be far ahead of the last ones then.
    if (drafts()) VOLLEY_RETURN_IF_ERROR(engine_.set_verify({VerifyPolicy::Kind::kFixed, 0}));
    Occupancy occupancy(engine_, interrupt_);
    VOLLEY_RETURN_IF_ERROR(occupancy.fill(std::move(requests)));
    if (drafts()) VOLLEY_RETURN_IF_ERROR(engine_.set_verify(policy));
    // As many for policies that learn nothing: the contexts grow meanwhile, and must not differ by that.
    VOLLEY_ASSIGN(const EngineStats before, occupancy.wait_for(engine_.stats().steps + command_.warm_rounds));
    const Clock::time_point begin = Clock::now();
    VOLLEY_ASSIGN(const EngineStats after, occupancy.wait_for(before.steps + *command_.rounds));
    run->wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    run->window = window_between(before, after, {engine_.info().device == "cpu", load != nullptr});
    return {};
  }

  Engine& engine_;
  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  RoundsReport& report_;
};

}  // namespace

int64_t rounds_model_len(const BenchCommand& command, int block_size) {
  const int64_t rounds = *command.rounds + command.warm_rounds + kSlackSteps;
  const auto& loads = command.schedule.empty() ? command.concurrency : command.schedule;
  // Steps that only fill the slots: one pass takes at least that many prompt tokens.
  constexpr int64_t kLeastChunk = 256;
  const int64_t widest = *std::max_element(loads.begin(), loads.end());
  const int64_t filling = widest * (command.prompt_tokens / kLeastChunk + 1);
  const int64_t filled_with = command.schedule.empty() ? 1 : block_size;
  return command.prompt_tokens + filling * filled_with + rounds * block_size;
}

Status measure_rounds(Engine& engine, const BenchCommand& command, InterruptWatch* interrupt, Console* console,
                      RoundsReport* report) {
  return RoundsMeasurement(engine, command, interrupt, console, report).run();
}

}  // namespace volley::apps
