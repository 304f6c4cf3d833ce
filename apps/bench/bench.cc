#include "apps/commands.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "apps/bench/load_trace.h"
#include "apps/bench/measurements.h"
#include "apps/bench/report.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/generate/ordered_output.h"
#include "apps/standard_streams.h"
#include "decode/proposers.h"
#include "device/kernel_times.h"

namespace volley::apps {
namespace {

// A failure and its exit status.
struct Failure {
  int status = kExitOk;
  std::string message;
};

struct Mode {
  Speculation speculation;
  int block_size;  // 0: the drafter's own
};

class Bench {
 public:
  Bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console)
      : command_(command), interrupt_(interrupt), console_(*console) {}

  int run() {
    // Checks everything before any long work.
    auto output = OrderedOutput::open(command_.output.value_or("-"), command_.input);
    if (!output.ok()) return fail({kExitUsage, output.error().message});
    auto trace = OrderedOutput::open(command_.trace.value_or("-"));
    if (!trace.ok()) return fail({kExitUsage, trace.error().message});
    output_ = &*output;
    trace_ = &*trace;
    Failure failure = check_modes();
    if (!failure.message.empty()) return fail(failure);
    if (command_.kernel_times) {
      const Status records = start_kernel_times();
      if (!records.ok()) return fail({kExitUsage, records.error().message});
    }
    const std::vector<Mode> all = modes();
    for (std::span<const Mode> left = all; !left.empty() && failure.message.empty() && !interrupt_->interrupted();) {
      failure = measure_some(&left);
    }
    if (failure.message.empty() || measured_any()) {
      const Status written = publish();
      if (failure.message.empty() && !written.ok()) failure = {kExitUsage, written.error().message};
    }
    if (!failure.message.empty()) return fail(failure);
    if (interrupt_->interrupted()) return interrupt_->exit_status();
    const bool all_ran = std::all_of(report_.rows.begin(), report_.rows.end(),
                                     [](const BenchRow& row) { return row.summary.errors == 0; });
    return all_ran ? kExitOk : kExitRequestsFailed;
  }

 private:
  int fail(const Failure& failure) {
    console_.clear_progress();
    return console_.fail(failure.message, failure.status);
  }

  // Earlier measurements are reported even after a failure.
  bool measured_any() const { return !report_.rows.empty() || !rounds_.runs.empty(); }

  Status publish() {
    console_.clear_progress();
    if (!command_.trace) {
      std::fputs((command_.rounds ? rounds_footer(rounds_) : table_footer(report_)).c_str(), stdout);
    }
    const std::string json = command_.rounds ? rounds_json(rounds_) : report_json(report_);
    if (command_.output) VOLLEY_RETURN_IF_ERROR(output_->put(0, json));
    if (command_.json) std::printf("%s\n", json.c_str());
    return flush_standard_output();
  }

  std::vector<Mode> modes() const {
    std::vector<Speculation> kinds = command_.speculation;
    if (kinds.empty()) {
      const bool drafter = command_.engine.draft ? *command_.engine.draft != "none" : !command_.engine.model;
      if (!drafter || !command_.rounds) kinds = {Speculation::kOff};
      if (drafter) kinds.push_back(Speculation::kOn);
    }
    std::vector<Mode> modes;
    for (const Speculation kind : kinds) {
      if (kind == Speculation::kOff) {
        modes.push_back({kind, 0});
        continue;
      }
      for (const int block : command_.block_sizes) modes.push_back({kind, block});
    }
    return modes;
  }

  int widest() const {
    const std::vector<int>& loads = command_.schedule.empty() ? command_.concurrency : command_.schedule;
    return *std::max_element(loads.begin(), loads.end());
  }

  // All modes share one engine, which must measure its costs if one of them is auto.
  VerifyPolicy first_policy() const {
    for (const VerifyPolicy& policy : command_.verify) {
      if (policy.kind == VerifyPolicy::Kind::kAuto) return policy;
    }
    return command_.verify.empty() ? VerifyPolicy() : command_.verify.front();
  }

