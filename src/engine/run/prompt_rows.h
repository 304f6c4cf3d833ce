// What a request brings for the rows of its prompt beside token ids: vectors, and rotary positions on three axes.
#pragma once

#include <volley/engine.h>

#include <vector>

#include "decode/step_executor.h"

namespace volley::engine {

class PromptRows {
 public:
  PromptRows() = default;
  // REQUIRES: check_request() accepted them. vectors: EngineInfo::prompt_vectors.
  PromptRows(std::vector<PromptSpan> spans, int32_t prompt_length, int32_t vectors);

  // The rotary position of a token after the prompt, minus its index.
  int32_t rope_offset() const { return rope_offset_; }
  // Gives span `index` its vectors, which PromptSpan describes.
  void set_vectors(size_t index, std::shared_ptr<const std::vector<float>> vectors) {
    spans_[index].vectors = std::move(vectors);
  }
  // The last span's vectors, to tell prompts' vectors apart; null: there are none.
  const void* last_vectors() const { return spans_.empty() ? nullptr : spans_.back().vectors.get(); }
  // Adds what the segment's known tokens bring. The segment refers to this object until the next call.
  void add_to(decode::RoundSegment& segment);

 private:
  std::vector<PromptSpan> spans_;
  int32_t vectors_ = 1;
  std::vector<decode::RopeAxes> axes_;  // of each token so far; empty: no span has positions
  int32_t rope_offset_ = 0;
};

}  // namespace volley::engine
