// Cache groups: layers whose K and V live equally long share pages, a page table and a pool. Arithmetic only.
//
// A page holds page_size positions of all layers of its group. Group 0 is always the one whose pages live as long as
// their sequence, of full-attention layers; where a model has none its pages hold nothing and weigh nothing, and still
// count positions. The other groups are of sliding-window layers, one for each size of window: their pages go when no
// row to come can see them. Recurrent layers have a state a slot (model/kv_memory.h); the last group may be of
// snapshots of it: a page of that group is one snapshot, which lies at one position and goes into no page table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/math.h"

namespace volley::kv {

enum class Life {
  kWhole,   // as long as the sequence
  kWindow,  // while rows to come may see it
  kState,   // snapshots of states, while there is room
};

struct Group {
  Life life = Life::kWhole;
  int32_t window = 0;    // kWindow: a row at position p sees no position <= p - window
  int64_t bytes = 1;     // of a page; weighs groups against one another
  int64_t pages = 0;     // there are
  bool required = true;  // kWindow: false where no token depends on it (a drafter's): a prefix is of use without
};

// Beyond the pages there are: it never belongs to a sequence. Table entries without a page point there, and rows that
// mean nothing write there.
inline PageId scrap_page(const Group& group) {
  return PageId(static_cast<int32_t>(group.pages));
}

inline int64_t pages_for(int64_t positions, int32_t page_size) {
  return divide_up(positions, page_size);
}

// The first page that a row at `position` or a later one may see.
inline int64_t first_page(const Group& group, int64_t position, int32_t page_size) {
  return group.life != Life::kWindow ? 0 : std::max<int64_t>(0, position - group.window + 1) / page_size;
}

// What a request has to own. Rows to come are at `computed` or later: up to there its K and V are known to be there,
// whatever steps are under way.
struct Need {
  int64_t computed = 0;
  int64_t positions = 0;  // to own in all
  int64_t ahead = 0;      // how far past `computed` windows have to reach now; the rest of `positions` may wait
};

// Pages [begin, end) of a sequence.
struct PageRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};
inline PageRange range_of(const Group& group, const Need& need, int32_t page_size) {
  if (group.life == Life::kState) return {};
  const int64_t positions =
      group.life == Life::kWhole ? need.positions : std::min(need.positions, need.computed + need.ahead);
  return {first_page(group, need.computed, page_size), pages_for(positions, page_size)};
}

// A bound of range_of().size() for every `computed` of a request.
inline int64_t most_pages(const Group& group, int64_t positions, int64_t ahead, int32_t page_size) {
  if (group.life == Life::kState) return 0;
  const int64_t all = pages_for(positions, page_size);
  // The range may begin and end inside a page.
  return group.life == Life::kWhole ? all : std::min(all, pages_for(group.window - 1 + ahead, page_size) + 1);
}

}  // namespace volley::kv