  Result<EngineSetup> setup_of(const Mode& mode) const {
    EngineFlags flags = command_.engine;
    flags.speculation = mode.speculation;
    flags.base.block_size = mode.block_size;
    if (mode.speculation == Speculation::kOff) {
      flags.simulations.clear();
    } else {
      flags.base.verify = first_policy();
    }
    if (!command_.input && !command_.rounds && flags.base.max_model_len == 0) {
      flags.base.max_model_len = command_.prompt_tokens + command_.output_tokens;
    }
    VOLLEY_ASSIGN(EngineSetup setup, resolve_engine(flags, widest()));
    if (command_.rounds && flags.base.max_model_len == 0) VOLLEY_RETURN_IF_ERROR(make_room(&setup.options));
    return setup;
  }

  // Makes the context long enough for the rounds. check_models reports a folder that cannot be read.
  Status make_room(EngineOptions* options) const {
    const auto target = families::read_target(options->model_dir);
    if (!target.ok()) return {};
    constexpr int kLargestBlock = 16;  // for drafters that state no block size
    int block = options->block_size;
    for (const std::string& dir : engine::draft_dirs(*options)) {
      const auto draft = decode::read_proposer(dir);
      if (options->block_size == 0 && draft.ok()) block = std::max(block, 1 + (*draft)->facts().proposals);
    }
    const int64_t wanted = rounds_model_len(command_, block > 0 ? block : kLargestBlock);
    options->max_model_len = static_cast<int>(std::min<int64_t>(wanted, target->max_positions));
    return {};
  }

  static Failure setup_failure(const Error& error) { return {setup_exit_code(error), error.message}; }

  // Checks that every mode can start, so that a mistake in the last one does not cost the measurements before it.
  Failure check_modes() const {
    const std::vector<Mode> all = modes();
    const bool drafts =
        std::any_of(all.begin(), all.end(), [](const Mode& mode) { return mode.speculation == Speculation::kOn; });
    if (!drafts && !command_.engine.simulations.empty()) {
      return {kExitUsage, "--simulate-acceptance needs speculation: give a drafter, and dflash among --spec."};
    }
    if (!drafts && command_.block_sizes != BenchCommand{}.block_sizes) {
      return {kExitUsage, "--block-size needs speculation: give a drafter, and dflash among --spec."};
    }
    if (!drafts && !command_.verify.empty()) {
      return {kExitUsage, "--verify needs speculation: give a drafter, and dflash among --spec."};
    }
    if (command_.engine.base.nnodes > 1 && all.size() > 1) {
      return {kExitUsage,
              "The other nodes compute for one engine, and each of " + std::to_string(all.size()) +
                  " modes makes its own: with --nnodes run bench once for each, with one --spec and at most "
                  "one --block-size, and give all nodes these, --max-model-len and --max-num-seqs."};
    }
    for (const Mode& mode : all) {
      auto setup = setup_of(mode);
      if (!setup.ok()) return setup_failure(setup.error());
      if (mode.speculation == Speculation::kOn && !command_.verify.empty()) {
        const auto fewer = [](const VerifyPolicy& a, const VerifyPolicy& b) { return a.tokens < b.tokens; };
        setup->options.verify = *std::max_element(command_.verify.begin(), command_.verify.end(), fewer);
      }
      const auto models = check_models(setup->options);
      if (!models.ok()) return {creation_exit_status(*setup, models.error()), models.error().message};
    }
    return {};
  }

  Result<BenchSubject> subject_of(const Mode& mode, const EngineSetup& setup, std::unique_ptr<Engine> engine) {
    BenchSubject subject{mode.speculation, std::move(engine), {}, {}};
    VOLLEY_ASSIGN(subject.target, families::read_target(setup.options.model_dir));
    if (!setup.options.draft_dir.empty()) {
      VOLLEY_ASSIGN(subject.draft, decode::read_proposer(setup.options.draft_dir));
    }
    describe(setup, subject);
    return subject;
  }

  // Policies take turns with an engine without a drafter, to compare them. A GPU has no memory for two engines.
  bool takes_turns(const BenchSubject& subject) const {
    const bool compared = !command_.trace && !command_.verify.empty() && command_.block_sizes.size() == 1;
    return compared && subject.engine->info().device == "cpu";
  }

