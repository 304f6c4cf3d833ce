// The work of a round besides matrix products: laying out rows, and deciding which tokens are committed to each
// sequence. Everything here reads and writes only device memory, so that one round can follow another before the host
// has its results.
//
// The host chooses the slots that take part and their numbers of rows; only the slot table knows each sequence's length
// and last token. Threads: the stream's.
#pragma once

#include <cstdint>
#include <optional>

#include "device/arena.h"
#include "ops/acceptance/survival.h"
#include "ops/choice/choice.h"
#include "ops/rows.h"

namespace volley::ops {

// One running request's state on the device.
struct SlotRow {
  uint64_t seed = 0;
  int32_t length = 0;         // tokens of the sequence; the last one has no K and V yet
  int32_t last_token = 0;     // the one at sequence index length - 1
  int32_t prompt_length = 0;  // outputs start at this index
  int32_t min_tokens = 0;     // outputs before end ids count
  int32_t max_tokens = 0;     // outputs in all
  int32_t done = 0;           // an end id was committed, or max_tokens reached: no more tokens are committed
  int32_t end_count = 0;
  int32_t draft_context = 0;         // sliding-window layers of the drafter have no K and V before this position
  int32_t rope_offset = 0;           // the target's rotary position of a token after the prompt, minus its index
  TokenId end_ids[kMaxEndIds] = {};  // any of them ends the request
};

// The rows of one slot in a step: known tokens without K and V, then drafted ones. Written by the host.
struct StepSegment {
  static constexpr int32_t kFromSlot = -1;
  int32_t slot = 0;
  int32_t start = kFromSlot;  // sequence index of the first row; kFromSlot: the slot's last token, known == 1
  int32_t known = 1;
  int32_t draft = 0;             // drafted tokens to verify; 0 unless kFromSlot
  int32_t chooses = 0;           // a token is chosen after the last known row and after each drafted one
  int32_t rows_reserved = 1;     // >= known + draft; unused rows become token 0 at position 0 of the scrap slot
  int32_t row_begin = 0;         // first row in the target's pass
  int32_t token_begin = 0;       // first of its known tokens in Step::tokens, unless kFromSlot
  int32_t block_index = -1;      // its block in the drafter's pass; -1: no tokens are drafted for it
  int32_t draft_begin = 0;       // first of its drafted tokens in the step's
  int32_t drafts_reserved = 0;   // >= draft: room for its drafted tokens there
  int32_t draft_chunk = 0;       // first drafted token of the chunk of logits that its drafts are chosen from
  int32_t choice_begin = 0;      // first of its choices; draft + 1 of them if it chooses
  int32_t choices_reserved = 0;  // >= draft + 1 if it chooses
  int32_t choice_chunk = 0;      // first choice of the chunk of logits that its choices are made from
  int32_t mask_row = -1;         // first of its grammar masks, one a choice; -1: all tokens are allowed
  float shift = 0;               // shift of the request's log-odds that its drafted tokens are accepted (survival.h)
  float simulate = -1;           // >= 0: simulated acceptance with this probability, and with the next as confidence
  float simulated_confidence = 0;
};

struct Step {
  const StepSegment* segments = nullptr;  // [n], device memory
  int32_t n = 0;
  int32_t blocks = 0;               // blocks of the drafter's pass
  int32_t max_segment_rows = 0;     // bound of rows_reserved
  const TokenId* tokens = nullptr;  // known tokens of the segments that bring them; device memory
  // [tokens][3]: their rotary positions in time, height and width; null: index + SlotRow::rope_offset. Device memory.
  // REQUIRES: with these, Rows::rope_axes.
  const int32_t* axes = nullptr;
  SlotRow* slots = nullptr;  // the slot table; device memory. Its last row is the scrap slot
  int32_t scrap_slot = 0;    // padding rows go there: its pages belong to no request
};

enum class Mask {
  kCausal,         // a row sees everything up to itself
  kBidirectional,  // a row sees everything up to the end of its segment
};

struct Visibility {
  Mask mask = Mask::kCausal;         // mask of full-attention layers
  Mask window_mask = Mask::kCausal;  // mask of sliding-window layers
  int32_t layer_window = 0;          // > 0: their window: |query - key| < window; fills the window view
  int32_t context_window = 0;        // > 0: only so many of the positions before the segment are seen
};

// The grammar masks of a step, described by the step's upload.
struct MaskTicket {
  uint64_t step = 0;  // the step's number among those with masks, from 1
  int32_t rows = 0;   // 0: it has none
};

// Where the host puts a step's masks while the step runs. A recorded step holds these addresses.
struct StepMasks {
  const MaskTicket* ticket = nullptr;  // device memory
  const uint64_t* filled = nullptr;    // host memory: the number of the last step whose masks are filled
  const uint32_t* from = nullptr;      // host memory, [rows][words]
  uint32_t* to = nullptr;              // device memory
  int32_t words = 0;                   // words of a mask
};

// Copies the step's masks to the device. A GPU waits until the host has filled them; on the CPU they must be ready.
void take_masks(Stream& stream, const StepMasks& masks);

// The rows of a pass that give logits, and the choices made from them.
struct PassChoices {
  ChoiceSegment* segments = nullptr;  // [segments of the pass]
  TensorView logit_rows;              // [choices] int32: row of the pass whose output gives the choice's logits
  const uint32_t* masks = nullptr;    // [..][mask_words]: grammar masks of the step
  int32_t mask_words = 0;
};

// A block of a drafter's pass: the slot's last token, then mask tokens, at the positions that follow it.
struct DraftBlock {
  int32_t rows = 0;
  int32_t first_proposal = 0;  // row that gives the token after the slot's last one; the rows after it the tokens after
  TokenId mask_token = 0;
};

// Both functions fill the arrays and segments of `rows`, except page tables, and the views: the whole one and, if there
// are sliding-window layers, theirs.
//
// The drafter's pass, whose rotary positions are the tokens' indices. Choice j of a block is made from its row
// first_proposal + j; `draft` of them are chosen. REQUIRES: a row for each choice.
void fill_draft_rows(Stream& stream, const Step& step, const DraftBlock& block, const Visibility& visibility,
                     const Rows& rows, const PassChoices& choices);

// The target's pass. drafts: the step's drafted tokens, device memory. Segments of slots that are done have no rows;
// their reserved rows go to the scrap slot.
void fill_verify_rows(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                      const Rows& rows, const PassChoices& choices);

// Chooses the drafted tokens that are verified. Each of the step's first `decoding` segments, which are all kFromSlot,
// keeps its last token. The remaining `rows` go to the (segment, position) pairs whose tokens most likely survive; ties
// go to the lower position, then to the lower segment. A segment's tokens are a prefix of its block, because survival
// only falls along it. Slots that are done get nothing.
struct SharePlan {
  static constexpr int32_t kAll = -1;
  int32_t decoding = 0;
  // rows of the target's pass, the last tokens included; kAll: segments stay as they are
  int32_t rows = kAll;
  const float* confidence = nullptr;     // [the step's drafts]: the drafter's
  const SurvivalTable* table = nullptr;  // device memory
  float* reported = nullptr;  // [decoding][stride] out, or null: the confidence of each drafted token, or what
                              // simulated acceptance says it is
  int32_t stride = 0;         // >= the drafted tokens of any segment
};

// Rewrites the decoding segments (`segments` is the step's array). draft: the number of drafted tokens comes in, the
// number to verify goes out. row_begin, rows_reserved, choice_begin and choices_reserved: the segments get rows and
// choices from 0 on, without gaps and in their order; rows that remain up to `rows` are reserved for the last one.
// REQUIRES: rows >= decoding; the decoding segments' choices are of one chunk of logits, the first.
void share_verify_rows(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan);

// The tokens that a segment with `chooses` committed; all zero for other segments and for slots that were done already.
struct StepOutcome {
  int32_t accepted = 0;  // committed tokens that were drafted
  int32_t committed = 0;
  int32_t ended = 0;         // the last one is an end id
  int32_t exhausted = 0;     // max_tokens reached, and not by an end id
  int32_t finite = 1;        // 0: no token could be chosen after the committed ones (ChoiceOutput::finite)
  int32_t length = 0;        // the sequence's length afterwards
  int32_t verified = 0;      // drafted tokens that were
  int32_t choice_begin = 0;  // first of its choices in the step's
};

struct AcceptInputs {
  const TokenId* drafts = nullptr;   // the step's
  const TokenId* choices = nullptr;  // the step's
  const uint8_t* finite = nullptr;   // one a choice
};

struct AcceptOutputs {
  StepOutcome* outcomes = nullptr;  // [n]
  TokenId* tokens = nullptr;        // [n][stride]: committed tokens
  int32_t stride = 0;               // >= 1 + the largest draft
  int32_t* slots = nullptr;         // [n]: the segments' slots, for append_committed()
  int32_t* counts = nullptr;        // [n]: committed tokens
};

// Applies the acceptance rule (acceptance.h), and updates the slot table.
void accept_step(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out);

// A changed page-table entry.
struct PageTableEdit {
  int32_t slot = 0, index = 0, page = 0;
};
// edits: [n], device memory. table: [slots, width] int32. REQUIRES: no entry twice.
void edit_page_table(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table);

}  // namespace volley::ops
