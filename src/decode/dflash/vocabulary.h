// A drafter that gives logits of a part of the target's tokens: which ones these are.
#pragma once

#include <volley/sampling.h>

#include <span>
#include <vector>

#include "weights/checkpoint.h"

namespace volley::decode::dflash {

// Tensors of its checkpoint, by the names that EAGLE gave them: how far each token's id in the target's vocabulary lies
// above its own ([draft_vocab] whole numbers), and which of the target's tokens are among them ([vocab] flags).
inline constexpr const char* kTargetOffsets = "d2t";
inline constexpr const char* kInDraftVocabulary = "t2d";

// The target's id of each of the drafter's tokens. kDataLoss where an id lies outside the target's vocabulary, stands
// for two tokens or contradicts the flags, which a checkpoint may leave out: a map that is read wrongly gives right
// text and no speed.
Result<std::vector<TokenId>> read_target_ids(const weights::Checkpoint& checkpoint, int32_t draft_vocab, int32_t vocab);

}  // namespace volley::decode::dflash
