// Shared by the round's files: round.cc (slots, steps in and out), round_layout.cc (where a step's rows go),
// round_graphs.cc (recorded steps), round_phases.cc (the work on the stream), round_memory.cc (memory it needs).
// Private to this folder.
#pragma once

#include "base/math.h"
#include "decode/round.h"

namespace volley::decode {

struct Round::Layout {
  int32_t n = 0;                             // segments of the target's pass
  int32_t decoding = 0;                      // the first segments of these, which decode
  int32_t segments = 0;                      // at least n: a recorded drafter's pass may have room for more
  int32_t blocks = 0;                        // blocks in the drafter's pass
  int32_t drafter = 0;                       // the one that drafts
  int32_t draft_length = 0;                  // tokens that the drafter's pass drafts for each block
  int32_t shared_rows = VerifyBudget::kAll;  // rows of the target's pass for the decoding segments
  int32_t rows = 0;                          // rows of the target's pass
  int32_t max_segment_rows = 0;
  int32_t drafts = 0;   // drafted tokens of all blocks
  int32_t choices = 0;  // choices of all segments
  std::vector<LogitChunk> draft_chunks, choice_chunks;
  int32_t mask_rows = 0;  // rows of grammar masks
  struct Scored {
    int32_t row = 0;  // first row in the target's pass
    TokenId token = 0;
  };
  std::vector<Scored> scored;  // one entry for each scored segment
  bool logprobs = false;       // a slot asked for them
  bool rope_axes = false;      // rows bring rotary positions on three axes
  struct Given {
    int32_t row = 0, rows = 0;  // in the target's pass
    const GivenRows* vectors = nullptr;
  };
  std::vector<Given> given;
};

// All device memory but scratch. Consecutive steps reuse a step's own part, because the stream keeps them in order.
struct Round::Memory {
  Buffer slots;        // [slots + 1] SlotRow; the last row is the scrap slot
  Buffer page_tables;  // [groups, slots + 1, width] int32
  // A step's upload: survival table, ticket of masks, segments, edits of the page table, known tokens and their axes.
  Buffer step;
  Buffer drafts, choices, finite;
  Buffer confidence;  // [drafts], the drafter's
  Buffer results;     // StepOutcome of each segment, committed tokens, confidence of its drafted ones; experts touched
  Buffer committed;   // slots and counts, for the sampler
  Buffer logprobs;    // [max_rows] RowLogprobs
  Buffer masks, host_masks, masks_filled, host_drafts;  // for grammars, see ops::StepMasks
  Buffer scores;                                        // for prompt logprobs, see upload_scores()
  int64_t score_rows = 0;                               // rows that fit into `scores`
  int32_t mask_words = 0;                               // words of a mask
  TensorView tables;                                    // page_tables as [groups * table_rows, width]
  int64_t table_rows = 0;                               // rows of a group's table
  PageTables target_tables;
  std::vector<PageTables> draft_tables;  // by drafter
  // sizes of the parts of `step`; axes_bytes is 0 for targets without axes
  int64_t segments_bytes = 0, edits_bytes = 0, tokens_bytes = 0, axes_bytes = 0;
  int32_t max_segments = 0;
  int64_t max_edits = 0;
  int32_t stride = 0;  // most tokens that a segment can commit

  // The page table of a group: [slots + 1, width].
  TensorView table(size_t group) const { return tables.rows(static_cast<int64_t>(group) * table_rows, table_rows); }

