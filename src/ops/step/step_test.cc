// Protects, on the CPU and on a GPU: the positions, tokens and visible ranges of a pass's rows; the rows of choices;
// how the slot table moves on.
#include "ops/step/step.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <numeric>

#include "ops/device_for_test.h"
#include "ops/step/step_rule.h"

namespace volley::ops {
namespace {

using Ints = std::vector<int32_t>;
constexpr int32_t kRows = 32;
constexpr int32_t kScrap = 3;

// A step's device memory: three slots and the scrap slot.
class Fixture {
 public:
  explicit Fixture(Device& device) : device_(device), slots_(4) {
    slots_[kScrap].length = 1;
    slots_[kScrap].done = 1;
  }

  SlotRow& slot(int32_t i) { return slots_[i]; }

  Step step(const std::vector<StepSegment>& segments, const Ints& tokens = {0}, const Ints& axes = {}) {
    segments_.emplace(device_, segments);
    tokens_.emplace(device_, tokens);
    table_.emplace(device_, slots_);
    Step step;
    step.segments = at<StepSegment>(*segments_);
    step.n = static_cast<int32_t>(segments.size());
    for (const StepSegment& s : segments) {
      step.blocks = std::max(step.blocks, s.block_index + 1);
      step.max_segment_rows = std::max(step.max_segment_rows, s.rows_reserved);
    }
    step.tokens = at<TokenId>(*tokens_);
    if (!axes.empty()) step.axes = at<int32_t>(axes_.emplace(device_, axes));
    step.slots = at<SlotRow>(*table_);
    step.scrap_slot = kScrap;
    return step;
  }

  template <typename T>
  static T* at(const DeviceTensor& t) {
    return static_cast<T*>(t.view(DType::kU8, {1}).data);
  }

  Rows rows(bool windows = false) {
    Rows out;
    arrays_.clear();
    for (int i = 0; i < 9; ++i) arrays_.push_back(std::make_unique<DeviceTensor>(device_, Ints(kRows, -7)));
    const auto view = [&](int i) { return arrays_[i]->view(DType::kI32, {kRows}); };
    out.token_ids = view(0);
    out.slots = view(1);
    out.rope_positions = view(2);
    out.cache_positions = view(3);
    out.views[kWholeView] = {view(4), view(5), {}};
    if (windows) out.views[kWindowView] = {view(6), view(7), {}};
    row_axes_.emplace(device_, Ints(kRows * 3, -7));
    row_segments_.emplace(device_, std::vector<RowSegment>(8));
    out.segments = at<RowSegment>(*row_segments_);
    return out;
  }
  PassChoices choices() {
    choice_segments_.emplace(device_, std::vector<ChoiceSegment>(8));
    return {at<ChoiceSegment>(*choice_segments_), arrays_[8]->view(DType::kI32, {kRows}), nullptr, 0};
  }

  Ints read(int array, int32_t count) const {
    Ints all = arrays_[array]->read<int32_t>();
    all.resize(count);
    return all;
  }
  Ints tokens(int32_t n) const { return read(0, n); }
  Ints slot_ids(int32_t n) const { return read(1, n); }
  Ints rope_positions(int32_t n) const { return read(2, n); }
  Ints positions(int32_t n) const { return read(3, n); }
  TensorView row_axes() const { return row_axes_->view(DType::kI32, {kRows, 3}); }
  Ints axes(int32_t n) const {
    Ints all = row_axes_->read<int32_t>();
    all.resize(3 * n);
    return all;
  }
  Ints visible_begin(int32_t n) const { return read(4, n); }
  Ints visible_end(int32_t n) const { return read(5, n); }
  Ints window_begin(int32_t n) const { return read(6, n); }
  Ints window_end(int32_t n) const { return read(7, n); }
  Ints logit_rows(int32_t n) const { return read(8, n); }
  std::vector<RowSegment> row_segments() const { return row_segments_->read<RowSegment>(); }
  std::vector<ChoiceSegment> choice_segments() const { return choice_segments_->read<ChoiceSegment>(); }
  std::vector<SlotRow> table() const { return table_->read<SlotRow>(); }

