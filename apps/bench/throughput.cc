#include "apps/bench/measurements.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/step_account.h"
#include "apps/bench/workload.h"
#include "apps/client/request_pool.h"
#include "apps/standard_streams.h"
#include "device/probe.h"

namespace volley::apps {
namespace {

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

class ThroughputMeasurement {
 public:
  ThroughputMeasurement(const BenchCommand& command, InterruptWatch* interrupt, Console* console, BenchReport* report)
      : command_(command), interrupt_(interrupt), console_(*console), report_(*report) {}

  Status run(std::span<BenchSubject> subjects) {
    const int widest = *std::max_element(command_.concurrency.begin(), command_.concurrency.end());
    several_ = subjects.size() > 1;
    for (BenchSubject& subject : subjects) {
      VOLLEY_ASSIGN(auto workload, make_workload(*subject.engine, command_, bench_requests(command_, widest)));
      VOLLEY_RETURN_IF_ERROR(warm_up(subject, workload, widest));
      workloads_.push_back(std::move(workload));
    }
    for (const int concurrency : command_.concurrency) {
      for (int repeat = 0; repeat < repeats(); ++repeat) {
        for (size_t i = 0; i < subjects.size(); ++i) {
          VOLLEY_RETURN_IF_ERROR(measure_policies(subjects[i], workloads_[i], concurrency, repeat));
        }
      }
    }
    return {};
  }

 private:
  int repeats() const { return std::max(1, command_.repeat); }

  // Where runs are compared, the first must not pay for untouched KV memory (a tenth of its time and more on a small
  // model). So the whole workload runs once before, plainly, which teaches policies only the cost of plain rounds and
  // how soon answers end.
  Status warm_up(BenchSubject& subject, const std::vector<GenerateRequest>& workload, int concurrency) {
    const bool compared = several_ || command_.verify.size() > 1 || repeats() > 1;
    if (subject.drafts() && compared) {
      VOLLEY_RETURN_IF_ERROR(subject.engine->set_verify({VerifyPolicy::Kind::kFixed, 0}));
    }
    std::vector<GenerateRequest> requests = workload;
    if (!compared) {
      requests.resize(1);
      requests.front().max_tokens = std::min(requests.front().max_tokens, 16);
    }
    RequestPool pool(*subject.engine);
    const InterruptScope scope(interrupt_, [&pool] { pool.wake(); });
    for (size_t next = 0; (next < requests.size() || pool.open() > 0) && !interrupt_->interrupted();) {
      if (next < requests.size() && pool.open() < concurrency) {
        if (!pool.submit(static_cast<int64_t>(next), std::move(requests[next])).ok())
          break;  // the measurement reports the error
        ++next;
        continue;
      }
      pool.wait(std::chrono::milliseconds(100));
    }
    pool.cancel_all();
    while (pool.open() > 0) pool.wait(std::chrono::milliseconds(100));
    return {};
  }

  Status measure_policies(BenchSubject& subject, const std::vector<GenerateRequest>& workload, int concurrency,
                          int repeat) {
    std::vector<VerifyPolicy> policies = command_.verify;
    if (policies.empty() || !subject.drafts()) policies.resize(1);
    for (const VerifyPolicy& policy : policies) {
      if (interrupt_->interrupted()) break;
      if (subject.drafts()) VOLLEY_RETURN_IF_ERROR(subject.engine->set_verify(policy));
      BenchRow row;
      row.speculation = subject.speculation;
      row.verify = subject.drafts() ? verify_name(policy) : "off";
      row.block_size = subject.engine->info().block_size;
      row.concurrency = concurrency;
      row.repeat = repeat;
      measure(subject, workload, std::move(row));
      VOLLEY_RETURN_IF_ERROR(flush_standard_output());
    }
    return {};
  }

  // Measures the engine's device. GPUs of several ranks read at once.
  MachineSpeed probe(const Engine& engine) {
    constexpr int64_t kGpuBytes = int64_t{4} << 30;
    const std::string& device = engine.info().device;
    if (device.starts_with("cuda:")) {
      const auto read = measure_gpu_read(std::stoi(device.substr(5)), kGpuBytes);
      if (!read.ok()) console_.note("The GPU's read bandwidth was not measured: " + read.error().message);
      return {read.ok() ? *read * engine.info().tensor_parallel_size : 0, 0, 0};
    }
    if (!probe_) probe_.emplace(engine.info().threads);
    return probe_->measure(engine.info().weight_bytes);
  }

