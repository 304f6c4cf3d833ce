// A page of a list, as the query "order", "limit" and "after" asks for it. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace volley::serve {

struct PageQuery {
  bool oldest_first = true;
  std::string after = {};  // id of what comes before the page; empty: nothing
  size_t limit = 0;
};

template <typename Item>
struct Page {
  std::vector<Item> items;
  bool more = false;  // follow behind it
};

// Copies what is on the page and nothing else. Nothing: `after` is none of the items, which may come in any order.
template <typename Item>
std::optional<Page<Item>> page_of(std::vector<const Item*> items, const PageQuery& query) {
  std::sort(items.begin(), items.end(), [&](const Item* a, const Item* b) {
    return query.oldest_first ? a->sequence < b->sequence : a->sequence > b->sequence;
  });
  auto begin = items.begin();
  if (!query.after.empty()) {
    begin = std::find_if(begin, items.end(), [&](const Item* item) { return item->id == query.after; });
    if (begin == items.end()) return std::nullopt;
    ++begin;
  }
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(query.limit, static_cast<size_t>(items.end() - begin)));
  Page<Item> page;
  for (auto item = begin; item != end; ++item) page.items.push_back(**item);
  page.more = end != items.end();
  return page;
}

}  // namespace volley::serve