  // The result of accept_step() for these drafts and choices, with room for four tokens a segment.
  struct Accepted {
    std::vector<StepOutcome> outcomes;
    Ints tokens, slots, counts;
  };
  Accepted accept(const std::vector<StepSegment>& segments, const Ints& drafts, const Ints& choices,
                  const std::vector<uint8_t>& finite) {
    const Step step = this->step(segments);
    const size_t n = segments.size();
    const DeviceTensor d(device_, drafts), c(device_, choices), f(device_, finite);
    const DeviceTensor outcomes(device_, n * sizeof(StepOutcome)), tokens(device_, Ints(4 * n, -1));
    const DeviceTensor slots(device_, Ints(n, -1)), counts(device_, Ints(n, -1));
    accept_step(device_.stream(), step, {at<TokenId>(d), at<TokenId>(c), at<uint8_t>(f)},
                {at<StepOutcome>(outcomes), at<TokenId>(tokens), 4, at<int32_t>(slots), at<int32_t>(counts)});
    return {outcomes.read<StepOutcome>(), tokens.read<int32_t>(), slots.read<int32_t>(), counts.read<int32_t>()};
  }

 private:
  Device& device_;
  std::vector<SlotRow> slots_;
  std::optional<DeviceTensor> segments_, tokens_, axes_, row_axes_, table_, row_segments_, choice_segments_;
  std::vector<std::unique_ptr<DeviceTensor>> arrays_;
};

// A block of the slot's last token and so many drafted ones, which begin at these places of the step's.
StepSegment block_of(int32_t slot, int32_t draft, int32_t row_begin = 0, int32_t draft_begin = 0,
                     int32_t choice_begin = 0) {
  return {.slot = slot,
          .draft = draft,
          .chooses = 1,
          .rows_reserved = draft + 1,
          .row_begin = row_begin,
          .draft_begin = draft_begin,
          .choice_begin = choice_begin,
          .choices_reserved = draft + 1};
}

// Where a slot stands: its length, its last token, whether it is done.
Ints state_of(const SlotRow& row) {
  return {row.length, row.last_token, row.done};
}

class StepOp : public OnEachDevice {
 protected:
  void SetUp() override {
    OnEachDevice::SetUp();
    if (!IsSkipped()) fixture_ = std::make_unique<Fixture>(*device_);
  }
  // Rows of one prefill segment of `rows` tokens from `start`, under `visibility`.
  void fill(int32_t start, int32_t rows, const Visibility& visibility) {
    StepSegment s;
    s.slot = 0;
    s.start = start;
    s.known = s.rows_reserved = rows;
    const Step step = fixture_->step({s}, Ints(rows, 5));
    const Rows out = fixture_->rows(visibility.layer_window > 0);
    fill_verify_rows(device_->stream(), step, nullptr, visibility, out, fixture_->choices());
  }

