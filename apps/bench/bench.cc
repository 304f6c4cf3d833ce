#include "apps/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "apps/bench/load_trace.h"
#include "apps/bench/report.h"
#include "apps/bench/rounds.h"
#include "apps/bench/workload.h"
#include "apps/client/request_pool.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/generate/ordered_output.h"
#include "apps/standard_streams.h"
#include "device/probe.h"

namespace volley::apps {
namespace {

// A failure with the exit status it means.
struct Failure {
  int status = kExitOk;
  std::string message;
};

struct Mode {
  Speculation speculation;
  int block_size;  // 0: the drafter's own
};

PhaseTimes phases_between(const EngineStats& before, const EngineStats& after) {
  const double scale = 1e3 / static_cast<double>(std::max<int64_t>(1, after.steps - before.steps));
  return {(after.draft_s - before.draft_s) * scale, (after.target_s - before.target_s) * scale,
          (after.choose_s - before.choose_s) * scale, (after.commit_s - before.commit_s) * scale,
          (after.host_s - before.host_s) * scale};
}

MachineSpeed better(const MachineSpeed& a, const MachineSpeed& b) {
  return {std::max(a.read_bytes_per_s, b.read_bytes_per_s), std::max(a.f32_flops, b.f32_flops),
          std::max(a.bf16_flops, b.bf16_flops)};
}

// Engine counters at the beginning and the end of the time in which every request decodes.
class FullOccupancy {
 public:
  void sample(const EngineStats& stats, bool full) {
    if (!full) {
      over_ = begin_.has_value();
    } else if (!over_) {
      if (!begin_) begin_ = stats;
      end_ = stats;
    }
  }

  StatsWindow window(const WindowKind& kind) const {
    return begin_ ? window_between(*begin_, end_, kind) : StatsWindow();
  }

 private:
  std::optional<EngineStats> begin_;
  EngineStats end_;
  bool over_ = false;
};

class Bench {
 public:
  Bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console)
      : command_(command), interrupt_(interrupt), console_(*console) {}

