#include "serve/api/page.h"

namespace volley::serve {

ApiResult<PageQuery> page_query(const HttpRequest& request, size_t usual, size_t most) {
  const std::string order = query_value(request, "order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return invalid_field("order", "\"order\" must be \"asc\" or \"desc\".");
  }
  PageQuery query{order == "asc", query_value(request, "after"), usual};
  if (const std::string text = query_value(request, "limit"); !text.empty()) {
    const bool digits = text.size() <= 5 && text.find_first_not_of("0123456789") == std::string::npos;
    query.limit = digits ? std::stoul(text) : 0;
    if (query.limit < 1 || query.limit > most) {
      return invalid_field("limit", "\"limit\" must be an integer from 1 to " + std::to_string(most) + ".");
    }
  }
  return query;
}

}  // namespace volley::serve
