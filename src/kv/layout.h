// Cache groups: layers whose K and V live equally long share pages, a page table and a pool. Arithmetic only.
//
// A page holds page_size positions of all layers of its group. Group 0 always belongs to full-attention layers: its
// pages live as long as their sequence. In a model without such layers its pages have no memory and only count
// positions. Each other group belongs to the sliding-window layers of one window size: a page is freed when no later
// row can see it. Recurrent layers have one state a slot (model/kv_memory.h), and the last group may hold snapshots of
// it. A page of that group is one snapshot: it lies at one position and is in no page table.
#pragma once

#include <volley/sampling.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/math.h"

namespace volley::kv {

// What the prefix cache knows a position by: two positions behind equal prefixes hold the same K and V if their keys
// are equal. A row of the embedding has its token's id. Other rows have negative keys: numbers, not hashes, so that
// rows that differ never have the same one.
using CacheKey = TokenId;

enum class Life {
  kWhole,   // as long as the sequence
  kWindow,  // while later rows may see it
  kState,   // snapshots of states, while there is room
};

struct Group {
  Life life = Life::kWhole;
  int32_t window = 0;    // kWindow: a row at position p sees no position <= p - window
  int64_t bytes = 1;     // a page's bytes, which weigh groups against one another
  int64_t pages = 0;     // number of pages
  bool required = true;  // kWindow: false if no token depends on it (a drafter's): prefixes are usable without it
};

// The page after the last one; no sequence ever owns it. Table entries without a page point there, and padding rows
// write there.
inline PageId scrap_page(const Group& group) {
  return PageId(static_cast<int32_t>(group.pages));
}

// A copy within the device's memory.
struct MemoryCopy {
  enum class Kind { kSave, kRestore, kPage };
  Kind kind = Kind::kPage;
  SlotId slot;        // kSave: its state becomes the snapshot `to`; kRestore: the snapshot `from` becomes its state
  int32_t group = 0;  // kPage: page `from` of the group becomes `to`
  PageId from, to;
};

inline int64_t pages_for(int64_t positions, int32_t page_size) {
  return divide_up(positions, page_size);
}

// The first page that a row at `position` or a later one may see.
inline int64_t first_page(const Group& group, int64_t position, int32_t page_size) {
  return group.life != Life::kWindow ? 0 : std::max<int64_t>(0, position - group.window + 1) / page_size;
}

// Pages that a request must own. Its K and V are known to exist up to `computed`, whatever steps are under way, so
// later rows begin there or after it.
struct Need {
  int64_t computed = 0;
  int64_t positions = 0;  // positions to own pages for
  int64_t ahead = 0;      // how far past `computed` windows must reach now; the other positions may wait
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

// An upper bound of range_of().size() over every `computed` of a request.
inline int64_t most_pages(const Group& group, int64_t positions, int64_t ahead, int32_t page_size) {
  if (group.life == Life::kState) return 0;
  const int64_t all = pages_for(positions, page_size);
  // The range may begin and end inside a page.
  return group.life == Life::kWhole ? all : std::min(all, pages_for(group.window - 1 + ahead, page_size) + 1);
}

}  // namespace volley::kv
