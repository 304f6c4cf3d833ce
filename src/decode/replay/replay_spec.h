// A proposer that replays recorded answers, wrong at chosen places (ops/replay/replay.h): it stands for a drafter of a
// given quality where there is none, so that any family's verification can be tested and measured with partial
// acceptance. Its folder holds config.json and a file of answers:
//
//   {"architectures": ["ReplayDraftModel"], "block_size": 16, "accuracy": 0.8, "salt": 1, "answers": "answers.jsonl"}
//   {"seed": 1000, "token_ids": [5, 17, 2]}      (a line an answer; a request is known by its seed)
#pragma once

#include "decode/proposer_spec.h"

namespace volley::decode::replay {

// Errors as decode::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode::replay
