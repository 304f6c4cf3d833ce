#include "ops/choice/choice.h"

#include <algorithm>

#include "base/check.h"
#include "device/cpu/thread_pool.h"
#include "ops/choice/choice_kernels.h"
#include "ops/choice/choose_row.h"
#include "ops/choice/sampler_state_cpu.h"

namespace volley::ops {
namespace {

using choice::Candidate;
using choice::CpuSamplerState;
using choice::RowScratch;
using choice::Slices;
using choice::Slot;

// Below this vocabulary a row is too little work to share between threads.
constexpr int64_t kSharedRowVocab = 32768;

// Rows of one segment that run in order; mostly a single row.
struct Task {
  int32_t segment;
  int32_t first;
  int32_t rows;
};
static_assert(sizeof(Task) == 3 * sizeof(int32_t));
static_assert(sizeof(Candidate) == 3 * sizeof(float));

void check_segments(TensorView logits, std::span<const ChoiceSegment> segments) {
  int64_t rows = 0;
  for (const ChoiceSegment& s : segments) {
    VOLLEY_CHECK(s.rows >= 0 && s.row_begin >= 0);
    VOLLEY_CHECK_LE(int64_t{s.row_begin} + s.rows, logits.dim(0));
    VOLLEY_CHECK_GE(s.first_index, 0);
    VOLLEY_CHECK(s.mask == nullptr || s.mask_words > 0);
    rows += s.rows;
  }
  VOLLEY_CHECK_LE(rows, logits.dim(0));
}

// The rows of a drafted block need the choices before them when penalties count these.
bool runs_in_order(const ChoiceSegment& segment, const Slot& slot) {
  return segment.prefix == nullptr && slot.rule.penalised;
}

class Batch {
 public:
  Batch(TensorView logits, std::span<const ChoiceSegment> segments, const CpuSamplerState& state,
        const ChoiceOutput& out)
      : logits_(logits.as<float>()), vocab_(logits.dim(1)), segments_(segments), state_(state), out_(out) {}

  // Fills tasks[rows] and returns how many there are.
  int64_t plan(Task* tasks) const {
    int64_t count = 0;
    for (int32_t s = 0; s < static_cast<int32_t>(segments_.size()); ++s) {
      const int32_t rows = segments_[s].rows;
      const int32_t step = rows > 0 && runs_in_order(segments_[s], state_.slot(segments_[s].slot)) ? rows : 1;
      for (int32_t first = 0; first < rows; first += step) tasks[count++] = {s, first, step};
    }
    return count;
  }

  // pool: null, or the threads that share each row.
  void run(const Task& task, ThreadPool* pool, const RowScratch& scratch) const {
    const ChoiceSegment& segment = segments_[task.segment];
    const Slot& slot = state_.slot(segment.slot);
    const Slices slices(static_cast<int32_t>(vocab_), pool);
    for (int32_t i = task.first; i < task.first + task.rows; ++i) {
      const int64_t row = int64_t{segment.row_begin} + i;
      choice::RowInput in;
      in.logits = logits_ + row * vocab_;
      in.slot = &slot;
      in.index = segment.first_index + i;
      if (slot.rule.penalised) {
        const TokenId* prefix = segment.prefix != nullptr ? segment.prefix : out_.tokens + segment.row_begin;
        in.prefix = {prefix, static_cast<size_t>(i)};
      }
      if (segment.mask != nullptr) {
        const size_t words = static_cast<size_t>(segment.mask_words);
        in.mask = {segment.mask + i * words, words};
      }
      const bool wants_logprobs = out_.logprobs != nullptr && slot.sampling.params.logprobs >= 0;
      const choice::RowOutput out = {.token = out_.tokens + row,
                                     .probability = out_.probability != nullptr ? out_.probability + row : nullptr,
                                     .logprobs = wants_logprobs ? out_.logprobs + row : nullptr,
                                     .finite = out_.finite != nullptr ? out_.finite + row : nullptr};
      choice::choose_row(in, out, slices, scratch);
    }
  }

