// Puts a step's work on the stream. The code reads only device memory at fixed addresses and host bounds of the layout,
// so that the work can be recorded once and replayed.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "decode/round_parts.h"
#include "ops/gather/gather.h"

namespace volley::decode {
namespace {

constexpr uint32_t kRoutingSeed = 1;  // seed of simulated routing

template <typename T>
T* array_of(const Buffer& buffer) {
  return static_cast<T*>(buffer.data());
}

}  // namespace

ops::Step Round::step_of(const Layout& layout) const {
  ops::Step step;
  step.segments = memory_->segment_array();
  step.n = layout.n;
  step.blocks = layout.blocks;
  step.max_segment_rows = layout.max_segment_rows;
  step.tokens = memory_->token_array();
  if (layout.rope_axes) step.axes = memory_->axes_array();
  step.slots = array_of<ops::SlotRow>(memory_->slots);
  step.scrap_slot = config_.slots;
  return step;
}

void Round::draft(const Layout& layout) {
  if (layout.blocks == 0) return;
  DraftPass pass;
  pass.step = step_of(layout);
  pass.step.n = std::max(layout.n, layout.blocks);
  pass.chunks = layout.draft_chunks;
  pass.drafts = layout.drafts;
  pass.length = layout.draft_length;
  pass.tokens = array_of<TokenId>(memory_->drafts);
  pass.confidence = array_of<float>(memory_->confidence);
  pass.page_tables = memory_->draft_tables[layout.drafter];
  pass.max_positions = config_.max_positions;
  drafters_[layout.drafter].proposer->draft(stream_, pass, *sampler_, *scratch_);
}

// Chooses the drafted tokens to verify.
void Round::share(const Layout& layout) {
  // The recorded pass over whole blocks is separate from the draft before it.
  const bool blocks = layout.drafts > 0 || layout.max_segment_rows == block_size();
  if (block_size() == 1 || (!blocks && layout.shared_rows == VerifyBudget::kAll)) return;
  ops::SharePlan plan;
  plan.decoding = layout.decoding;
  plan.rows = layout.shared_rows;
  plan.confidence = array_of<float>(memory_->confidence);
  plan.table = memory_->survival_table();
  plan.reported = memory_->result_confidence();
  plan.stride = memory_->stride - 1;
  ops::share_verify_rows(stream_, step_of(layout), memory_->segment_array(), plan);
}

// Runs everything from the drafted tokens to the results of the step.
void Round::verify(const Layout& layout) {
  ArenaScope scope(*scratch_);
  share(layout);
  PassShape shape;
  shape.rows = layout.rows;
  shape.segments = layout.n;
  shape.max_segment_rows = layout.max_segment_rows;
  shape.choices = layout.choices;
  shape.max_positions = config_.max_positions;
  shape.rope_axes = layout.rope_axes;
  PassMemory pass = take_pass(shape, visibility_, memory_->target_tables, *scratch_);
  pass.choices.masks = array_of<uint32_t>(memory_->masks);
  pass.choices.mask_words = memory_->mask_words;
  ops::fill_verify_rows(stream_, step_of(layout), array_of<TokenId>(memory_->drafts), visibility_, pass.rows,
                        pass.choices);
  model::Pass target{stream_, pass.rows, kv_.layers(0, target_.kv_layers()), *scratch_};
  target.routing = {config_.simulate_routing, kRoutingSeed, config_.slots, memory_->experts_touched()};
  target.states = kv_.states();
  target.exchange = config_.exchange;
  target_.plan(target);
  const TensorView x = scratch_->take(DType::kF32, {layout.rows, target_.spec().hidden});
  std::vector<model::Capture> captures;  // one for each drafter
  for (const Drafter& drafter : drafters_) {
    model::Capture& capture = captures.emplace_back();
    capture.layers = drafter.proposer->feature_layers();
    const auto width = static_cast<int64_t>(capture.layers.size()) * target_.spec().hidden;
    if (width > 0) capture.features = scratch_->take(target_.activation(), {layout.rows, width});
  }
  target_.embed(stream_, pass.rows.token_ids, x);
  const std::vector<model::AddedRows> added = take_given(layout, x);
  target.added = added;
  target_.forward(target, captures, x);
  if (enqueued_ != nullptr) enqueued_->forwarded->set();
  if (enqueued_ != nullptr && device_.kind() == DeviceKind::kCpu) fill_masks(*enqueued_);
  ops::take_masks(stream_,
                  {memory_->mask_ticket(), array_of<uint64_t>(memory_->masks_filled),
                   array_of<uint32_t>(memory_->host_masks), array_of<uint32_t>(memory_->masks), memory_->mask_words});
  choose(layout, pass, x);
  score(layout, x);
  accept(layout);
  if (enqueued_ != nullptr) enqueued_->chosen->set();
  commit(layout, pass, std::move(captures));
}

// Vectors that a prompt brings take the place of its rows of the embedding. The device has those of the last picture.
// Where no pinned memory was made for others, as for a model without a tower, the host waits for a GPU's work before.
std::vector<model::AddedRows> Round::take_given(const Layout& layout, TensorView x) {
  const int64_t hidden = x.dim(1), layers = target_.spec().added_layers;
  int64_t rows = 0;
  for (const Layout::Given& given : layout.given) rows += given.rows;
  TensorView room;  // for the vectors that layers add
  if (rows * layers > 0) room = scratch_->take(DType::kF32, {rows * layers, hidden});
  std::vector<model::AddedRows> added;
  size_t copied = 0;
  rows = 0;
  for (const Layout::Given& given : layout.given) {
    TensorView vectors;
    if (layers > 0) {
      vectors =
          TensorView(room.rows(rows * layers, given.rows * layers).data, DType::kF32, {layers, given.rows, hidden});
      added.push_back({given.row, vectors});
    }
    rows += given.rows;
    for (int64_t i = 0; i <= layers && !stream_.dry(); ++i) {
      const TensorView to = i == 0 ? x.rows(given.row, given.rows) : vectors.rows(i - 1, 1);
      const std::span<const float> from = given.vectors->vectors[static_cast<size_t>(i)];
      if (const float* here = tower_ == nullptr ? nullptr : tower_->on_device(from)) {
        device_.enqueue_copy(to.data, here, from.size_bytes());
        continue;
      }
      if (enqueued_ == nullptr || enqueued_->given.bytes() == 0) {
        device_.upload(to.data, from.data(), from.size_bytes());
        continue;
      }
      std::byte* kept = static_cast<std::byte*>(enqueued_->given.data()) + copied;
      std::memcpy(kept, from.data(), from.size_bytes());
      device_.enqueue_upload(to.data, kept, from.size_bytes());
      copied += from.size_bytes();
    }
  }
  return added;
}

void Round::take_part() {
  VOLLEY_CHECK(config_.exchange != nullptr && under_way() == 0);
  if (device_.kind() == DeviceKind::kCpu) {
    pass_without_rows();
    device_.download(&experts_touched_, memory_->experts_touched(), sizeof(experts_touched_));
    return;
  }
  // The last but one pass has ended. Its counts are valid only if no replica was gone.
  IdlePass& pass = *idle_passes_[idle_count_++ % idle_passes_.size()];
  pass.end->wait();
  config_.exchange->check();
  experts_touched_ = std::max(experts_touched_, *static_cast<const int64_t*>(pass.touched.data()));
  if (idle_graph_ != nullptr) {
    idle_graph_->launch();
  } else {
    pass_without_rows();
  }
  device_.enqueue_download(pass.touched.data(), memory_->experts_touched(), sizeof(int64_t));
  pass.end->set();
}

void Round::settle() {
  if (idle_count_ == 0) return;
  const IdlePass& last = *idle_passes_[(idle_count_ - 1) % idle_passes_.size()];
  last.end->wait();
  config_.exchange->check();
  experts_touched_ = std::max(experts_touched_, *static_cast<const int64_t*>(last.touched.data()));
}

void Round::pass_without_rows() {
  const ops::Rows none;
  model::Pass pass{stream_, none, {}, *scratch_};
  pass.routing = {config_.simulate_routing, kRoutingSeed, config_.slots, memory_->experts_touched()};
  pass.exchange = config_.exchange;
  target_.take_part(pass);
}

// Tells the device to wait for no masks of steps up to this one.
void Round::let_masks_pass(uint64_t step) {
  if (memory_->masks_filled.data() == nullptr) return;  // no step has masks
  std::atomic_ref(*array_of<uint64_t>(memory_->masks_filled)).store(step, std::memory_order_release);
}

// Grammar masks depend on the drafted tokens, which are copied to the host while the target runs. A thread fills each
// request's masks. The step's wait is bounded.
void Round::fill_masks(Flight& flight) {
  if (flight.mask_rows == 0) return;
  const int32_t rows = std::exchange(flight.mask_rows, 0);
  ++filled_steps_;
  try {
    ask_for_masks(flight, {array_of<uint32_t>(memory_->host_masks), static_cast<size_t>(rows) * memory_->mask_words});
  } catch (...) {
    let_masks_pass(filled_steps_);
    throw;
  }
  let_masks_pass(filled_steps_);
  // The request may have ended meanwhile, and freeing its grammar takes a while.
  for (std::shared_ptr<MaskSource>& source : flight.masks) {
    if (source.use_count() == 1) discard(std::move(source));
  }
  flight.masks.clear();
}

void Round::ask_for_masks(const Flight& flight, std::span<uint32_t> words) {
  if (config_.rank > 0) {
    std::ranges::copy(config_.masks->take(filled_steps_, words.size()), words.begin());
    return;
  }
  flight.drafts_here->wait();
  std::vector<MaskThreads::Task> tasks;
  for (size_t i = 0; i < flight.segments.size(); ++i) {
    const ops::StepSegment& segment = flight.segments[i];
    if (segment.mask_row < 0) continue;
    MaskThreads::Task& task = tasks.emplace_back();
    task.source = flight.masks[i];
    task.drafted = {array_of<TokenId>(memory_->host_drafts) + segment.draft_begin, static_cast<size_t>(segment.draft)};
    task.words = words.data() + int64_t{segment.mask_row} * memory_->mask_words;
  }
  if (config_.masks != nullptr && config_.masks->is_elsewhere()) {
    std::vector<std::span<const TokenId>> drafted;
    for (const MaskThreads::Task& task : tasks) drafted.push_back(task.drafted);
    config_.masks->ask(drafted);
    std::ranges::copy(config_.masks->take(filled_steps_, words.size()), words.begin());
    return;
  }
  mask_threads_->fill(tasks, memory_->mask_words);
  if (config_.masks != nullptr) config_.masks->publish(words);
}

// Makes the target's choices after the last known row and after each drafted one.
void Round::choose(const Layout& layout, const PassMemory& pass, TensorView x) {
  for (const LogitChunk& chunk : layout.choice_chunks) {
    ArenaScope scope(*scratch_);
    const TensorView logits = scratch_->take(DType::kF32, {chunk.rows, target_.spec().vocab});
    ops::ChoiceTask task;
    task.rows = chunk.rows;
    task.segments = {pass.choices.segments + chunk.segment_begin,
                     static_cast<size_t>(chunk.segment_end - chunk.segment_begin)};
    task.state = sampler_.get();
    task.out.tokens = array_of<TokenId>(memory_->choices) + chunk.row_begin;
    task.out.finite = array_of<uint8_t>(memory_->finite) + chunk.row_begin;
    task.out.logprobs = array_of<ops::RowLogprobs>(memory_->logprobs) + chunk.row_begin;
    const ops::ChoicePlan plan = ops::plan_choices(stream_, task, target_.head_summarises(stream_), *scratch_);
    target_.logits(stream_, x, pass.choices.logit_rows.rows(chunk.row_begin, chunk.rows), logits, *scratch_,
                   plan.summaries);
    ops::choose(stream_, plan, logits, *scratch_);
  }
}

// Computes logprobs of a prompt's tokens, behind those of the choices.
void Round::score(const Layout& layout, TensorView x) {
  const auto rows = static_cast<int32_t>(layout.scored.size());
  auto* base = array_of<std::byte>(memory_->scores);
  const auto* choice = reinterpret_cast<ops::ChoiceSegment*>(base + memory_->score_choices_begin(rows));
  for (int32_t begin = 0; begin < rows; begin += config_.logit_rows, ++choice) {
    ArenaScope scope(*scratch_);
    const int32_t n = std::min(config_.logit_rows, rows - begin);
    const TensorView index(reinterpret_cast<int32_t*>(base) + begin, DType::kI32, {n});
    const TensorView logits = scratch_->take(DType::kF32, {n, target_.spec().vocab});
    target_.logits(stream_, x, index, logits, *scratch_);
    ops::ChoiceOutput out;
    out.tokens = scratch_->take(DType::kI32, {n}).as<TokenId>();
    out.logprobs = array_of<ops::RowLogprobs>(memory_->logprobs) + layout.choices + begin;
    ops::choose(stream_, logits, {choice, 1}, *sampler_, out, *scratch_);
  }
}

void Round::accept(const Layout& layout) {
  ops::AcceptInputs in;
  in.drafts = array_of<TokenId>(memory_->drafts);
  in.choices = array_of<TokenId>(memory_->choices);
  in.finite = array_of<uint8_t>(memory_->finite);
  ops::AcceptOutputs out;
  out.outcomes = memory_->outcome_array();
  out.tokens = memory_->result_tokens();
  out.stride = memory_->stride;
  out.slots = array_of<int32_t>(memory_->committed);
  out.counts = out.slots + memory_->max_segments;
  ops::accept_step(stream_, step_of(layout), in, out);
  sampler_->append_committed(stream_, {out.slots, out.counts, out.tokens, layout.n, out.stride});
}

// Gives each drafter the features of rows that are now part of their sequences: all known rows, and the accepted ones
// (the bonus token has no row yet). Where only the device knows the outcomes, it gets all rows: a rejected row's K and
// V lie past the sequence's end, where a later block or row overwrites them before any row sees them. A drafter's
// rotary positions are the tokens' indices, whatever the target's are.
void Round::commit(const Layout& layout, const PassMemory& pass, std::vector<model::Capture> captures) {
  std::vector<TensorView> features;
  for (const model::Capture& capture : captures) features.push_back(capture.features);
  const auto learns = [](const TensorView& of) { return of.data != nullptr; };
  if (std::ranges::none_of(features, learns)) return;
  if (may_wait(layout)) return let_wait(pass.rows, features);
  ArenaScope scope(*scratch_);
  ops::Rows kept_rows = pass.rows;
  if (device_.kind() != DeviceKind::kCpu) return teach(kept_rows, features);
  std::vector<int32_t> index;
  std::vector<ops::RowSegment> segments;
  if (stream_.dry()) {  // gathering all rows takes the most memory
    index.resize(layout.rows);
    segments.push_back({0, layout.rows, 0});
  }
  for (int32_t i = 0; i < layout.n && !stream_.dry(); ++i) {
    const ops::StepSegment& segment = memory_->segment_array()[i];
    const int32_t kept = segment.known + std::max(0, memory_->outcome_array()[i].committed - 1);
    segments.push_back({static_cast<int32_t>(index.size()), kept, segment.slot});
    for (int32_t j = 0; j < kept; ++j) index.push_back(segment.row_begin + j);
  }
  kept_rows.rows = static_cast<int32_t>(index.size());
  kept_rows.segments = segments.data();
  if (kept_rows.rows < layout.rows || stream_.dry()) {
    const auto pick_row = [&](const TensorView& from) {
      const TensorView rows(from.data, from.dtype, {layout.rows, 1});
      return TensorView(pick(rows, index).data, DType::kI32, {kept_rows.rows});
    };
    for (TensorView* array : {&kept_rows.token_ids, &kept_rows.slots, &kept_rows.cache_positions}) {
      *array = pick_row(*array);
    }
    for (TensorView& of : features) of = learns(of) ? pick(of, index) : of;
  }
  teach(kept_rows, features);
}

// The rows [index] of `from`, in scratch memory.
TensorView Round::pick(const TensorView& from, std::span<int32_t> index) {
  const auto n = static_cast<int64_t>(index.size());
  const TensorView to = scratch_->take(from.dtype, {n, from.dim(1)});
  ops::gather_rows(stream_, from, TensorView(index.data(), DType::kI32, {n}), to);
  return to;
}

void Round::teach(ops::Rows rows, std::span<const TensorView> features) {
  rows.rope_positions = rows.cache_positions;
  rows.rope_axes = {};
  for (size_t i = 0; i < drafters_.size(); ++i) {
    if (features[i].data == nullptr) continue;
    for (int view = 0; view < ops::kMaxViews; ++view) {
      rows.views[view].page_table = memory_->draft_tables[i][view];
    }
    drafters_[i].proposer->commit(stream_, rows, features[i], *scratch_);
  }
}

// Whether the step's rows may wait: those of a plain step on the CPU.
bool Round::may_wait(const Layout& layout) const {
  return waiting_ != nullptr && !stream_.dry() && layout.blocks == 0 && layout.decoding == layout.n &&
         layout.rows <= waiting_->most_rows;
}

void Round::let_wait(const ops::Rows& rows, std::span<const TensorView> features) {
  if (waiting_->used + rows.rows > waiting_->most_rows) teach_waiting();
  const int32_t begin = waiting_->used;
  waiting_->used += rows.rows;
  for (int32_t i = 0; i < rows.rows; ++i) {
    if (rows.slots.as<int32_t>()[i] == config_.slots) continue;  // a slot that is done
    waiting_->rows.push_back({rows.slots.as<int32_t>()[i], rows.cache_positions.as<int32_t>()[i],
                              rows.token_ids.as<TokenId>()[i], begin + i});
  }
  for (size_t i = 0; i < features.size(); ++i) {
    if (features[i].data == nullptr) continue;
    const TensorView to = waiting_->features[i].rows(begin, rows.rows);
    std::memcpy(to.data, features[i].data, static_cast<size_t>(to.bytes()));
  }
}

void Round::teach_waiting() {
  if (waiting_ == nullptr) return;
  waiting_->used = 0;
  if (waiting_->rows.empty()) return;
  ArenaScope scope(*scratch_);
  std::ranges::sort(waiting_->rows, {}, [](const Waiting::Row& row) { return std::pair(row.slot, row.position); });
  std::vector<int32_t> index, slots, positions;
  std::vector<TokenId> tokens;
  std::vector<ops::RowSegment> segments;
  ops::Rows rows;
  for (const Waiting::Row& row : waiting_->rows) {
    if (segments.empty() || segments.back().slot != row.slot) segments.push_back({rows.rows, 0, row.slot});
    rows.max_segment_rows = std::max(rows.max_segment_rows, ++segments.back().rows);
    ++rows.rows;
    index.push_back(row.at);
    slots.push_back(row.slot);
    positions.push_back(row.position);
    tokens.push_back(row.token);
  }
  const auto view = [&](auto& values) { return TensorView(values.data(), DType::kI32, {rows.rows}); };
  rows.token_ids = view(tokens);
  rows.slots = view(slots);
  rows.cache_positions = view(positions);
  rows.segments = segments.data();
  rows.n_segments = static_cast<int32_t>(segments.size());
  rows.max_positions = config_.max_positions;
  std::vector<TensorView> features = waiting_->features;
  for (TensorView& of : features) of = of.data != nullptr ? pick(of, index) : of;
  teach(rows, features);
  waiting_->rows.clear();
}

}  // namespace volley::decode
