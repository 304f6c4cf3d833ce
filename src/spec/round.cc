#include "spec/round.h"

#include <chrono>

#include "device/cpu/thread_pool.h"
#include "ops/acceptance/acceptance.h"
#include "ops/gather/gather.h"
#include "spec/logit_chunks.h"
#include "spec/simulate.h"

namespace volley::spec {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the time since construction, or since the last lap, to a counter.
class Stopwatch {
 public:
  void lap(double& total) {
    const Clock::time_point now = Clock::now();
    total += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

int64_t table_width(const RoundConfig& config) {
  return (config.max_positions + config.page_size - 1) / config.page_size;
}

int64_t scratch_bytes(const model::Target& target, const Proposer* proposer, const RoundConfig& config, int threads) {
  const auto& spec = target.spec();
  const int64_t rows = config.max_rows, block = proposer ? proposer->block_size() : 1;
  const int64_t logit_rows = logit_chunk_rows(static_cast<int32_t>(block));
  const int64_t features = proposer ? static_cast<int64_t>(proposer->feature_layers().size()) * spec.hidden : 0;
  const int64_t forward = model::DecoderLayers::scratch_bytes(spec, rows, config.max_positions);
  const int64_t logits = logit_rows * (int64_t{spec.vocab} + spec.hidden + 4) * 4 +
                         ops::choose_scratch_bytes(logit_rows, spec.vocab, threads);
  const int64_t proposing = proposer ? proposer->scratch_bytes(config.slots, rows, config.max_positions) +
                                           ops::choose_scratch_bytes(logit_rows, spec.vocab, threads)
                                     : 0;
  // Residual stream, features twice (as captured, and gathered for the commit), and the per-row arrays.
  const int64_t held = rows * (spec.hidden * 4 + features * 8 + 64) + (int64_t{1} << 16);
  return held + std::max({forward, logits, proposing});
}

}  // namespace

// One entry a segment, and the tensors of the pass.
struct Round::Verify {
  std::vector<TokenId> drafts;        // all drafted tokens, segment by segment
  std::vector<int32_t> draft_begin;   // [segments]: first in drafts
  std::vector<RowRun> runs;           // rows of each segment: known, then drafted
  std::vector<int32_t> row_begin;     // [segments]: first row in the pass
  std::vector<int32_t> choice_begin;  // [segments]: first in choices; drafts + 1 entries where the segment chooses
  std::vector<TokenId> choices;
  std::vector<uint8_t> finite;
  std::vector<PositionLogprobs> logprobs;
  std::vector<ops::RowSegment> segments;
  TensorView x, features;
};

Result<std::unique_ptr<Round>> Round::create(Device& device, const model::Target& target, const model::KvMemory& kv,
                                             std::unique_ptr<Proposer> proposer, const RoundConfig& config) {
  const int64_t table_bytes = config.slots * table_width(config) * 4;
  VOLLEY_ASSIGN(Buffer page_table, device.allocate(static_cast<size_t>(table_bytes)));
  const int64_t bytes = scratch_bytes(target, proposer.get(), config, device.stream().pool().threads());
  VOLLEY_ASSIGN(Buffer scratch, device.allocate(static_cast<size_t>(bytes)));
  return std::unique_ptr<Round>(
      new Round(device, target, kv, std::move(proposer), config, std::move(page_table), std::move(scratch)));
}

Round::Round(Device& device, const model::Target& target, const model::KvMemory& kv, std::unique_ptr<Proposer> proposer,
             const RoundConfig& config, Buffer page_table, Buffer scratch)
    : stream_(device.stream()),
      target_(target),
      kv_(kv),
      proposer_(std::move(proposer)),
      config_(config),
      sampler_(config.slots, target.spec().vocab),
      slots_(config.slots),
      page_table_memory_(std::move(page_table)),
      page_table_(page_table_memory_.view(DType::kI32, {config.slots, table_width(config)})),
      scratch_(std::move(scratch)) {}

void Round::start_slot(int32_t slot, const SlotStart& start) {
  VOLLEY_CHECK(!slots_[slot].running);
  Slot& s = slots_[slot];
  s.limits = start.limits;
  s.seed = start.sampling.seed;
  s.prompt_length = static_cast<int32_t>(start.prompt.size());
  s.wants_logprobs = start.sampling.params.logprobs >= 0;
  s.running = true;
  sampler_.start(slot, start.sampling, start.prompt, start.output);
}

void Round::clear_slot(int32_t slot) {
  slots_[slot] = Slot{};
  sampler_.clear(slot);
}

void Round::set_page(int32_t slot, int32_t index, PageId page) {
  VOLLEY_CHECK(index >= 0 && index < page_table_.dim(1));
  page_table_.as<int32_t>()[slot * page_table_.dim(1) + index] = page.value;
}

void Round::run(std::span<const RoundSegment> segments, std::vector<RoundResult>& results) {
  results.assign(segments.size(), {});
  ArenaScope scope(scratch_);
  Verify state;
  Stopwatch watch;
  draft(segments, state);
  watch.lap(times_.draft);
  verify(segments, state);
  watch.lap(times_.target);
  choose(segments, state, results);
  accept(segments, state, results);
  watch.lap(times_.choose);
  commit(segments, state, results);
  watch.lap(times_.commit);
}

void Round::draft(std::span<const RoundSegment> segments, Verify& state) {
  int32_t total = 0;
  for (const RoundSegment& segment : segments) {
    VOLLEY_CHECK(slots_[segment.slot].running && !segment.known.empty());
    VOLLEY_CHECK(segment.draft == 0 || (proposer_ && segment.known.size() == 1 && segment.chooses));
    state.draft_begin.push_back(total);
    total += segment.draft;
  }
  state.drafts.resize(total);
  std::vector<DraftRequest> requests;
  for (size_t i = 0; i < segments.size(); ++i) {
    const RoundSegment& segment = segments[i];
    if (segment.draft == 0) continue;
    requests.push_back({segment.slot, segment.start, segment.known[0], segment.draft,
                        state.drafts.data() + state.draft_begin[i], nullptr});
  }
  if (!requests.empty()) proposer_->draft(stream_, requests, sampler_, page_table_, scratch_);
}

void Round::verify(std::span<const RoundSegment> segments, Verify& state) {
  int32_t rows = 0;
  for (const RoundSegment& segment : segments) {
    const auto known = static_cast<int32_t>(segment.known.size());
    state.row_begin.push_back(rows);
    state.runs.push_back({segment.slot, SequenceIndex(segment.start), known + segment.draft});
    rows += known + segment.draft;
  }
  VOLLEY_CHECK_LE(rows, config_.max_rows);
  model::RowBatch batch = build_rows(state.runs, Visibility{}, page_table_, state.segments, scratch_);
  batch.token_ids = scratch_.take(DType::kI32, {rows});
  int32_t* ids = batch.token_ids.as<int32_t>();
  for (size_t i = 0; i < segments.size(); ++i) {
    ids = std::copy(segments[i].known.begin(), segments[i].known.end(), ids);
    ids = std::copy_n(state.drafts.data() + state.draft_begin[i], segments[i].draft, ids);
  }
  state.x = scratch_.take(DType::kF32, {rows, target_.spec().hidden});
  model::Target::Outputs outputs;
  if (proposer_) {
    outputs.capture_layers = proposer_->feature_layers();
    const auto width = static_cast<int64_t>(outputs.capture_layers.size()) * target_.spec().hidden;
    state.features = scratch_.take(target_.activation(), {rows, width});
    outputs.features = state.features;
  }
  target_.forward(stream_, batch, kv_, outputs, state.x, scratch_);
}

// The target's choice after the last known row and after each drafted one.
void Round::choose(std::span<const RoundSegment> segments, Verify& state, std::vector<RoundResult>& results) {
  std::vector<int32_t> counts(segments.size());
  int32_t total = 0;
  bool logprobs = false;
  for (size_t i = 0; i < segments.size(); ++i) {
    counts[i] = segments[i].chooses ? segments[i].draft + 1 : 0;
    state.choice_begin.push_back(total);
    total += counts[i];
    logprobs = logprobs || (counts[i] > 0 && slots_[segments[i].slot].wants_logprobs);
  }
  state.choices.resize(total);
  state.finite.resize(total);
  if (logprobs) state.logprobs.resize(total);
  for_logit_chunks(counts, logit_chunk_rows(block_size()), [&](size_t first, size_t last, int32_t rows) {
    if (rows == 0) return;
    ArenaScope scope(scratch_);
    const TensorView index = scratch_.take(DType::kI32, {rows});
    std::vector<ops::ChoiceSegment> choices;
    int32_t row = 0;
    for (size_t i = first; i < last; ++i) {
      if (counts[i] == 0) continue;
      const RoundSegment& segment = segments[i];
      const auto known = static_cast<int32_t>(segment.known.size());
      choices.push_back(
          {segment.slot, row, counts[i], segment.start + known, state.drafts.data() + state.draft_begin[i]});
      for (int32_t j = 0; j < counts[i]; ++j) index.as<int32_t>()[row++] = state.row_begin[i] + known - 1 + j;
    }
    const TensorView logits = scratch_.take(DType::kF32, {rows, target_.spec().vocab});
    target_.logits(stream_, state.x, index, logits, scratch_);
    ops::ChoiceOutput out;
    out.tokens = state.choices.data() + state.choice_begin[first];
    out.finite = state.finite.data() + state.choice_begin[first];
    if (logprobs) out.logprobs = state.logprobs.data() + state.choice_begin[first];
    ops::choose(stream_, logits, choices, sampler_, out, scratch_);
  });
}

void Round::accept(std::span<const RoundSegment> segments, Verify& state, std::vector<RoundResult>& results) {
  std::vector<ops::AcceptSegment> inputs;
  std::vector<size_t> owners;
  for (size_t i = 0; i < segments.size(); ++i) {
    const RoundSegment& segment = segments[i];
    if (!segment.chooses) continue;
    const Slot& slot = slots_[segment.slot];
    const int32_t produced = segment.start + static_cast<int32_t>(segment.known.size()) - slot.prompt_length;
    ops::AcceptSegment input;
    input.slot = segment.slot;
    input.drafted = segment.draft;
    input.draft = state.drafts.data() + state.draft_begin[i];
    input.choice = state.choices.data() + state.choice_begin[i];
    input.min_tokens_left = std::max(0, slot.limits.min_tokens - produced);
    input.budget = slot.limits.max_tokens - produced;
    input.end_ids = slot.limits.end_ids;
    if (config_.simulate_acceptance) {
      input.forced_accept = simulated_acceptance(*config_.simulate_acceptance, segment.draft, slot.seed, segment.start);
    }
    inputs.push_back(input);
    owners.push_back(i);
  }
  const int32_t stride = block_size() + 1;
  std::vector<ops::AcceptResult> outcomes(inputs.size());
  std::vector<TokenId> tokens(inputs.size() * stride);
  ops::accept(stream_, inputs, outcomes, tokens.data(), stride);
  for (size_t k = 0; k < inputs.size(); ++k) {
    const size_t i = owners[k];
    RoundResult& result = results[i];
    const ops::AcceptResult& outcome = outcomes[k];
    result.tokens.assign(tokens.begin() + k * stride, tokens.begin() + k * stride + outcome.committed);
    result.accepted = outcome.accepted;
    result.ended = outcome.ended;
    result.exhausted = outcome.exhausted;
    for (int32_t j = 0; j < outcome.committed; ++j) {
      result.finite = result.finite && state.finite[state.choice_begin[i] + j] != 0;
      if (slots_[segments[i].slot].wants_logprobs) {
        result.logprobs.push_back(std::move(state.logprobs[state.choice_begin[i] + j]));
      }
    }
    sampler_.append(segments[i].slot, result.tokens);
  }
}

// Features of rows that are now part of their sequences: all known rows, and the drafted ones that were kept. The bonus
// token has no row yet.
void Round::commit(std::span<const RoundSegment> segments, const Verify& state,
                   const std::vector<RoundResult>& results) {
  if (!proposer_) return;
  ArenaScope scope(scratch_);
  std::vector<RowRun> runs;
  std::vector<int32_t> index;
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto known = static_cast<int32_t>(segments[i].known.size());
    const auto committed = static_cast<int32_t>(results[i].tokens.size());
    const int32_t rows = known + std::max(0, committed - 1);
    runs.push_back({segments[i].slot, SequenceIndex(segments[i].start), rows});
    for (int32_t j = 0; j < rows; ++j) index.push_back(state.row_begin[i] + j);
  }
  CommitRows commit;
  commit.runs = runs;
  const auto n = static_cast<int64_t>(index.size());
  if (n == state.features.dim(0)) {
    commit.features = state.features;
  } else {
    commit.features = scratch_.take(state.features.dtype, {n, state.features.dim(1)});
    ops::gather_rows(stream_, state.features, {index.data(), DType::kI32, {n}}, commit.features);
  }
  proposer_->commit(stream_, commit, page_table_, scratch_);
}

}  // namespace volley::spec
