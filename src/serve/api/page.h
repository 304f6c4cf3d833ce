// A page of a list, for the query "order", "limit" and "after". Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "serve/http/http.h"
#include "serve/json/errors.h"
#include "serve/json/json_text.h"

namespace volley::serve {

struct PageQuery {
  bool oldest_first = true;
  std::string after = {};  // id of the item before the page; may be empty
  size_t limit = 0;
};

template <typename Item>
struct Page {
  std::vector<Item> items;
  bool more = false;  // more items follow
};

// Reads a request's query. `usual`: the default size of a page.
ApiResult<PageQuery> page_query(const HttpRequest& request, size_t usual, size_t most);

// Copies only the page's items. Those without a `sequence` come oldest first, others in any order. No value: `after`
// names none of the items.
template <typename Item>
std::optional<Page<Item>> page_of(std::vector<const Item*> items, const PageQuery& query) {
  if constexpr (requires { Item::sequence; }) std::ranges::sort(items, {}, [](const Item* i) { return i->sequence; });
  if (!query.oldest_first) std::ranges::reverse(items);
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

// {"object", "data", "first_id", "last_id", "has_more"}.
template <typename Item, typename Write>
HttpResponse page_response(const std::optional<Page<Item>>& page, const Write& json_of) {
  if (!page) return error_response(invalid_field("after", "\"after\" names nothing in this list."));
  const auto& items = page->items;
  std::string data;
  for (const Item& item : items) data.append(data.empty() ? "" : ",").append(json_of(item));
  const auto id_of = [&](auto item) { return items.empty() ? std::string("null") : json_quote(item->id); };
  return json_text(R"({"object":"list","data":[)" + data + R"(],"first_id":)" + id_of(items.begin()) +
                   R"(,"last_id":)" + id_of(items.empty() ? items.begin() : items.end() - 1) + R"(,"has_more":)" +
                   (page->more ? "true" : "false") + "}");
}

}  // namespace volley::serve
