#include "decode/round.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "decode/round_parts.h"
#include "device/cpu/thread_pool.h"
#include "device/fault.h"

namespace volley::decode {
namespace {

constexpr int32_t kMostDepth = 2;
constexpr int32_t kMostWaiting = 64;  // rows that wait for the drafters

// The sampler has two slots beyond the requests': the scrap slot, and one whose rule leaves logits unchanged.
constexpr int32_t kExtraSlots = 2, kScoringSlot = 1;

int32_t depth_of(const Device& device, const RoundConfig& config) {
  VOLLEY_CHECK(config.depth >= 0 && config.depth <= kMostDepth);
  if (config.profile) return 1;
  if (config.depth > 0) return config.depth;
  return device.kind() == DeviceKind::kCpu ? 1 : kMostDepth;
}

// Tokens of the longest block.
int32_t block_size_of(std::span<const Drafter> drafters) {
  int32_t block = 1;
  for (const Drafter& drafter : drafters) block = std::max(block, 1 + drafter.proposer->proposals());
  return block;
}

int64_t table_width(const RoundConfig& config) {
  return divide_up(config.max_positions, config.page_size);
}

// A step with a picture's rows has axes for all known tokens, text's too.
void put_axes(const RoundSegment& segment, RopeAxes* to) {
  for (int32_t i = 0; i < std::ssize(segment.known); ++i) {
    if (segment.axes.empty()) {
      to[i].fill(segment.start + i);
    } else {
      to[i] = segment.axes[i];
    }
  }
}

}  // namespace

Result<std::unique_ptr<Round>> Round::create(Device& device, const model::Network& target, const model::KvMemory& kv,
                                             std::vector<Drafter> drafters, const RoundConfig& config,
                                             const std::function<void(double)>& progress) {
  RoundConfig resolved = config;
  resolved.logit_rows = std::max(config.logit_rows, block_size_of(drafters));
  if (resolved.draft_lengths.empty()) {
    for (const Drafter& drafter : drafters) resolved.draft_lengths.push_back({drafter.proposer->proposals()});
  }
  VOLLEY_CHECK(drafters.size() <= kMostDrafters && resolved.draft_lengths.size() == drafters.size());
  std::unique_ptr<Round> round(new Round(device, target, kv, std::move(drafters), resolved));
  VOLLEY_RETURN_IF_ERROR(round->allocate());
  const auto recordable = [](const Drafter& drafter) { return drafter.proposer->recordable(); };
  if (resolved.graphs && !resolved.profile && std::ranges::all_of(round->drafters_, recordable))
    round->record_graphs(progress);
  return round;
}

Round::Round(Device& device, const model::Network& target, const model::KvMemory& kv, std::vector<Drafter> drafters,
             const RoundConfig& config)
    : device_(device),
      stream_(device.stream()),
      target_(target),
      kv_(kv),
      drafters_(std::move(drafters)),
      config_(config),
      visibility_(visibility_of(target.spec())),
      slots_(config.slots),
      memory_(std::make_unique<Memory>()) {
  const int32_t block = block_size_of(drafters_);
  traits_ = {depth_of(device, config),
             block,
             std::min(config.logit_rows, kMostSharedTokens / block),
             {},
             config.draft_lengths};
}

// Steps under way write into memory that the round owns.
Round::~Round() {
  let_masks_pass(std::numeric_limits<uint64_t>::max());
  try {
    device_.synchronize();
  } catch (const DeviceFault&) {  // after a fault no step is under way
  }
}

Status Round::allocate() {
  Memory& m = *memory_;
  const int64_t slots = config_.slots, width = table_width(config_), rows = config_.max_rows;
  m.max_segments = config_.slots;
  const auto groups = static_cast<int64_t>(kv_.groups().size());
  m.max_edits = groups * slots * width;
  m.stride = block_size();
  m.segments_bytes = round_up(slots * int64_t{sizeof(ops::StepSegment)}, Memory::kPartAlignment);
  m.edits_bytes = round_up(m.max_edits * int64_t{sizeof(ops::PageTableEdit)}, Memory::kPartAlignment);
  m.tokens_bytes = round_up(rows * int64_t{sizeof(TokenId)}, Memory::kPartAlignment);
  if (target_.spec().has_rope_axes()) m.axes_bytes = rows * int64_t{sizeof(RopeAxes)};
  const auto take = [&](int64_t bytes) { return device_.allocate(static_cast<size_t>(bytes)); };
  VOLLEY_ASSIGN(m.slots, take((slots + 1) * int64_t{sizeof(ops::SlotRow)}));
  VOLLEY_ASSIGN(m.page_tables, take(groups * (slots + 1) * width * 4));
  VOLLEY_ASSIGN(m.step, take(m.step_bytes()));
  VOLLEY_ASSIGN(m.drafts, take(slots * block_size() * 4));
  VOLLEY_ASSIGN(m.confidence, take(slots * block_size() * 4));
  VOLLEY_ASSIGN(m.choices, take(rows * 4));
  VOLLEY_ASSIGN(m.finite, take(rows));
  VOLLEY_ASSIGN(m.results, take(m.results_bytes()));
  VOLLEY_ASSIGN(m.committed, take(slots * 8));
  VOLLEY_ASSIGN(m.logprobs, take(rows * int64_t{sizeof(ops::RowLogprobs)}));
  m.mask_words = (target_.spec().vocab + 31) / 32;
  const auto mask_bytes = static_cast<size_t>(slots * block_size() * m.mask_words) * sizeof(uint32_t);
  VOLLEY_ASSIGN(m.masks, device_.allocate(mask_bytes));
  VOLLEY_ASSIGN(m.host_masks, device_.allocate_host(mask_bytes));
  VOLLEY_ASSIGN(m.masks_filled, device_.allocate_host(sizeof(uint64_t)));
  VOLLEY_ASSIGN(m.host_drafts, device_.allocate_host(m.drafts.bytes()));
  m.table_rows = slots + 1;
  m.tables = m.page_tables.view(DType::kI32, {groups * m.table_rows, width});
  const auto tables_of = [&](size_t begin, size_t n) {
    PageTables tables;
    const auto groups_of_views = kv_.groups_of_views(begin, n);
    for (size_t view = 0; view < tables.size(); ++view) tables[view] = m.table(groups_of_views[view]);
    return tables;
  };
  m.target_tables = tables_of(0, target_.kv_layers());
  for (const Drafter& drafter : drafters_) m.draft_tables.push_back(tables_of(drafter.first_layer, drafter.layers));
  VOLLEY_ASSIGN(sampler_, ops::SamplerState::create(device_, config_.slots + kExtraSlots, target_.spec().vocab));
  ops::SlotSampling scoring;
  scoring.params.temperature = 0;
  scoring.params.logprobs = ops::kMaxLogprobs;
  VOLLEY_RETURN_IF_ERROR(sampler_->start(config_.slots + kScoringSlot, scoring, {}, {}));
  if (target_.tower() != nullptr) {
    VOLLEY_ASSIGN(tower_, model::TowerPass::create(device_, *target_.tower()));
  }
  VOLLEY_ASSIGN(Buffer scratch, take(largest_scratch()));
  scratch_ = std::make_unique<Arena>(std::move(scratch));

  // The scrap slot writes into pages of its own.
  ops::SlotRow scrap;
  scrap.length = 1;
  scrap.done = 1;
  device_.upload(static_cast<ops::SlotRow*>(m.slots.data()) + slots, &scrap, sizeof(scrap));
  for (int64_t group = 0; group < groups; ++group) {
    const std::vector<int32_t> row(width, kv::scrap_page(kv_.groups()[static_cast<size_t>(group)]).value);
    device_.upload(m.table(static_cast<size_t>(group)).as<int32_t>() + slots * width, row.data(),
                   row.size() * sizeof(int32_t));
  }

  for (int32_t i = 0; i < depth(); ++i) {
    auto flight = std::make_unique<Flight>();
    VOLLEY_ASSIGN(flight->step, device_.allocate_host(static_cast<size_t>(m.step_bytes())));
    new (flight->step.data()) ops::SurvivalTable;  // the first step brings the table
    VOLLEY_ASSIGN(flight->results, device_.allocate_host(static_cast<size_t>(m.results_bytes())));
    VOLLEY_ASSIGN(flight->logprobs, device_.allocate_host(m.logprobs.bytes()));
    if (device_.kind() != DeviceKind::kCpu && target_.spec().tower) {
      const int64_t values = rows * target_.spec().hidden * (1 + target_.spec().added_layers);
      VOLLEY_ASSIGN(flight->given, device_.allocate_host(static_cast<size_t>(values) * sizeof(float)));
    }
    for (auto* fence : {&flight->begin, &flight->drafted, &flight->forwarded, &flight->chosen, &flight->end,
                        &flight->arrived, &flight->drafts_here}) {
      *fence = device_.make_fence();
    }
    free_.push_back(std::move(flight));
  }
  last_end_ = device_.make_fence();
  if (device_.kind() == DeviceKind::kCpu && !drafters_.empty()) {
    waiting_ = std::make_unique<Waiting>();
    const int64_t most = waiting_->most_rows = std::min(kMostWaiting, config_.max_rows);
    for (const Drafter& drafter : drafters_) {
      const int64_t width = std::ssize(drafter.proposer->feature_layers()) * target_.spec().hidden;
      Buffer& buffer = waiting_->buffers.emplace_back();
      if (width > 0) {
        VOLLEY_ASSIGN(buffer, device_.allocate(static_cast<size_t>(most * width) * dtype_size(target_.activation())));
      }
      waiting_->features.push_back(width > 0 ? buffer.view(target_.activation(), {most, width}) : TensorView());
    }
  }
  return config_.exchange != nullptr && device_.kind() != DeviceKind::kCpu ? take_all_memory() : Status();
}

Status Round::start_slot(int32_t slot, const SlotStart& start) {
  VOLLEY_CHECK(!slots_[slot].running);
  VOLLEY_CHECK(!start.prompt.empty());
  VOLLEY_CHECK_LE(start.limits.end_ids.size(), size_t{ops::kMaxEndIds});
  VOLLEY_RETURN_IF_ERROR(sampler_->start(slot, start.sampling, start.prompt, start.output));
  ops::SlotRow row;
  row.seed = start.sampling.seed;
  row.length = static_cast<int32_t>(start.prompt.size() + start.output.size());
  row.last_token = start.output.empty() ? start.prompt.back() : start.output.back();
  row.prompt_length = static_cast<int32_t>(start.prompt.size());
  row.min_tokens = start.limits.min_tokens;
  row.max_tokens = start.limits.max_tokens;
  row.draft_context = start.draft_context;
  row.rope_offset = start.rope_offset;
  row.end_count = static_cast<int32_t>(start.limits.end_ids.size());
  std::copy(start.limits.end_ids.begin(), start.limits.end_ids.end(), row.end_ids);
  device_.upload(static_cast<ops::SlotRow*>(memory_->slots.data()) + slot, &row, sizeof(row));
  slots_[slot].wants_logprobs = start.sampling.params.logprobs >= 0;
  slots_[slot].running = true;
  slots_[slot].shifts_rope = start.rope_offset != 0;
  return {};
}

struct Round::Perform {
  Round& round;

