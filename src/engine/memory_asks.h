// Before which steps another process must be asked for memory: one that decodes without masks takes none, and what
// there is for masks stays.
#pragma once

#include <algorithm>
#include <span>

#include "spec/step_executor.h"

namespace volley::engine {

class MemoryAsks {
 public:
  // True: granted() is to follow when it has agreed.
  bool must_ask(std::span<const spec::RoundSegment> segments) {
    wanted_ = 0;
    bool scores = false;
    for (const spec::RoundSegment& segment : segments) {
      wanted_ += segment.masks != nullptr ? segment.draft + 1 : 0;
      scores = scores || !segment.scored.empty();
    }
    return scores || wanted_ > mask_rows_;
  }
  void granted() { mask_rows_ = std::max(mask_rows_, wanted_); }

 private:
  int32_t wanted_ = 0;     // rows of masks of the last step that was asked about
  int32_t mask_rows_ = 0;  // that there is memory for
};

}  // namespace volley::engine
