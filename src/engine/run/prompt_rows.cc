#include "engine/run/prompt_rows.h"

#include <algorithm>

namespace volley::engine {

// The tokens between spans and after them follow the greatest position so far: the rule of M-RoPE.
PromptRows::PromptRows(std::vector<PromptSpan> spans, int32_t prompt_length, int32_t vectors)
    : spans_(std::move(spans)), vectors_(vectors) {
  if (std::ranges::all_of(spans_, [](const PromptSpan& span) { return span.positions.empty(); })) return;
  int32_t next = 0;
  const auto count_to = [&](int32_t end) {
    while (std::ssize(axes_) < end) axes_.emplace_back().fill(next++);
  };
  for (const PromptSpan& span : spans_) {
    count_to(span.positions.empty() ? span.end : span.begin);
    axes_.insert(axes_.end(), span.positions.begin(), span.positions.end());
    for (const decode::RopeAxes& axes : span.positions) next = std::max(next, 1 + std::ranges::max(axes));
  }
  count_to(prompt_length);
  rope_offset_ = next - prompt_length;
}

void PromptRows::add_to(decode::RoundSegment& segment) {
  const int32_t begin = segment.start, end = begin + static_cast<int32_t>(segment.known.size());
  if (!axes_.empty()) {
    // A preempted request computes its outputs anew.
    for (auto i = static_cast<int32_t>(axes_.size()); i < end; ++i) axes_.emplace_back().fill(i + rope_offset_);
    segment.axes = std::span(axes_).subspan(begin, segment.known.size());
  }
  for (const PromptSpan& span : spans_) {
    const int32_t from = std::max(begin, span.begin), to = std::min(end, span.end);
    if (from >= to || span.vectors == nullptr) continue;
    decode::GivenRows& given = segment.given.emplace_back();
    given.begin = from - begin;
    const size_t all = span.vectors->size() / static_cast<size_t>(vectors_);  // of one kind
    const size_t hidden = all / static_cast<size_t>(span.end - span.begin);
    for (int32_t i = 0; i < vectors_; ++i) {
      const size_t first = static_cast<size_t>(i) * all + static_cast<size_t>(from - span.begin) * hidden;
      given.vectors.push_back(std::span(*span.vectors).subspan(first, static_cast<size_t>(to - from) * hidden));
    }
  }
}

}  // namespace volley::engine