  void measure(BenchSubject& subject, const std::vector<GenerateRequest>& workload, BenchRow row) {
    Engine& engine = *subject.engine;
    engine.drop_prefix_cache();
    row.speed = probe(engine);
    if (command_.kernel_times) (void)take_kernel_times();
    const EngineStats before = engine.stats();
    FullOccupancy full;
    row.summary = run_requests(engine, workload, row.concurrency, &full, &row.same_tokens);
    const EngineStats after = engine.stats();
    const std::string account = command_.kernel_times ? step_account(take_kernel_times()) : "";
    row.speed = better(row.speed, probe(engine));
    row.phases = phases_between(before, after);
    const WindowKind kind{engine.info().device == "cpu", subject.drafts() && !command_.engine.simulations.empty()};
    row.whole = window_between(before, after, kind);
    row.full = full.window(kind);
    set_floor(subject, &row);
    console_.clear_progress();
    if (report_.rows.empty()) std::printf("%s\n", table_header().c_str());
    std::printf("%s\n", table_row(row).c_str());
    if (row.experts() > 0) std::printf("       distinct experts that a step touched: %.1f\n", row.experts());
    std::fputs(account.c_str(), stdout);
    report_.rows.push_back(std::move(row));
  }

  void set_floor(const BenchSubject& subject, BenchRow* row) const {
    const EngineInfo& info = subject.engine->info();
    const decode::ProposerFacts* draft = subject.draft ? &subject.draft->facts() : nullptr;
    const bool bf16 = info.dtype == "bfloat16";
    // Weights may be stored narrower than the arithmetic.
    const model::Decoder& target = subject.target.decoder;
    const int64_t parameters = model::count(model::params(target)) + (draft ? model::count(draft->params) : 0);
    const double plain = info.weight_bytes < 3 * parameters ? 2 : 4;
    const auto bytes_of = [&](const std::string& quantization) {
      if (quantization == "int4") return ops::bytes_per_value(ops::kInt4Weights);
      return quantization == "fp8" ? 1.0 : plain;
    };
    // Only experts are MXFP4.
    const double experts = info.quantization == "mxfp4" ? ops::bytes_per_value(ops::kMxfp4Weights) : 0;
    // Output heads are no codes on GPUs; elsewhere they have at least 8 bits.
    const double head = info.device == "cpu" ? std::max(bytes_of(info.quantization), 1.0) : plain;
    const WeightBytes bytes{bytes_of(info.quantization), bytes_of(info.draft_quantization), experts, head};
    row->peak_flops = bf16 && row->speed.bf16_flops > 0 ? row->speed.bf16_flops : row->speed.f32_flops;
    const RunSummary& summary = row->summary;
    const double answered = static_cast<double>(std::max<int64_t>(1, summary.requests - summary.errors));
    const double context =
        (static_cast<double>(summary.prompt_tokens) + static_cast<double>(summary.completion_tokens) / 2) / answered;
    const int open = std::min(row->concurrency, bench_requests(command_, row->concurrency));
    const int64_t state = request_state_bytes(target, info.block_size, bf16 ? DType::kBF16 : DType::kF32);
    row->floor = step_floor(decode::step_weights(target, draft), {open, info.block_size, context, row->experts()},
                            bytes, {info.kv_bytes_per_token, state});
  }

  RunSummary run_requests(Engine& engine, const std::vector<GenerateRequest>& workload, int concurrency,
                          FullOccupancy* full, std::optional<bool>* same_tokens) {
    RequestPool pool(engine);
    const InterruptScope scope(interrupt_, [&pool] { pool.wake(); });
    const int count = bench_requests(command_, concurrency);
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
        const auto first = report_.first_tokens.try_emplace(completion.index, completion.tokens).first;
        same = same && first->second == completion.tokens;
      }
      console_.progress(
          std::to_string(done) + " of " + std::to_string(count) + " requests at " + std::to_string(concurrency),
          static_cast<double>(done) / count);
    }
    pool.cancel_all();
    while (pool.open() > 0) pool.wait(std::chrono::milliseconds(100));
    // Simulated acceptance invents tokens, and simulated routing depends on a request's slot.
    const bool made_up = !command_.engine.simulations.empty() || command_.engine.base.simulate_routing;
    if (!made_up && !interrupt_->interrupted()) *same_tokens = same;
    return pool.summary();
  }

  bool several_ = false;  // engines take turns
  const BenchCommand& command_;
  InterruptWatch* interrupt_;
  Console& console_;
  BenchReport& report_;
  std::vector<std::vector<GenerateRequest>> workloads_;  // one for each subject
  std::optional<MachineProbe> probe_;
};

}  // namespace

int bench_requests(const BenchCommand& command, int concurrency) {
  return command.requests > 0 ? command.requests : std::max(4, concurrency);
}

Status measure_throughput(std::span<BenchSubject> subjects, const BenchCommand& command, InterruptWatch* interrupt,
                          Console* console, BenchReport* report) {
  return ThroughputMeasurement(command, interrupt, console, report).run(subjects);
}

}  // namespace volley::apps