  Answer operator()(const StartSlot& c) const { return round.start_slot(c.slot, c.start); }
  Answer operator()(const ClearSlot& c) const {
    round.teach_waiting();  // its pages may be shared from now on
    round.slots_[c.slot] = Slot{};
    round.sampler_->clear(c.slot);
    return {};
  }
  Answer operator()(const SetPage& c) const {
    const Memory& m = *round.memory_;
    VOLLEY_CHECK(c.index >= 0 && c.index < m.tables.dim(1));
    VOLLEY_CHECK(c.group >= 0 && c.group < std::ssize(round.kv_.groups()) && c.slot < round.config_.slots);
    round.edits_.push_back({static_cast<int32_t>(c.group * m.table_rows) + c.slot, c.index, c.page.value});
    return {};
  }
  Answer operator()(const CopyMemory& c) const {
    VOLLEY_CHECK(c.copy.slot.value >= 0 && c.copy.slot.value < round.config_.slots);
    VOLLEY_CHECK(c.copy.group >= 0 && c.copy.group < std::ssize(round.kv_.groups()));
    round.teach_waiting();
    round.kv_.copy(round.device_, c.copy);
    return {};
  }
  Answer operator()(const Reserve& c) const { return round.reserve(c.segments); }
  Answer operator()(const Enqueue& c) const { return round.enqueue_step(c.segments, c.budget); }
  Answer operator()(const FillMasks&) const { return round.fill_masks(*round.flights_.front()), Answer(); }
  Answer operator()(const Wait&) const { return round.take_results(); }
  Answer operator()(const TakePart&) const { return round.take_part(), Answer(); }
  Answer operator()(const Settle&) const { return round.settle(), Answer(); }
  Answer operator()(const See& c) const {
    VOLLEY_CHECK(round.tower_ != nullptr);
    if (c.begin == 0) round.tower_->begin({c.width, c.height, c.rgb});
    round.tower_->run(c.begin, c.end, *round.scratch_);
    return {};
  }
  Answer operator()(const TakeSeen&) const {
    auto [vectors, seconds] = round.tower_->take();
    return Seen{std::move(vectors), seconds};
  }
};

Answer Round::perform(const Command& command) {
  return std::visit(Perform{*this}, command);
}

// The first request with a grammar starts the threads that fill masks.
Status Round::reserve_masks(bool wanted) {
  const bool elsewhere = config_.rank > 0 || (config_.masks != nullptr && config_.masks->is_elsewhere());
  if (wanted && mask_threads_ == nullptr && !elsewhere) {
    VOLLEY_ASSIGN(mask_threads_, MaskThreads::create(config_.mask_timeout));
  }
  return {};
}

void Round::discard(std::shared_ptr<MaskSource> source) {
  if (mask_threads_) mask_threads_->discard(std::move(source));
}

// A scored token is a choice with one allowed token, so its logprobs are decoding's, bit for bit, on any device.
Status Round::reserve_scores(int32_t rows, Flight& flight) {
  Memory& m = *memory_;
  if (rows > m.score_rows) {
    if (under_way() > 0) device_.synchronize();  // the step under way may still read the old buffer
    VOLLEY_ASSIGN(m.scores, device_.allocate(static_cast<size_t>(m.scores_bytes(rows))));
    m.score_rows = rows;
  }
  if (static_cast<int64_t>(flight.scores.bytes()) < m.scores_bytes(rows)) {
    VOLLEY_ASSIGN(flight.scores, device_.allocate_host(static_cast<size_t>(m.scores_bytes(rows))));
  }
  return {};
}

void Round::upload_scores(const Layout& layout, Flight& flight) {
  const Memory& m = *memory_;
  const auto rows = static_cast<int32_t>(layout.scored.size());
  if (rows == 0) return;
  auto* host = static_cast<std::byte*>(flight.scores.data());
  auto* index = reinterpret_cast<int32_t*>(host);
  auto* choices = reinterpret_cast<ops::ChoiceSegment*>(host + m.score_choices_begin(rows));
  auto* masks = reinterpret_cast<uint32_t*>(host + m.score_masks_begin(rows));
  const auto* device_masks =
      reinterpret_cast<const uint32_t*>(static_cast<const std::byte*>(m.scores.data()) + m.score_masks_begin(rows));
  std::fill_n(masks, int64_t{rows} * m.mask_words, 0u);
  for (int32_t i = 0; i < rows; ++i) {
    index[i] = layout.scored[i].row;
    masks[int64_t{i} * m.mask_words + layout.scored[i].token / 32] |= 1u << (layout.scored[i].token % 32);
  }
  for (int32_t begin = 0; begin < rows; begin += config_.logit_rows) {
    ops::ChoiceSegment& choice = *choices++ = {};
    choice.slot = config_.slots + kScoringSlot;
    choice.rows = std::min(config_.logit_rows, rows - begin);
    choice.first_index = 1;
    choice.mask = device_masks + int64_t{begin} * m.mask_words;
    choice.mask_words = m.mask_words;
  }
  device_.enqueue_upload(m.scores.data(), host, static_cast<size_t>(m.scores_bytes(rows)));
}

Status Round::reserve(std::span<const RoundSegment> segments) {
  VOLLEY_CHECK_LT(under_way(), depth());
  bool masks = false;
  int32_t scored = 0;
  for (const RoundSegment& segment : segments) {
    masks = masks || segment.masks != nullptr;
    scored += static_cast<int32_t>(segment.scored.size());
  }
  VOLLEY_RETURN_IF_ERROR(reserve_masks(masks));
  return reserve_scores(scored, *free_.back());
}

Status Round::enqueue_step(std::span<const RoundSegment> segments, const VerifyBudget& budget) {
  VOLLEY_CHECK_LE(segments.size(), slots_.size());
  VOLLEY_RETURN_IF_ERROR(reserve(segments));
  std::unique_ptr<Flight> flight = std::move(free_.back());
  free_.pop_back();
  auto* out =
      reinterpret_cast<ops::StepSegment*>(static_cast<std::byte*>(flight->step.data()) + Memory::kSegmentsBegin);
  const std::optional<GraphPlan> graphs = graphs_for(segments, budget);
  const Layout layout = graphs ? lay_out_recorded(segments, *graphs, out) : lay_out(segments, budget, out);
  flight->followed = !flights_.empty();
  // A page that leaves a table may stay in the prefix cache, so its rows wait no longer.
  const auto moves = [&](const ops::PageTableEdit& edit) {
    return waiting_ != nullptr && std::ranges::any_of(waiting_->rows, [&](const Waiting::Row& row) {
             return edit.slot % memory_->table_rows == row.slot && edit.index == row.position / config_.page_size;
           });
  };
  if (!may_wait(layout) || std::ranges::any_of(edits_, moves)) teach_waiting();
  upload(*flight, layout, segments, budget.table);
  upload_scores(layout, *flight);
  flight->begin->set();
  if (!graphs) {
    draft(layout);
  } else if (layout.blocks > 0) {
    draft_graphs_.at(graphs->draft)->launch();
  }
  flight->drafted->set();
  if (layout.mask_rows > 0) {
    device_.enqueue_download(memory_->host_drafts.data(), memory_->drafts.data(),
                             static_cast<size_t>(layout.drafts) * sizeof(TokenId));
    flight->drafts_here->set();
  }
  if (graphs) {
    verify_graphs_.at(graphs->verify)->launch();
  } else {
    enqueued_ = flight.get();
    verify(layout);
    enqueued_ = nullptr;
  }
  if (depth() == 1) fill_masks(*flight);
  flight->end->set();
  device_.enqueue_download(flight->results.data(), memory_->results.data(),
                           static_cast<size_t>(memory_->results_bytes()));
  flight->logprobs_copied = layout.logprobs;
  flight->choices = layout.choices;
  if (layout.logprobs || !layout.scored.empty()) {
    device_.enqueue_download(flight->logprobs.data(), memory_->logprobs.data(),
                             (layout.choices + layout.scored.size()) * sizeof(ops::RowLogprobs));
  }
  flight->arrived->set();
  flights_.push_back(std::move(flight));
  return {};
}

// One copy brings the step's survival table, ticket and segments. Edits of the page table, known tokens and their axes,
// if any, take one copy each.
void Round::upload(Flight& flight, const Layout& layout, std::span<const RoundSegment> segments,
                   const ops::SurvivalTable* survival) {
  const Memory& m = *memory_;
  auto* host = static_cast<std::byte*>(flight.step.data());
  if (survival != nullptr) std::memcpy(host, survival, sizeof(*survival));
  if (layout.mask_rows > 0) ++masked_steps_;
  *reinterpret_cast<ops::MaskTicket*>(host + Memory::kTicketBegin) = {masked_steps_, layout.mask_rows};
  auto* table = reinterpret_cast<ops::StepSegment*>(host + Memory::kSegmentsBegin);
  auto* tokens = reinterpret_cast<TokenId*>(host + m.tokens_begin());
  auto* axes = reinterpret_cast<RopeAxes*>(host + m.axes_begin());
  flight.segments.clear();
  flight.masks.clear();
  flight.mask_rows = layout.mask_rows;
  flight.wants_logprobs.clear();
  flight.scored.clear();
  int32_t token_count = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    table[i].token_begin = token_count;
    std::copy(segments[i].known.begin(), segments[i].known.end(), tokens + token_count);
    if (layout.rope_axes) put_axes(segments[i], axes + token_count);
    token_count += static_cast<int32_t>(segments[i].known.size());
    flight.segments.push_back(table[i]);
    flight.masks.push_back(config_.rank == 0 ? segments[i].masks : nullptr);
    flight.wants_logprobs.push_back(slots_[segments[i].slot].wants_logprobs);
    flight.scored.push_back(static_cast<int32_t>(segments[i].scored.size()));
  }
  // The last value of an entry wins.
  std::stable_sort(edits_.begin(), edits_.end(), [](const auto& a, const auto& b) {
    return std::pair(a.slot, a.index) < std::pair(b.slot, b.index);
  });
  auto* edits = reinterpret_cast<ops::PageTableEdit*>(host + m.edits_begin());
  int32_t edit_count = 0;
  for (size_t i = 0; i < edits_.size(); ++i) {
    const bool last =
        i + 1 == edits_.size() || edits_[i + 1].slot != edits_[i].slot || edits_[i + 1].index != edits_[i].index;
    if (last) edits[edit_count++] = edits_[i];
  }
  edits_.clear();
  const auto copy = [&](int64_t begin, int64_t bytes) {
    if (bytes == 0) return;
    device_.enqueue_upload(static_cast<std::byte*>(m.step.data()) + begin, host + begin, static_cast<size_t>(bytes));
  };
  copy(0, Memory::kSegmentsBegin + std::max(layout.n, layout.segments) * int64_t{sizeof(ops::StepSegment)});
  copy(m.edits_begin(), edit_count * int64_t{sizeof(ops::PageTableEdit)});
  copy(m.tokens_begin(), token_count * int64_t{sizeof(TokenId)});
  if (layout.rope_axes) copy(m.axes_begin(), token_count * int64_t{sizeof(RopeAxes)});
  ops::edit_page_table(stream_, m.edit_array(), edit_count, m.tables);
}

