#include "apps/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "apps/bench/report.h"
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

// Tokens of a step when position i of a block survives with p^i.
double expected_tokens(double p, int block) {
  double tokens = 1, survives = 1;
  for (int i = 1; i < block; ++i) tokens += survives *= p;
  return tokens;
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

  void report(bool on_cpu, BenchRow* row, double tokens_a_step) const {
    if (!begin_ || end_.steps == begin_->steps) return;
    const double steps = static_cast<double>(end_.steps - begin_->steps);
    const double idle = end_.idle_s - begin_->idle_s;
    // A GPU's steps follow one another; on the CPU the host's work comes between them.
    const double busy = end_.device_s - begin_->device_s + (on_cpu ? end_.host_s - begin_->host_s : 0);
    row->full_step_ms = (busy + idle) / steps * 1e3;
    row->full_tok_s = row->concurrency * tokens_a_step / (row->full_step_ms / 1e3);
    row->idle_share = idle / (busy + idle);
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
    Failure failure = check_modes();
    if (!failure.message.empty()) return fail(failure);
    for (const Mode& mode : modes()) {
      failure = measure_mode(mode);
      if (!failure.message.empty() || interrupt_->interrupted()) break;
    }
    if (!failure.message.empty()) return fail(failure);
    std::fputs(table_footer(report_).c_str(), stdout);
    const std::string json = report_json(report_);
    if (command_.output) {
      if (Status written = output->put(0, json); !written.ok()) return fail({kExitUsage, written.error().message});
    }
    if (command_.json) std::printf("%s\n", json.c_str());
    const Status flushed = flush_standard_output();
    if (!flushed.ok()) return fail({kExitUsage, flushed.error().message});
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

  std::vector<Mode> modes() const {
    std::vector<Speculation> kinds = command_.speculation;
    if (kinds.empty()) {
      kinds = {Speculation::kOff};
      const bool drafter = command_.engine.draft ? *command_.engine.draft != "none" : !command_.engine.model;
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

  int widest() const { return *std::max_element(command_.concurrency.begin(), command_.concurrency.end()); }

  Result<EngineSetup> setup_of(const Mode& mode) const {
    EngineFlags flags = command_.engine;
    flags.speculation = mode.speculation;
    flags.base.block_size = mode.block_size;
    if (mode.speculation == Speculation::kOff) flags.base.simulate_acceptance.reset();
    if (!command_.input && flags.base.max_model_len == 0) {
      flags.base.max_model_len = command_.prompt_tokens + command_.output_tokens;
    }
    return resolve_engine(flags, widest());
  }

  static Failure setup_failure(const Error& error) {
    return {error.code == ErrorCode::kNotFound ? kExitModel : kExitUsage, error.message};
  }

  // That every mode could be started: the last one's mistake should not cost the measurements before it.
  Failure check_modes() const {
    const std::vector<Mode> all = modes();
    const bool drafts =
        std::any_of(all.begin(), all.end(), [](const Mode& mode) { return mode.speculation == Speculation::kDFlash; });
    if (!drafts && command_.engine.base.simulate_acceptance) {
      return {kExitUsage, "--simulate-acceptance needs speculation: give a drafter, and dflash among --spec."};
    }
    if (!drafts && command_.block_sizes != BenchCommand{}.block_sizes) {
      return {kExitUsage, "--block-size needs speculation: give a drafter, and dflash among --spec."};
    }
    for (const Mode& mode : all) {
      const auto setup = setup_of(mode);
      if (!setup.ok()) return setup_failure(setup.error());
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
    if (mode.speculation == Speculation::kDFlash && !command_.input && !setup->options.simulate_acceptance) {
      console_.note("Prompts are random, so what is accepted says little: --input FILE measures real ones.");
    }
    auto workload = make_workload(*engine.value(), command_, requests_at(widest()));
    if (!workload.ok()) return {kExitUsage, workload.error().message};
    warm_up(*engine.value(), workload.value().front());
    for (const int concurrency : command_.concurrency) {
      if (interrupt_->interrupted()) break;
      measure(*engine.value(), *workload, mode, concurrency);
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
    report_.simulated_acceptance = command_.engine.base.simulate_acceptance;
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

  void measure(Engine& engine, const std::vector<GenerateRequest>& workload, const Mode& mode, int concurrency) {
    BenchRow row;
    row.speculation = mode.speculation;
    row.block_size = engine.info().block_size;
    row.concurrency = concurrency;
    engine.drop_prefix_cache();
    row.speed = probe(engine);
    const EngineStats before = engine.stats();
    const int count = requests_at(concurrency);
    FullOccupancy full;
    row.summary = run_requests(engine, workload, count, concurrency, &full, &row.same_tokens);
    const EngineStats after = engine.stats();
    row.speed = better(row.speed, probe(engine));
    row.target_passes = after.steps - before.steps;
    row.phases = phases_between(before, after);
    const auto& simulated = command_.engine.base.simulate_acceptance;
    const bool drafts = mode.speculation == Speculation::kDFlash;
    full.report(engine.info().device == "cpu", &row,
                !drafts     ? 1.0
                : simulated ? expected_tokens(*simulated, row.block_size)
                            : row.summary.acceptance_length);

    const EngineInfo& info = engine.info();
    const bool bf16 = info.dtype == "bfloat16";
    // Weights may be stored narrower than the arithmetic.
    const int64_t parameters = model::count_parameters(target_) + (draft_ ? model::count_parameters(*draft_) : 0);
    const int64_t bytes_per_weight = info.weight_bytes < 3 * parameters ? 2 : 4;
    row.peak_flops = bf16 && row.speed.bf16_flops > 0 ? row.speed.bf16_flops : row.speed.f32_flops;
    const double answered = static_cast<double>(std::max<int64_t>(1, row.summary.requests - row.summary.errors));
    const double context =
        (static_cast<double>(row.summary.prompt_tokens) + static_cast<double>(row.summary.completion_tokens) / 2) /
        answered;
    row.floor =
        step_floor(target_, draft_ ? &*draft_ : nullptr, {std::min(concurrency, count), info.block_size, context},
                   bytes_per_weight, info.kv_bytes_per_token);
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
    if (!command_.engine.base.simulate_acceptance && !interrupt_->interrupted()) *same_tokens = same;
    return pool.summary();
  }

  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  BenchReport report_;
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