 private:
  const float* logits_;
  int64_t vocab_;
  std::span<const ChoiceSegment> segments_;
  const CpuSamplerState& state_;
  const ChoiceOutput& out_;
};

ChoicePlan plan_choices_cpu(Stream& /*stream*/, const ChoiceTask& task, bool /*summarises*/, Arena& /*scratch*/) {
  ChoicePlan plan;
  plan.task = task;
  return plan;
}

void choose_cpu(Stream& stream, const ChoicePlan& plan, TensorView logits, Arena& scratch) {
  const ChoiceTask& task = plan.task;
  const int64_t vocab = logits.dim(1), threads = stream.threads();
  ArenaScope scope(scratch);
  Task* tasks = reinterpret_cast<Task*>(scratch.take(DType::kI32, {task.rows, 3}).data);
  float* adjusted = scratch.take(DType::kF32, {threads, vocab}).as<float>();
  auto* candidates = reinterpret_cast<Candidate*>(scratch.take(DType::kF32, {threads, vocab, 3}).data);

  if (stream.dry()) return;

  ThreadPool& pool = stream.pool();
  check_segments(logits, task.segments);
  const Batch batch(logits, task.segments, static_cast<const CpuSamplerState&>(*task.state), task.out);
  const int64_t count = batch.plan(tasks);
  // As many tasks as threads at a time, a thread each; the rest one by one with all threads on a row.
  const int64_t whole = threads > 1 && vocab >= kSharedRowVocab ? count / threads * threads : count;
  pool.parallel_for(whole, [&](int64_t i, int worker) {
    batch.run(tasks[i], nullptr, {adjusted + worker * vocab, candidates + worker * vocab});
  });
  for (int64_t i = whole; i < count; ++i) batch.run(tasks[i], &pool, {adjusted, candidates});
}

Result<std::unique_ptr<SamplerState>> create_state_cpu(Device& /*device*/, int32_t slots, int32_t vocab) {
  return std::unique_ptr<SamplerState>(std::make_unique<CpuSamplerState>(slots, vocab));
}

}  // namespace

const choice::ChoiceKernels choice::ChoiceKernels::kCpu = {plan_choices_cpu, choose_cpu, create_state_cpu};

Result<std::unique_ptr<SamplerState>> SamplerState::create(Device& device, int32_t slots, int32_t vocab) {
  VOLLEY_CHECK(slots >= 1 && vocab >= 1 && vocab <= kMaxVocab);
  return kernels_on<choice::ChoiceKernels>(device.kind()).create_state(device, slots, vocab);
}

ChoicePlan plan_choices(Stream& stream, const ChoiceTask& task, bool summarises, Arena& scratch) {
  VOLLEY_CHECK(task.out.tokens != nullptr && task.state != nullptr && task.state->kind() == stream.kind());
  ChoicePlan nothing;
  nothing.task = task;
  if (task.rows == 0 || task.segments.empty()) return nothing;
  return kernels_on<choice::ChoiceKernels>(stream).plan_choices(stream, task, summarises, scratch);
}

void choose(Stream& stream, const ChoicePlan& plan, TensorView logits, Arena& scratch) {
  const ChoiceTask& task = plan.task;
  VOLLEY_CHECK_EQ(logits.rank, 2);
  VOLLEY_CHECK(logits.dtype == DType::kF32);
  VOLLEY_CHECK(logits.dim(1) >= 1 && logits.dim(1) <= kMaxVocab);
  VOLLEY_CHECK_EQ(logits.dim(0), task.rows);
  if (task.rows == 0 || task.segments.empty()) return;
  kernels_on<choice::ChoiceKernels>(stream).choose(stream, plan, logits, scratch);
}

void choose(Stream& stream, TensorView logits, std::span<const ChoiceSegment> segments, const SamplerState& state,
            const ChoiceOutput& out, Arena& scratch) {
  ArenaScope scope(scratch);
  choose(stream, plan_choices(stream, {logits.dim(0), segments, &state, out}, false, scratch), logits, scratch);
}

}  // namespace volley::ops
