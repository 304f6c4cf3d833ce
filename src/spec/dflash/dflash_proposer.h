// DFlash: one pass of the draft network proposes a whole block (docs/dflash.md).
#pragma once

#include <memory>

#include "model/draft_network.h"
#include "model/target.h"
#include "spec/proposer.h"

namespace volley::spec {

struct DFlashOptions {
  int32_t block_size = 0;      // >= 2
  int32_t context_window = 0;  // 0: the whole context
};

// References must outlive the proposer.
std::unique_ptr<Proposer> make_dflash_proposer(std::unique_ptr<model::DraftNetwork> network,
                                               const model::Target& target, const model::KvMemory& kv,
                                               DFlashOptions options);

}  // namespace volley::spec
