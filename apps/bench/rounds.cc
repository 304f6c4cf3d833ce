#include "apps/bench/measurements.h"

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
constexpr int kSlackSteps = 64;  // additional steps of a load: those under way, and missed snapshots

class RoundsMeasurement {
 public:
  RoundsMeasurement(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                    Console* console, RoundsReport* report)
      : subjects_(subjects), command_(command), interrupt_(interrupt), console_(*console), report_(*report) {}

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
  bool any_drafts() const { return std::ranges::any_of(subjects_, &BenchSubject::drafts); }

  // Null: acceptance is not simulated.
  std::vector<const Simulation*> loads() const {
    std::vector<const Simulation*> all;
    if (any_drafts()) {
      for (const Simulation& simulation : command_.engine.simulations) all.push_back(&simulation);
    }
    return all.empty() ? std::vector<const Simulation*>{nullptr} : all;
  }

  // Modes run in turn, again and again, so that other load on the machine meets all of them.
  Status measure_cell(const Simulation* load, int concurrency) {
    const int repeats = command_.repeat > 0 ? command_.repeat : kDefaultRepeats;
    const size_t first = report_.runs.size();
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (BenchSubject& subject : subjects_) {
        std::vector<VerifyPolicy> policies = command_.verify;
        if (policies.empty() || !subject.drafts()) policies.resize(1);
        for (const VerifyPolicy& policy : policies) {
          RoundsRun run;
          run.load = !any_drafts() ? "" : load != nullptr ? load->text : "real";
          run.concurrency = concurrency;
          run.mode = subject.drafts() ? verify_name(policy) : "off";
          run.repeat = repeat;
          console_.progress(run.load + ", " + std::to_string(concurrency) + " requests, " + run.mode,
                            static_cast<double>(repeat) / repeats);
          VOLLEY_RETURN_IF_ERROR(measure(subject, subject.drafts() ? load : nullptr, policy, &run));
          if (interrupt_->interrupted()) return {};
          report_.runs.push_back(std::move(run));
        }
      }
    }
    console_.clear_progress();
    if (first == 0) std::printf("%s\n", rounds_header().c_str());
    const std::span<const RoundsRun> cell = std::span<const RoundsRun>(report_.runs).subspan(first);
    std::fputs(rounds_lines(cell).c_str(), stdout);
    return flush_standard_output();
  }

  Status measure(BenchSubject& subject, const Simulation* load, const VerifyPolicy& policy, RoundsRun* run) {
    Engine& engine = *subject.engine;
    std::vector<GenerateRequest> requests = rounds_workload(engine, command_, load, run->concurrency);
    // Decodes plainly until all requests decode, so that the first are not far ahead of the last.
    if (subject.drafts()) VOLLEY_RETURN_IF_ERROR(engine.set_verify({VerifyPolicy::Kind::kFixed, 0}));
    Occupancy occupancy(engine, interrupt_);
    VOLLEY_RETURN_IF_ERROR(occupancy.fill(std::move(requests)));
    if (subject.drafts()) VOLLEY_RETURN_IF_ERROR(engine.set_verify(policy));
    // Policies that learn nothing get as many steps, because contexts grow meanwhile and must be equal.
    VOLLEY_ASSIGN(const EngineStats before, occupancy.wait_for(engine.stats().steps + command_.warm_rounds));
    const Clock::time_point begin = Clock::now();
    VOLLEY_ASSIGN(const EngineStats after, occupancy.wait_for(before.steps + *command_.rounds));
    run->wall_s = std::chrono::duration<double>(Clock::now() - begin).count();
    run->window = window_between(before, after, {engine.info().device == "cpu", load != nullptr});
    return {};
  }

  std::span<BenchSubject> subjects_;
  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  RoundsReport& report_;
};

}  // namespace

int64_t rounds_model_len(const BenchCommand& command, int block_size) {
  const int64_t rounds = *command.rounds + command.warm_rounds + kSlackSteps;
  const auto& loads = command.schedule.empty() ? command.concurrency : command.schedule;
  // The slots are filled by passes of at least this many prompt tokens.
  constexpr int64_t kLeastChunk = 256;
  const int64_t widest = *std::max_element(loads.begin(), loads.end());
  const int64_t filling = widest * (command.prompt_tokens / kLeastChunk + 1);
  const int64_t filled_with = command.schedule.empty() ? 1 : block_size;
  return command.prompt_tokens + filling * filled_with + rounds * block_size;
}

Status measure_rounds(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                      Console* console, RoundsReport* report) {
  return RoundsMeasurement(subjects, command, interrupt, console, report).run();
}

}  // namespace volley::apps
