#include "apps/bench/load_trace.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "apps/bench/occupancy.h"
#include "apps/bench/stats_window.h"
#include "apps/bench/workload.h"

namespace volley::apps {
namespace {

class LoadTrace {
 public:
  LoadTrace(Engine& engine, const BenchCommand& command, InterruptWatch* interrupt, Console* console,
            OrderedOutput* output)
      : engine_(engine),
        command_(command),
        interrupt_(interrupt),
        console_(*console),
        output_(*output),
        last_(engine.stats()) {
    first_step_ = last_.steps;
    kind_ = {engine.info().device == "cpu", engine.info().block_size > 1 && !command.engine.simulations.empty()};
  }

  Status run() {
    for (load_ = 0; load_ < command_.schedule.size() && !interrupt_->interrupted(); ++load_) {
      VOLLEY_RETURN_IF_ERROR(run_load());
    }
    console_.clear_progress();
    return written_;
  }

 private:
  Status run_load() {
    const auto& simulations = command_.engine.simulations;
    const Simulation* simulation = kind_.simulated ? &simulations[load_ % simulations.size()] : nullptr;
    const int concurrency = command_.schedule[load_];
    console_.progress(std::to_string(concurrency) + " requests",
                      static_cast<double>(load_) / static_cast<double>(command_.schedule.size()));
    std::vector<GenerateRequest> requests = rounds_workload(engine_, command_, simulation, concurrency);
    Occupancy occupancy(engine_, interrupt_, [this](const EngineStats& stats) { sample(stats); });
    VOLLEY_RETURN_IF_ERROR(occupancy.fill(std::move(requests)));
    const auto ended = occupancy.wait_for(engine_.stats().steps + *command_.rounds);
    return ended.ok() ? Status() : Status(ended.error());
  }

  void sample(const EngineStats& stats) {
    if (stats.steps == last_.steps) return;
    const StatsWindow window = window_between(last_, stats, kind_);
    const nlohmann::ordered_json line = {{"load", load_},
                                         {"running", stats.requests_running},
                                         {"step", stats.steps - first_step_},
                                         {"steps", window.steps},
                                         {"draft", window.draft},
                                         {"rows", window.rows},
                                         {"tokens", window.tokens},
                                         {"seconds", window.seconds},
                                         {"plain", window.plain},
                                         {"probes", window.probes}};
    if (written_.ok()) written_ = output_.put(lines_++, line.dump());
    last_ = stats;
  }

  Engine& engine_;
  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  OrderedOutput& output_;
  int64_t lines_ = 0;
  Status written_;
  WindowKind kind_;
  size_t load_ = 0;
  EngineStats last_;
  int64_t first_step_ = 0;
};

}  // namespace

Status trace_loads(Engine& engine, const BenchCommand& command, InterruptWatch* interrupt, Console* console,
                   OrderedOutput* output) {
  return LoadTrace(engine, command, interrupt, console, output).run();
}

}  // namespace volley::apps
