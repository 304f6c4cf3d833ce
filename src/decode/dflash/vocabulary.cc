#include "decode/dflash/vocabulary.h"

namespace volley::decode::dflash {

Result<std::vector<TokenId>> read_target_ids(const weights::Checkpoint& checkpoint, int32_t draft_vocab,
                                             int32_t vocab) {
  const auto wrong = [&](const std::string& what) {
    return data_loss(checkpoint.origin() + ": the tensor \"" + kTargetOffsets + "\" " + what +
                     ": fetch the drafter again, or turn speculation off.");
  };
  VOLLEY_ASSIGN(const std::vector<int64_t> offsets, checkpoint.integers(kTargetOffsets, draft_vocab));
  std::vector<bool> taken(static_cast<size_t>(vocab));
  std::vector<TokenId> ids;
  for (int64_t j = 0; j < draft_vocab; ++j) {
    const int64_t offset = offsets[static_cast<size_t>(j)];
    const std::string maps = "maps the drafter's token " + std::to_string(j) + " to ";
    // The offset's bounds are checked first, because a sum with any int64 could overflow.
    if (offset < -j || offset >= vocab - j) {
      return wrong(maps + "offset " + std::to_string(offset) + ", outside the target's vocabulary of " +
                   std::to_string(vocab));
    }
    const auto id = static_cast<size_t>(j + offset);
    if (taken[id]) return wrong(maps + std::to_string(id) + ", as another token before it");
    taken[id] = true;
    ids.push_back(static_cast<TokenId>(id));
  }
  if (!checkpoint.has(kInDraftVocabulary) || checkpoint.names().empty()) return ids;  // left out, or dummy weights
  VOLLEY_ASSIGN(const std::vector<int64_t> flags, checkpoint.integers(kInDraftVocabulary, vocab));
  for (size_t id = 0; id < flags.size(); ++id) {
    if ((flags[id] != 0) == taken[id]) continue;
    return wrong("and the flags of \"" + std::string(kInDraftVocabulary) + "\" disagree about the target's token " +
                 std::to_string(id));
  }
  return ids;
}

}  // namespace volley::decode::dflash