  // Offsets of a step's parts in `step` and in its copy on the host.
  static constexpr int64_t kPartAlignment = 64;
  static constexpr int64_t kTicketBegin = round_up(sizeof(ops::SurvivalTable), kPartAlignment);
  static constexpr int64_t kSegmentsBegin = kTicketBegin + round_up(sizeof(ops::MaskTicket), kPartAlignment);
  int64_t edits_begin() const { return kSegmentsBegin + segments_bytes; }
  int64_t tokens_begin() const { return edits_begin() + edits_bytes; }
  int64_t axes_begin() const { return tokens_begin() + tokens_bytes; }
  int64_t step_bytes() const { return axes_begin() + axes_bytes; }
  template <typename T>
  T* part(int64_t begin) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(step.data()) + begin);
  }
  const ops::SurvivalTable* survival_table() const { return part<ops::SurvivalTable>(0); }
  const ops::MaskTicket* mask_ticket() const { return part<ops::MaskTicket>(kTicketBegin); }
  ops::StepSegment* segment_array() const { return part<ops::StepSegment>(kSegmentsBegin); }
  ops::PageTableEdit* edit_array() const { return part<ops::PageTableEdit>(edits_begin()); }
  TokenId* token_array() const { return part<TokenId>(tokens_begin()); }
  int32_t* axes_array() const { return part<int32_t>(axes_begin()); }
  ops::StepOutcome* outcome_array() const { return static_cast<ops::StepOutcome*>(results.data()); }
  TokenId* result_tokens() const { return reinterpret_cast<TokenId*>(outcome_array() + max_segments); }
  float* result_confidence() const { return reinterpret_cast<float*>(result_tokens() + max_segments * stride); }
  // The results end with the number of experts touched since the round was made.
  int64_t experts_begin() const {
    return round_up(max_segments * (static_cast<int64_t>(sizeof(ops::StepOutcome)) + stride * int64_t{sizeof(TokenId)} +
                                    (stride - 1) * int64_t{sizeof(float)}),
                    int64_t{sizeof(int64_t)});
  }
  int64_t* experts_touched() const {
    return reinterpret_cast<int64_t*>(static_cast<std::byte*>(results.data()) + experts_begin());
  }
  // Offsets in `scores`: the step's scored rows, then a choice for each chunk of logits, then a mask for each row.
  int64_t score_choices_begin(int64_t rows) const { return round_up(rows * 4, kPartAlignment); }
  int64_t score_masks_begin(int64_t rows) const {
    return score_choices_begin(rows) + round_up(rows * int64_t{sizeof(ops::ChoiceSegment)}, kPartAlignment);
  }
  int64_t scores_bytes(int64_t rows) const { return score_masks_begin(rows) + rows * mask_words * 4; }
  int64_t results_bytes() const { return experts_begin() + int64_t{sizeof(int64_t)}; }
};

// On the CPU a row of a plain step waits with its features until somebody drafts, its slot ends, pages are copied, or
// the room is full. A drafter's weights are then read once for many rows.
struct Round::Waiting {
  struct Row {
    int32_t slot = 0, position = 0;
    TokenId token = 0;
    int32_t at = 0;  // its row of features
  };
  int64_t most_rows = 0;
  int32_t used = 0;  // rows of features; those of slots that are done stand for nothing
  std::vector<Row> rows;
  std::vector<Buffer> buffers;
  std::vector<TensorView> features;  // by drafter: [most rows][columns]; null for one that learns nothing
};

struct Round::Flight {
  Buffer step;      // pinned copy of Memory::step
  Buffer results;   // pinned copy of Memory::results
  Buffer logprobs;  // pinned copy of Memory::logprobs: those of choices, then those of scored rows
  Buffer scores;    // pinned copy of Memory::scores
  Buffer given;     // pinned copy of a step's GivenRows, on a GPU whose target has a tower
  std::unique_ptr<Fence> begin, drafted, forwarded, chosen, end, arrived, drafts_here;
  std::vector<ops::StepSegment> segments;          // as requested, before rows were shared out
  std::vector<std::shared_ptr<MaskSource>> masks;  // one for each segment, null without masks; on rank 0 alone
  int32_t mask_rows = 0;                           // rows to fill
  std::vector<bool> wants_logprobs;
  std::vector<int32_t> scored;  // scored rows of each segment
  int32_t choices = 0;          // rows of logprobs before the scored ones
  bool logprobs_copied = false;
  bool followed = false;  // another step was under way when this one was enqueued
};

struct Round::IdlePass {
  Buffer touched;  // pinned: Memory::experts_touched() once the pass has ended
  std::unique_ptr<Fence> end;
};

}  // namespace volley::decode