StepResults Round::take_results() {
  VOLLEY_CHECK_GT(under_way(), 0);
  VOLLEY_CHECK_EQ(flights_.front()->mask_rows, 0);  // the step's masks are filled
  std::unique_ptr<Flight> flight = std::move(flights_.front());
  flights_.pop_front();
  flight->arrived->wait();
  StepResults step;
  step.times = {flight->drafted->seconds_since(*flight->begin), flight->end->seconds_since(*flight->drafted),
                std::chrono::steady_clock::now()};
  count_times(*flight);
  const int32_t stride = memory_->stride;
  const auto* outcomes = static_cast<const ops::StepOutcome*>(flight->results.data());
  const auto* tokens = reinterpret_cast<const TokenId*>(outcomes + memory_->max_segments);
  const auto* confidence = reinterpret_cast<const float*>(tokens + int64_t{memory_->max_segments} * stride);
  const auto* logprobs = static_cast<const ops::RowLogprobs*>(flight->logprobs.data());
  std::memcpy(&experts_touched_, static_cast<const std::byte*>(flight->results.data()) + memory_->experts_begin(),
              sizeof(experts_touched_));
  step.results.resize(flight->segments.size());
  const ops::RowLogprobs* score = logprobs + flight->choices;
  for (size_t i = 0; i < step.results.size(); ++i) {
    const ops::StepOutcome& outcome = outcomes[i];
    RoundResult& result = step.results[i];
    const TokenId* begin = tokens + static_cast<int64_t>(i) * stride;
    result.tokens.assign(begin, begin + outcome.committed);
    if (outcome.committed > 0) {
      result.drafted = outcome.verified;
      const float* of_block = confidence + static_cast<int64_t>(i) * (stride - 1);
      result.confidence.assign(of_block, of_block + flight->segments[i].draft);
    }
    result.accepted = outcome.accepted;
    result.ended = outcome.ended != 0;
    result.exhausted = outcome.exhausted != 0;
    result.finite = outcome.finite != 0;
    for (int32_t j = 0; j < flight->scored[i]; ++j) result.scores.push_back(ops::to_position_logprobs(*score++));
    if (!flight->logprobs_copied || !flight->wants_logprobs[i]) continue;
    for (int32_t j = 0; j < outcome.committed; ++j) {
      result.logprobs.push_back(ops::to_position_logprobs(logprobs[outcome.choice_begin + j]));
    }
  }
  free_.push_back(std::move(flight));
  step.phases = times_;
  step.experts_touched = experts_touched_;
  return step;
}

void Round::count_times(Flight& flight) {
  times_.device += flight.end->seconds_since(*flight.begin);
  if (last_end_set_ && flight.followed) times_.idle += flight.begin->seconds_since(*last_end_);
  std::swap(last_end_, flight.end);
  last_end_set_ = true;
  if (device_.kind() != DeviceKind::kCpu && !config_.profile) return;
  times_.draft += flight.drafted->seconds_since(*flight.begin);
  times_.target += flight.forwarded->seconds_since(*flight.drafted);
  times_.choose += flight.chosen->seconds_since(*flight.forwarded);
  times_.commit += last_end_->seconds_since(*flight.chosen);
}

}  // namespace volley::decode