  std::unique_ptr<Fixture> fixture_;
};

// A chunk of a prompt, a verify block, and a block with room for more rows than it brings.
TEST_P(StepOp, VerifyRowsFollowSegmentsAndSlots) {
  Fixture& f = *fixture_;
  f.slot(0).length = 6;
  f.slot(0).last_token = 60;
  f.slot(2).length = 9;
  f.slot(2).last_token = 90;
  StepSegment chunk{.slot = 1,
                    .start = 4,
                    .known = 2,
                    .chooses = 1,
                    .rows_reserved = 2,
                    .row_begin = 3,
                    .token_begin = 1,
                    .choice_begin = 3,
                    .choices_reserved = 1};
  StepSegment roomy = block_of(2, 2, 5, 0, 4);
  roomy.draft = 0;
  roomy.choice_chunk = 4;
  const Step step = f.step({block_of(0, 2), chunk, roomy}, {-1, 11, 12});
  const DeviceTensor drafts(*device_, Ints{61, 62});
  const Rows out = f.rows();
  fill_verify_rows(device_->stream(), step, Fixture::at<TokenId>(drafts), {}, out, f.choices());
  EXPECT_EQ(f.tokens(8), (Ints{60, 61, 62, 11, 12, 90, 0, 0}));
  EXPECT_EQ(f.slot_ids(8), (Ints{0, 0, 0, 1, 1, 2, kScrap, kScrap}));
  EXPECT_EQ(f.positions(8), (Ints{5, 6, 7, 4, 5, 8, 0, 0}));
  EXPECT_EQ(f.visible_begin(8), Ints(8, 0));
  EXPECT_EQ(f.visible_end(8), (Ints{6, 7, 8, 5, 6, 9, 1, 1}));
  EXPECT_EQ(f.logit_rows(7), (Ints{0, 1, 2, 4, 5, 6, 7})) << "a chunk's choice is made from its last row";
  const auto segments = f.row_segments();
  EXPECT_EQ(segments[1].row_begin, 3);
  EXPECT_EQ(segments[1].rows, 2);
  EXPECT_EQ(segments[2].rows, 1) << "what is left over belongs to nobody's sequence";
  const auto choices = f.choice_segments();
  EXPECT_EQ(choices[0].rows, 3);
  EXPECT_EQ(choices[0].first_index, 6);
  EXPECT_EQ(choices[0].prefix, Fixture::at<TokenId>(drafts));
  EXPECT_EQ(choices[1].first_index, 6);
  EXPECT_EQ(choices[2].rows, 1);
  EXPECT_EQ(choices[2].row_begin, 0) << "rows count from the chunk of logits";
}

// The tokens after a picture have fewer rotary positions behind them than tokens; drafters count tokens.
TEST_P(StepOp, RotaryPositionsFollowTheSlotsOffset) {
  Fixture& f = *fixture_;
  f.slot(0).length = 9;
  f.slot(0).rope_offset = -5;
  StepSegment chunk{.slot = 1, .start = 4, .known = 2, .rows_reserved = 2, .row_begin = 2};
  StepSegment roomy = block_of(0, 1);
  roomy.block_index = 0;
  const Step step = f.step({roomy, chunk}, {11, 12});
  const DeviceTensor drafts(*device_, Ints{61});
  Rows out = f.rows();
  fill_verify_rows(device_->stream(), step, Fixture::at<TokenId>(drafts), {}, out, f.choices());
  EXPECT_EQ(f.rope_positions(4), (Ints{3, 4, 4, 5}));
  EXPECT_EQ(f.positions(4), (Ints{8, 9, 4, 5}));
  out = f.rows();
  fill_draft_rows(device_->stream(), step, {.rows = 2, .first_proposal = 1}, {}, out, f.choices());
  EXPECT_EQ(f.rope_positions(2), (Ints{8, 9}));
}

// A pass with a picture's rows: they bring three positions, the others have theirs three times, and each row's angles
// are its own.
TEST_P(StepOp, RowsBringPositionsOfThreeAxes) {
  Fixture& f = *fixture_;
  f.slot(0).length = 9;
  f.slot(0).rope_offset = -5;
  StepSegment block = block_of(0, 1);
  block.rows_reserved = 3;
  StepSegment chunk{.slot = 1, .start = 4, .known = 2, .rows_reserved = 2, .row_begin = 3, .token_begin = 1};
  const Step step = f.step({block, chunk}, {10, 11, 12}, {9, 9, 9, 4, 4, 6, 4, 5, 6});
  const DeviceTensor drafts(*device_, Ints{61});
  Rows out = f.rows();
  out.rope_axes = f.row_axes();
  fill_verify_rows(device_->stream(), step, Fixture::at<TokenId>(drafts), {}, out, f.choices());
  EXPECT_EQ(f.rope_positions(5), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(f.axes(5), (Ints{3, 3, 3, 4, 4, 4, 0, 0, 0, 4, 4, 6, 4, 5, 6}));
  EXPECT_EQ(f.positions(5), (Ints{8, 9, 0, 4, 5}));
}

TEST_P(StepOp, DraftRowsAreTheLastTokenAndMasks) {
  Fixture& f = *fixture_;
  f.slot(1).length = 6;
  f.slot(1).last_token = 60;
  StepSegment plain{.slot = 0};
  StepSegment block = block_of(1, 2);
  block.block_index = 0;
  block.drafts_reserved = 2;
  const Step step = f.step({plain, block});
  const Rows out = f.rows();
  fill_draft_rows(device_->stream(), step, {.rows = 4, .first_proposal = 1, .mask_token = 99}, {Mask::kBidirectional},
                  out, f.choices());
  EXPECT_EQ(f.tokens(5), (Ints{60, 99, 99, 99, -7}));
  EXPECT_EQ(f.positions(4), (Ints{5, 6, 7, 8}));
  EXPECT_EQ(f.visible_end(4), Ints(4, 9)) << "every row sees the whole block";
  EXPECT_EQ(f.logit_rows(3), (Ints{1, 2, -7}));
  const ChoiceSegment choice = f.choice_segments()[0];
  EXPECT_EQ(choice.rows, 2);
  EXPECT_EQ(choice.first_index, 6);
  EXPECT_EQ(choice.prefix, nullptr);
}

// Where the last token's row proposes, too, a block of as many rows proposes one token more for the same positions.
TEST_P(StepOp, TheLastTokensRowMayProposeToo) {
  Fixture& f = *fixture_;
  f.slot(1).length = 6;
  f.slot(2).length = 9;
  const StepSegment one{.slot = 1, .draft = 3, .block_index = 0, .drafts_reserved = 3};
  const StepSegment other{.slot = 2, .draft = 2, .block_index = 1, .draft_begin = 3, .drafts_reserved = 2};
  const Step step = f.step({one, other});
  const Rows out = f.rows();
  fill_draft_rows(device_->stream(), step, {.rows = 3, .first_proposal = 0, .mask_token = 99}, {}, out, f.choices());
  EXPECT_EQ(f.logit_rows(6), (Ints{0, 1, 2, 3, 4, -7}));
  EXPECT_EQ(f.positions(6), (Ints{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(f.choice_segments()[0].first_index, 6);
  EXPECT_EQ(f.choice_segments()[1].first_index, 9);
}

// Where windows of the drafter begin without K and V, its sliding-window layers do not look.
TEST_P(StepOp, DraftRowsSeeNoWindowThatIsNotThere) {
  Fixture& f = *fixture_;
  f.slot(1).length = 31;
  const StepSegment block{.slot = 1, .draft = 2, .chooses = 1, .block_index = 0, .drafts_reserved = 2};
  for (const auto& [from, begin] : {std::pair{0, 25}, {22, 25}, {27, 27}, {30, 30}}) {
    f.slot(1).draft_context = from;
    const Rows out = f.rows(true);
    fill_draft_rows(device_->stream(), f.step({block}), {.rows = 3, .first_proposal = 1, .mask_token = 99},
                    {Mask::kBidirectional, Mask::kBidirectional, 6}, out, f.choices());
    EXPECT_EQ(f.window_begin(3), (Ints{begin, std::max(begin, 26), std::max(begin, 27)})) << from;
    EXPECT_EQ(f.window_end(3), (Ints{33, 33, 33}));
    EXPECT_EQ(f.visible_begin(3), Ints(3, 0)) << "full-attention layers have all of it";
  }
}

// --draft-window counts context positions before the segment.
TEST_P(StepOp, ContextWindowKeepsTheLastPositions) {
  fill(10, 2, {Mask::kBidirectional, Mask::kCausal, 0, 6});
  EXPECT_EQ(fixture_->visible_begin(2), (Ints{4, 4}));
  fill(3, 2, {Mask::kBidirectional, Mask::kCausal, 0, 6});
  EXPECT_EQ(fixture_->visible_begin(2), (Ints{0, 0}));
}

// A sliding-window layer: |query - key| < window, on both sides within the block.
TEST_P(StepOp, LayerWindowIsSymmetricInABlock) {
  fill(10, 4, {Mask::kBidirectional, Mask::kBidirectional, 3});
  EXPECT_EQ(fixture_->window_begin(4), (Ints{8, 9, 10, 11}));
  EXPECT_EQ(fixture_->window_end(4), (Ints{13, 14, 14, 14}));
  EXPECT_EQ(fixture_->visible_begin(4), Ints(4, 0)) << "full-attention layers of the same network";
}

// A drafter whose sliding layers are causal inside the block while its full layers are not.
TEST_P(StepOp, KindsOfLayersMayDifferInTheirMask) {
  fill(10, 3, {Mask::kBidirectional, Mask::kCausal, 8});
  EXPECT_EQ(fixture_->visible_end(3), (Ints{13, 13, 13}));
  EXPECT_EQ(fixture_->window_end(3), (Ints{11, 12, 13}));
  EXPECT_EQ(fixture_->window_begin(3), (Ints{3, 4, 5}));
}

TEST_P(StepOp, LayerWindowOfCausalRowsEndsAtTheRow) {
  fill(10, 2, {Mask::kCausal, Mask::kCausal, 4});
  EXPECT_EQ(fixture_->window_begin(2), (Ints{7, 8}));
  EXPECT_EQ(fixture_->window_end(2), (Ints{11, 12}));
}

// Protects: a step that was under way when a request ended changes none of its slot's kept state.
TEST_P(StepOp, SlotsThatAreDoneHaveNoRows) {
  Fixture& f = *fixture_;
  for (int32_t i : {0, 1}) {
    f.slot(i).length = 6 + i;
    f.slot(i).last_token = 60 + i;
    f.slot(i).done = i == 0 ? 1 : 0;
  }
  const Step step = f.step({block_of(0, 1), block_of(1, 0, 2, 0, 2)});
  const DeviceTensor drafts(*device_, Ints{70});
  const Rows rows = f.rows();
  fill_verify_rows(device_->stream(), step, Fixture::at<TokenId>(drafts), {}, rows, f.choices());
  EXPECT_EQ(f.slot_ids(3), (Ints{step.scrap_slot, step.scrap_slot, 1}));
  EXPECT_EQ(f.positions(3), (Ints{0, 0, 6}));
  EXPECT_EQ(f.row_segments()[0].rows, 0);
  EXPECT_EQ(f.row_segments()[1].rows, 1);
}

// The slot table after a step: a block that is partly kept, a prompt's last chunk, and a slot that was done.
TEST_P(StepOp, AcceptMovesSlotsOn) {
  Fixture& f = *fixture_;
  for (int32_t i : {0, 1, 2}) {
    f.slot(i).prompt_length = 4;
    f.slot(i).max_tokens = 100;
    f.slot(i).length = i == 1 ? 4 : 7;
    f.slot(i).last_token = 50 + i;
  }
  f.slot(0).end_count = 1;
  f.slot(0).end_ids[0] = 2;
  f.slot(2).done = 1;
  const StepSegment chunk{
      .slot = 1, .start = 2, .known = 2, .chooses = 1, .rows_reserved = 2, .choice_begin = 4, .choices_reserved = 1};
  const auto [result, tokens, slots, counts] = f.accept({block_of(0, 3), chunk, block_of(2, 0, 0, 0, 5)}, {10, 2, 12},
                                                        {10, 2, 13, 14, 77, 88}, {1, 1, 0, 1, 0, 1});
  EXPECT_EQ(result[0].committed, 2);
  EXPECT_EQ(result[0].accepted, 2);
  EXPECT_EQ(result[0].ended, 1);
  EXPECT_EQ(result[0].finite, 1) << "the bad row comes after what was committed";
  EXPECT_EQ(result[1].committed, 0) << "there was nothing to choose";
  EXPECT_EQ(result[1].finite, 0);
  EXPECT_EQ(result[2].committed, 0);
  EXPECT_EQ(tokens, (Ints{10, 2, -1, -1, 77, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(slots, (Ints{0, 1, 2}));
  EXPECT_EQ(counts, (Ints{2, 0, 0}));
  const auto table = f.table();
  EXPECT_EQ(state_of(table[0]), (Ints{9, 2, 1}));
  EXPECT_EQ(state_of(table[1]), (Ints{4, 51, 1}));
  EXPECT_EQ(table[2].length, 7) << "a slot that is done stays as it is";
}

// A row without a choice ends its request there: tokens accepted before it stand, as with a step for each token.
TEST_P(StepOp, KeepsWhatWasAcceptedBeforeARowWithoutAChoice) {
  Fixture& f = *fixture_;
  for (int32_t i : {0, 1}) {
    f.slot(i).prompt_length = 4;
    f.slot(i).max_tokens = i == 0 ? 100 : 5;
    f.slot(i).length = 7;
    f.slot(i).end_count = 1;
    f.slot(i).end_ids[0] = 12;
  }
  const auto [result, tokens, slots, counts] =
      f.accept({block_of(0, 3), block_of(1, 3, 0, 3, 4)}, {10, 11, 12, 10, 11, 9}, {10, 11, 12, 13, 10, 11, 9, 8},
               {1, 0, 1, 1, 0, 1, 1, 1});
  EXPECT_EQ(result[0].committed, 1);
  EXPECT_EQ(result[0].accepted, 1);
  EXPECT_EQ(result[1].committed, 0);
  EXPECT_EQ(result[1].accepted, 0);
  for (const StepOutcome& outcome : {result[0], result[1]}) {
    EXPECT_EQ(outcome.finite, 0);
    EXPECT_EQ(outcome.ended, 0) << "the end id came after the bad row";
    EXPECT_EQ(outcome.exhausted, 0);
  }
  EXPECT_EQ(counts, (Ints{1, 0}));
  EXPECT_EQ(state_of(f.table()[0]), (Ints{8, 10, 1}));
  EXPECT_EQ(f.table()[1].length, 7);
  EXPECT_EQ(f.table()[1].done, 1);
}

TEST_P(StepOp, EditsReachThePageTable) {
  const DeviceTensor table(*device_, Ints(6, 0));
  const DeviceTensor edits(*device_, std::vector<PageTableEdit>{{0, 2, 7}, {1, 0, 8}});
  edit_page_table(device_->stream(), Fixture::at<PageTableEdit>(edits), 2, table.view(DType::kI32, {2, 3}));
  EXPECT_EQ(table.read<int32_t>(), (Ints{0, 0, 7, 8, 0, 0}));
}

// The device may reach the copy before the host has filled the masks.
TEST_P(StepOp, MasksComeWhenTheHostHasFilledThem) {
  const bool waits = device_->kind() != DeviceKind::kCpu;
  const DeviceTensor to(*device_, Ints(6, -1));
  auto from = device_->allocate_host(6 * sizeof(uint32_t)), filled = device_->allocate_host(sizeof(uint64_t));
  ASSERT_TRUE(from.ok() && filled.ok());
  auto* words = static_cast<uint32_t*>(from->data());
  auto* last = static_cast<uint64_t*>(filled->data());
  const auto take = [&](MaskTicket ticket) {
    const DeviceTensor there(*device_, std::vector<MaskTicket>{ticket});
    const StepMasks masks = {Fixture::at<MaskTicket>(there), last, words, Fixture::at<uint32_t>(to), 2};
    const auto fill = [&] {
      std::iota(words, words + 6, static_cast<uint32_t>(10 * ticket.step));
      std::atomic_ref(*last).store(ticket.step, std::memory_order_release);
    };
    if (!waits) fill();
    take_masks(device_->stream(), masks);
    if (waits) fill();
    return to.read<int32_t>();
  };
  EXPECT_EQ(take({1, 2}), (Ints{10, 11, 12, 13, -1, -1}));
  EXPECT_EQ(take({1, 0}), (Ints{10, 11, 12, 13, -1, -1})) << "a step without masks takes none";
  EXPECT_EQ(take({2, 3}), (Ints{20, 21, 22, 23, 24, 25}));
}

VOLLEY_ON_EACH_DEVICE(StepOp);

TEST(SimulatedAcceptance, PositionsSurviveGeometrically) {
  constexpr int kBlocks = 200'000;
  constexpr double kP = 0.8553;
  std::vector<int> survived(16, 0);
  for (int i = 0; i < kBlocks; ++i) {
    const int32_t accepted = step::simulated_acceptance(kP, 15, 42 + i % 7, i);
    ASSERT_GE(accepted, 0);
    ASSERT_LE(accepted, 15);
    for (int k = 1; k <= accepted; ++k) ++survived[k];
  }
  for (int k = 1; k <= 15; ++k) {
    const double p = std::pow(kP, k), deviation = std::sqrt(p * (1 - p) / kBlocks);
    EXPECT_NEAR(survived[k] / static_cast<double>(kBlocks), p, 5 * deviation) << "position " << k;
  }
}

TEST(SimulatedAcceptance, EndsAreExactAndRunsRepeat) {
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(step::simulated_acceptance(1.0, 15, 1, i), 15);
    EXPECT_EQ(step::simulated_acceptance(0.0, 15, 1, i), 0);
    EXPECT_EQ(step::simulated_acceptance(0.5, 15, 9, i), step::simulated_acceptance(0.5, 15, 9, i));
  }
}

}  // namespace
}  // namespace volley::ops
