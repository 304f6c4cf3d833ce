// What a round does besides matrix products: it lays out rows, and it decides what became part of each sequence. All of
// it reads and writes device memory only, so that one round can follow another before the host has seen its results.
//
// The host says which slots take part and how many rows each brings; where a sequence stands, and what its last token
// is, only the slot table knows. Threads: the stream's.
#pragma once

#include <cstdint>
#include <optional>

#include "device/arena.h"
#include "ops/acceptance/survival.h"
#include "ops/choice/choice.h"
#include "ops/rows.h"

namespace volley::ops {

// One running request, as the device knows it.
struct SlotRow {
  uint64_t seed = 0;
  int32_t length = 0;         // tokens of the sequence; the last one has no K and V yet
  int32_t last_token = 0;     // the one at sequence index length - 1
  int32_t prompt_length = 0;  // outputs start at this index
  int32_t min_tokens = 0;     // outputs before end ids count
  int32_t max_tokens = 0;     // outputs in all
  int32_t done = 0;           // an end id was committed, or max_tokens: nothing is committed any more
  int32_t end_count = 0;
  int32_t draft_context = 0;         // sliding-window layers of the drafter have no K and V before this position
  TokenId end_ids[kMaxEndIds] = {};  // any of them ends the request
};

// The rows of one slot in a step: known tokens without K and V, then drafted ones. Written by the host.
struct StepSegment {
  static constexpr int32_t kFromSlot = -1;
  int32_t slot = 0;
  int32_t start = kFromSlot;  // sequence index of the first row; kFromSlot: the slot's last token, known == 1
  int32_t known = 1;
  int32_t draft = 0;            // drafted tokens to verify; 0 unless kFromSlot
  int32_t chooses = 0;          // a token is chosen after the last known row and after each drafted one
  int32_t rows_reserved = 1;    // >= known + draft; what is left over: token 0 at position 0, in rows of the scrap slot
  int32_t row_begin = 0;        // first row in the target's pass
  int32_t token_begin = 0;      // first of its known tokens in Step::tokens, unless kFromSlot
  int32_t block_index = -1;     // its block in the drafter's pass; -1: it is not drafted for
  int32_t draft_begin = 0;      // first of its drafted tokens in the step's
  int32_t drafts_reserved = 0;  // >= draft: room for its drafted tokens there
  int32_t draft_chunk = 0;      // first drafted token of the chunk of logits that its drafts are chosen from
  int32_t choice_begin = 0;     // first of its choices; draft + 1 of them if it chooses
  int32_t choices_reserved = 0;  // >= draft + 1 if it chooses
  int32_t choice_chunk = 0;      // first choice of the chunk of logits that its choices are made from
  int32_t mask_row = -1;         // first of its grammar masks, one a choice; -1: all tokens are allowed
  float shift = 0;               // of the request's log-odds that its drafted tokens are accepted (survival.h)
  float simulate = -1;           // >= 0: simulated acceptance with this probability, and with the next as confidence
  float simulated_confidence = 0;
};

struct Step {
  const StepSegment* segments = nullptr;  // [n], device memory
  int32_t n = 0;
  int32_t blocks = 0;               // of the drafter's pass
  int32_t max_segment_rows = 0;     // bound of rows_reserved
  const TokenId* tokens = nullptr;  // known tokens of the segments that bring them; device memory
  SlotRow* slots = nullptr;         // the slot table; device memory. Its last row is the scrap slot
  int32_t scrap_slot = 0;           // rows that mean nothing go there: its pages belong to nobody
};

enum class Mask {
  kCausal,         // a row sees everything up to itself
  kBidirectional,  // a row sees everything up to the end of its segment
};

struct Visibility {
  Mask mask = Mask::kCausal;         // of full-attention layers
  Mask window_mask = Mask::kCausal;  // of sliding-window layers
  int32_t layer_window = 0;          // > 0: their window: |query - key| < window; fills the window view
  int32_t context_window = 0;        // > 0: of the positions before the segment only the last that many are seen
};

// Which rows of a pass give logits, and what is chosen from them.
struct PassChoices {
  ChoiceSegment* segments = nullptr;  // [segments of the pass]
  TensorView logit_rows;              // [choices] int32: row of the pass whose output gives the choice's logits
  const uint32_t* masks = nullptr;    // [..][mask_words]: grammar masks of the step
  int32_t mask_words = 0;
};

// Both fill the arrays and segments of `rows`, page tables excepted, and of the views the whole one and, where there
// are sliding-window layers, theirs.
//
// The drafter's pass: block_size rows a block, the slot's last token and then mask tokens. Choice j of a block is the
// token after its row j + 1; `draft` of them are chosen.
void fill_draft_rows(Stream& stream, const Step& step, int32_t block_size, TokenId mask_token,
                     const Visibility& visibility, const Rows& rows, const PassChoices& choices);

// The target's pass. drafts: the step's drafted tokens, device memory. Segments of slots that are done have no rows;
// what is reserved for them goes to the scrap slot.
void fill_verify_rows(Stream& stream, const Step& step, const TokenId* drafts, const Visibility& visibility,
                      const Rows& rows, const PassChoices& choices);

// Which drafted tokens are verified. Of the step's first `decoding` segments, which are all kFromSlot, each keeps its
// last token, and what is left of `rows` goes to the (segment, position) pairs whose tokens most likely survive; of
// equals to the lower position, then to the lower segment. A segment's tokens are a prefix of its block, because
// survival only falls along it. Slots that are done get nothing.
struct SharePlan {
  static constexpr int32_t kAll = -1;
  int32_t decoding = 0;
  int32_t rows = kAll;                // of the target's pass, the last tokens included; kAll: segments stay as they are
  const float* confidence = nullptr;  // [the step's drafts]: the drafter's
  const SurvivalTable* table = nullptr;  // device memory
  float* reported = nullptr;  // [decoding][stride] out, or null: the confidence of each drafted token, or what
                              // simulated acceptance says it is
  int32_t stride = 0;         // >= the drafted tokens of any segment
};

// Rewrites draft, row_begin, rows_reserved, choice_begin and choices_reserved of the decoding segments (`segments` is
// the step's array): their rows and choices are 0, 1, … of the pass in their order, and what is left over up to `rows`
// goes to the last one as reserve. draft comes in as the number of tokens that were drafted and goes out as the number
// to verify. REQUIRES: rows >= decoding; the decoding segments' choices are of one chunk of logits, the first.
void share_verify_rows(Stream& stream, const Step& step, StepSegment* segments, const SharePlan& plan);

// What a segment with `chooses` committed; all zero for the others and for slots that were done already.
struct StepOutcome {
  int32_t accepted = 0;  // committed tokens that were drafted
  int32_t committed = 0;
  int32_t ended = 0;         // the last one is an end id
  int32_t exhausted = 0;     // max_tokens reached, and not by an end id
  int32_t finite = 1;        // 0: after the committed tokens there was nothing to choose (ChoiceOutput::finite)
  int32_t length = 0;        // of the sequence, afterwards
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

// The acceptance rule (acceptance.h), and the slot table moves on.
void accept_step(Stream& stream, const Step& step, const AcceptInputs& in, const AcceptOutputs& out);

// A page-table entry that the host changes.
struct PageTableEdit {
  int32_t slot = 0, index = 0, page = 0;
};
// edits: [n], device memory. table: [slots, width] int32. REQUIRES: no entry twice.
void edit_page_table(Stream& stream, const PageTableEdit* edits, int32_t n, TensorView table);

}  // namespace volley::ops
