// Reads the map from a drafter's smaller vocabulary to the target's tokens.
#pragma once

#include <volley/sampling.h>

#include <span>
#include <vector>

#include "weights/checkpoint.h"

namespace volley::decode::dflash {

// Tensors of the checkpoint, by EAGLE's names. d2t: the distance from each drafter token's id to its id in the target's
// vocabulary ([draft_vocab] whole numbers). t2d: the target's tokens that the drafter has ([vocab] flags).
inline constexpr const char* kTargetOffsets = "d2t";
inline constexpr const char* kInDraftVocabulary = "t2d";

// Returns the target's id of each drafter token. kDataLoss where an id lies outside the target's vocabulary, stands for
// two tokens or contradicts the flags, which a checkpoint may leave out. A map that is read wrongly would give the
// right text at no gain in speed.
Result<std::vector<TokenId>> read_target_ids(const weights::Checkpoint& checkpoint, int32_t draft_vocab, int32_t vocab);

}  // namespace volley::decode::dflash