  // Measures the first of `modes` and those that take turns with it, if memory allows, and removes them from the list.
  Failure measure_some(std::span<const Mode>* modes) {
    DeviceFailure device(&console_);
    std::vector<BenchSubject> subjects;
    do {
      const Mode& mode = modes->front();
      auto setup = setup_of(mode);
      if (!setup.ok()) return setup_failure(setup.error());
      auto engine = create_engine(*setup, &console_, &device);
      // Memory holds only one engine, so this mode is measured later by itself.
      if (!engine.ok() && engine.error().code == ErrorCode::kResourceExhausted && !subjects.empty()) break;
      *modes = modes->subspan(1);
      if (!engine.ok()) return {creation_exit_status(*setup, engine.error()), engine.error().message};
      auto subject = subject_of(mode, *setup, std::move(*engine));
      if (!subject.ok()) return {kExitModel, subject.error().message};
      subjects.push_back(std::move(*subject));
      if (mode.speculation == Speculation::kOn && !command_.input && !command_.rounds && !setup->simulate_acceptance) {
        console_.note("Prompts are random, so what is accepted says little: --input FILE measures real ones.");
      }
    } while (!modes->empty() && takes_turns(subjects.back()));
    const Status measured = measure(subjects);
    if (device.happened() && measured_any()) (void)publish();
    device.leave();
    return measured.ok() ? Failure() : Failure{kExitUsage, measured.error().message};
  }

  Status measure(std::span<BenchSubject> subjects) {
    if (!command_.rounds) return measure_throughput(subjects, command_, interrupt_, &console_, &report_);
    if (!command_.trace) return measure_rounds(subjects, command_, interrupt_, &console_, &rounds_);
    return trace_loads(*subjects.front().engine, command_, interrupt_, &console_, trace_);
  }

  void describe(const EngineSetup& setup, const BenchSubject& subject) {
    report_.model = setup.model_name;
    if (subject.draft) report_.draft = setup.draft_name;
    report_.engine = subject.engine->info();
    report_.prompts = command_.input.value_or("");
    report_.prompt_tokens = command_.input ? 0 : command_.prompt_tokens;
    report_.output_tokens = command_.output_tokens;
    if (!command_.engine.simulations.empty()) report_.simulated_acceptance = command_.engine.simulations.front().text;
    rounds_.model = report_.model;
    rounds_.draft = report_.draft;
    rounds_.engine = report_.engine;
    rounds_.prompt_tokens = command_.prompt_tokens;
    rounds_.rounds = command_.rounds.value_or(0);
    rounds_.warm_rounds = command_.warm_rounds;
    rounds_.confidence_odds = command_.engine.confidence_odds;
  }

  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  BenchReport report_;
  RoundsReport rounds_;
  OrderedOutput *output_ = nullptr, *trace_ = nullptr;
};

// Random tokens tell little about a model that knows a few tasks alone, so its folder may have prompts. They end early,
// so there are more of them.
BenchCommand with_own_prompts(BenchCommand command) {
  constexpr int kLeastRequests = 64;
  const bool made_up = command.engine.base.dummy_weights || !command.engine.simulations.empty();
  if (command.input || command.random_prompts || command.rounds || made_up) return command;
  const auto folders = locate_models(command.engine.model, command.engine.draft);
  if (!folders.ok()) return command;  // resolve_engine() reports the error
  const std::filesystem::path prompts = std::filesystem::path(folders->target.dir) / "prompts.jsonl";
  std::error_code ignored;
  if (!std::filesystem::exists(prompts, ignored)) return command;
  command.input = prompts.string();
  const int widest = *std::max_element(command.concurrency.begin(), command.concurrency.end());
  if (command.requests == 0) command.requests = std::max(kLeastRequests, widest);
  return command;
}

}  // namespace

int run_bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console) {
  const BenchCommand with_prompts = with_own_prompts(command);
  return Bench(with_prompts, interrupt, console).run();
}

}  // namespace volley::apps