  int run() {
    // Whatever is wrong shows before anything takes minutes.
    auto output = OrderedOutput::open(command_.output.value_or("-"), command_.input);
    if (!output.ok()) return fail({kExitUsage, output.error().message});
    auto trace = OrderedOutput::open(command_.trace.value_or("-"));
    if (!trace.ok()) return fail({kExitUsage, trace.error().message});
    trace_ = &*trace;
    Failure failure = check_modes();
    if (!failure.message.empty()) return fail(failure);
    for (const Mode& mode : modes()) {
      failure = measure_mode(mode);
      if (!failure.message.empty() || interrupt_->interrupted()) break;
    }
    // What was measured before a failure took its minutes too.
    const bool measured = !report_.rows.empty() || !rounds_.runs.empty();
    if (failure.message.empty() || measured) {
      const Status written = publish(&*output);
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
    console_.error(failure.message);
    return failure.status;
  }

  Status publish(OrderedOutput* output) {
    console_.clear_progress();
    if (!command_.trace) {
      std::fputs((command_.rounds ? rounds_footer(rounds_) : table_footer(report_)).c_str(), stdout);
    }
    const std::string json = command_.rounds ? rounds_json(rounds_) : report_json(report_);
    if (command_.output) VOLLEY_RETURN_IF_ERROR(output->put(0, json));
    if (command_.json) std::printf("%s\n", json.c_str());
    return flush_standard_output();
  }

  std::vector<Mode> modes() const {
    std::vector<Speculation> kinds = command_.speculation;
    if (kinds.empty()) {
      const bool drafter = command_.engine.draft ? *command_.engine.draft != "none" : !command_.engine.model;
      if (!drafter || !command_.rounds) kinds = {Speculation::kOff};
      if (drafter) kinds.push_back(Speculation::kDFlash);
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

  int requests_at(int concurrency) const {
    return command_.requests > 0 ? command_.requests : std::max(4, concurrency);
  }

  int widest() const {
    const std::vector<int>& loads = command_.schedule.empty() ? command_.concurrency : command_.schedule;
    return *std::max_element(loads.begin(), loads.end());
  }

  // One engine for all: it must have measured its costs if one of them is to be auto.
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

  // What the rounds need, as far as the model goes. A folder that cannot be read is check_models' to explain.
  Status make_room(EngineOptions* options) const {
    const auto target = model::read_decoder_spec(options->model_dir);
    if (!target.ok()) return {};
    constexpr int kLargestBlock = 16;  // of drafters without one of their own
    int block = options->block_size;
    if (block == 0 && !options->draft_dir.empty()) {
      const auto draft = model::read_draft_spec(options->draft_dir);
      if (draft.ok()) block = draft->block_size;
    }
    const int64_t wanted = rounds_model_len(command_, block > 0 ? block : kLargestBlock);
    options->max_model_len = static_cast<int>(std::min<int64_t>(wanted, target->max_positions));
    return {};
  }

  static Failure setup_failure(const Error& error) {
    return {error.code == ErrorCode::kNotFound ? kExitModel : kExitUsage, error.message};
  }

  // That every mode could be started: the last one's mistake should not cost the measurements before it.
  Failure check_modes() const {
    const std::vector<Mode> all = modes();
    const bool drafts =
        std::any_of(all.begin(), all.end(), [](const Mode& mode) { return mode.speculation == Speculation::kDFlash; });
    if (!drafts && !command_.engine.simulations.empty()) {
      return {kExitUsage, "--simulate-acceptance needs speculation: give a drafter, and dflash among --spec."};
    }
    if (!drafts && command_.block_sizes != BenchCommand{}.block_sizes) {
      return {kExitUsage, "--block-size needs speculation: give a drafter, and dflash among --spec."};
    }
    if (!drafts && !command_.verify.empty()) {
      return {kExitUsage, "--verify needs speculation: give a drafter, and dflash among --spec."};
    }
    for (const Mode& mode : all) {
      auto setup = setup_of(mode);
      if (!setup.ok()) return setup_failure(setup.error());
      if (mode.speculation == Speculation::kDFlash && !command_.verify.empty()) {
        const auto fewer = [](const VerifyPolicy& a, const VerifyPolicy& b) { return a.tokens < b.tokens; };
        setup->options.verify = *std::max_element(command_.verify.begin(), command_.verify.end(), fewer);
      }
      const auto models = check_models(setup->options);
      if (!models.ok()) return {creation_exit_status(*setup, models.error()), models.error().message};
    }
    return {};
  }

  // One engine, all concurrencies.
  Failure measure_mode(const Mode& mode) {
    auto setup = setup_of(mode);
    if (!setup.ok()) return setup_failure(setup.error());
    auto engine = create_engine(*setup, &console_);
    if (!engine.ok()) return {creation_exit_status(*setup, engine.error()), engine.error().message};
    if (Status described = describe(*setup, *engine.value()); !described.ok()) {
      return {kExitModel, described.error().message};
    }
    if (command_.rounds) {
      const Status measured = command_.trace
                                  ? trace_loads(*engine.value(), command_, interrupt_, &console_, trace_)
                                  : measure_rounds(*engine.value(), command_, interrupt_, &console_, &rounds_);
      return measured.ok() ? Failure() : Failure{kExitUsage, measured.error().message};
    }
    if (mode.speculation == Speculation::kDFlash && !command_.input && !setup->options.simulate_acceptance) {
      console_.note("Prompts are random, so what is accepted says little: --input FILE measures real ones.");
    }
    auto workload = make_workload(*engine.value(), command_, requests_at(widest()));
    if (!workload.ok()) return {kExitUsage, workload.error().message};
    warm_up(*engine.value(), workload.value().front());
    for (const int concurrency : command_.concurrency) {
      for (int repeat = 0; repeat < std::max(1, command_.repeat); ++repeat) {
        const Failure failure = measure_policies(*engine.value(), *workload, mode, concurrency, repeat);
        if (!failure.message.empty()) return failure;
      }
    }
    return {};
  }

  Failure measure_policies(Engine& engine, const std::vector<GenerateRequest>& workload, const Mode& mode,
                           int concurrency, int repeat) {
    std::vector<VerifyPolicy> policies = command_.verify;
    const bool drafts = mode.speculation == Speculation::kDFlash;
    if (policies.empty() || !drafts) policies.resize(1);
    for (const VerifyPolicy& policy : policies) {
      if (interrupt_->interrupted()) break;
      const Status set = drafts && !command_.verify.empty() ? engine.set_verify(policy) : Status();
      if (!set.ok()) return {kExitUsage, set.error().message};
      BenchRow row;
      row.speculation = mode.speculation;
      row.verify = drafts ? verify_name(policy) : "off";
      row.block_size = engine.info().block_size;
      row.concurrency = concurrency;
      row.repeat = repeat;
      measure(engine, workload, std::move(row));
      if (Status written = flush_standard_output(); !written.ok()) return {kExitUsage, written.error().message};
    }
    return {};
  }

  // What floors and report need of the models.
  Status describe(const EngineSetup& setup, const Engine& engine) {
    VOLLEY_ASSIGN(target_, model::read_decoder_spec(setup.options.model_dir));
    draft_.reset();
    if (!setup.options.draft_dir.empty()) {
      VOLLEY_ASSIGN(draft_, model::read_draft_spec(setup.options.draft_dir));
    }
    report_.model = setup.model_name;
    if (draft_) report_.draft = setup.draft_name;
    report_.engine = engine.info();
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
    return {};
  }

  // Of the device that the engine runs on.
  MachineSpeed probe(const Engine& engine) {
    constexpr int64_t kGpuBytes = int64_t{4} << 30;
    const std::string& device = engine.info().device;
    if (device.starts_with("cuda:")) {
      const auto read = measure_gpu_read(std::stoi(device.substr(5)), kGpuBytes);
      if (!read.ok()) console_.note("The GPU's read bandwidth was not measured: " + read.error().message);
      return {read.ok() ? *read : 0, 0, 0};
    }
    if (!probe_) probe_.emplace(engine.info().threads);
    return probe_->measure(engine.info().weight_bytes);
  }

  void warm_up(Engine& engine, GenerateRequest request) {
    RequestPool pool(engine);
    const InterruptScope scope(interrupt_, [&pool] { pool.wake(); });
    request.max_tokens = std::min(request.max_tokens, 16);
    if (!pool.submit(0, std::move(request)).ok()) return;  // the measurement will say why
    while (pool.open() > 0 && !interrupt_->interrupted()) pool.wait(std::chrono::milliseconds(100));
  }

  void measure(Engine& engine, const std::vector<GenerateRequest>& workload, BenchRow row) {
    const int concurrency = row.concurrency;
    engine.drop_prefix_cache();
    row.speed = probe(engine);
    const EngineStats before = engine.stats();
    const int count = requests_at(concurrency);
    FullOccupancy full;
    row.summary = run_requests(engine, workload, count, concurrency, &full, &row.same_tokens);
    const EngineStats after = engine.stats();
    row.speed = better(row.speed, probe(engine));
    row.phases = phases_between(before, after);
    const WindowKind kind{engine.info().device == "cpu",
                          row.speculation == Speculation::kDFlash && !command_.engine.simulations.empty()};
    row.whole = window_between(before, after, kind);
    row.full = full.window(kind);

    const EngineInfo& info = engine.info();
    const bool bf16 = info.dtype == "bfloat16";
    // Weights may be stored narrower than the arithmetic.
    const int64_t parameters = model::count_parameters(target_) + (draft_ ? model::count_parameters(*draft_) : 0);
    const int64_t bytes_per_weight = info.weight_bytes < 3 * parameters ? 2 : 4;
    const WeightBytes bytes{bytes_per_weight, info.draft_quantization == "fp8" ? 1 : bytes_per_weight};
    row.peak_flops = bf16 && row.speed.bf16_flops > 0 ? row.speed.bf16_flops : row.speed.f32_flops;
    const double answered = static_cast<double>(std::max<int64_t>(1, row.summary.requests - row.summary.errors));
    const double context =
        (static_cast<double>(row.summary.prompt_tokens) + static_cast<double>(row.summary.completion_tokens) / 2) /
        answered;
    row.floor = step_floor(target_, draft_ ? &*draft_ : nullptr,
                           {std::min(concurrency, count), info.block_size, context}, bytes, info.kv_bytes_per_token);
    console_.clear_progress();
    if (report_.rows.empty()) std::printf("%s\n", table_header().c_str());
    std::printf("%s\n", table_row(row).c_str());
    report_.rows.push_back(std::move(row));
  }

  RunSummary run_requests(Engine& engine, const std::vector<GenerateRequest>& workload, int count, int concurrency,
                          FullOccupancy* full, std::optional<bool>* same_tokens) {
    RequestPool pool(engine);
    const InterruptScope scope(interrupt_, [&pool] { pool.wake(); });
    int64_t next = 0, done = 0;
    bool same = true;
    while (done < count && !interrupt_->interrupted()) {
      for (; next < count && pool.open() < concurrency; ++next) {
        const Status started = pool.submit(next, workload[static_cast<size_t>(next)]);
        if (started.ok()) continue;
        console_.error(started.error().message);
        ++done;
      }
      const EngineStats stats = engine.stats();
      const bool all = pool.answering() == concurrency && stats.requests_running == concurrency;
      full->sample(stats, all && stats.requests_waiting == 0);
      for (Completion& completion : pool.wait(std::chrono::milliseconds(5)).done) {
        ++done;
        if (completion.finish.error) console_.error(completion.finish.error->message);
        const auto first = first_tokens_.try_emplace(completion.index, completion.tokens).first;
        same = same && first->second == completion.tokens;
      }
      console_.progress(
          std::to_string(done) + " of " + std::to_string(count) + " requests at " + std::to_string(concurrency),
          static_cast<double>(done) / count);
    }
    pool.cancel_all();
    while (pool.open() > 0) pool.wait(std::chrono::milliseconds(100));
    if (command_.engine.simulations.empty() && !interrupt_->interrupted()) *same_tokens = same;
    return pool.summary();
  }

  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  BenchReport report_;
  RoundsReport rounds_;
  OrderedOutput* trace_ = nullptr;
  model::DecoderSpec target_;
  std::optional<model::DraftSpec> draft_;
  std::optional<MachineProbe> probe_;
  std::map<int64_t, std::vector<TokenId>> first_tokens_;  // by request: what its first run gave
};

}  // namespace

int run_bench(const BenchCommand& command, InterruptWatch* interrupt, Console* console) {
  return Bench(command, interrupt, console).run();
}

}  // namespace volley::apps
