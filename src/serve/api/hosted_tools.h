// Tools that another service runs on its own machines: web search, code, images. They cannot run here. An agent sends
// them with every request whether it needs them or not, so they are left out, and the answer's header
// X-Volley-Ignored-Tools names them. A conversation brings along what they did elsewhere, and pictures in results of
// tools: the model reads a short text in their place, and X-Volley-Notes says so.
// Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

#include "serve/json/fields.h"

namespace volley::serve {

// The hosted tools of one request.
class HostedTools {
 public:
  // `refuse`: each is an error of `in` instead (--refuse-hosted-tools).
  HostedTools(FieldReader& in, bool refuse) : in_(in), refuse_(refuse) {}

  // `where`: "tools[3]". False: it is refused. REQUIRES: is_hosted_type() of some names.
  bool leave_out(std::string_view where, std::string_view type);

  const std::set<std::string>& types() const { return types_; }  // of those that were left out

 private:
  FieldReader& in_;
  const bool refuse_;
  std::set<std::string> types_;
};

// Whether `type` is one of `names`, or a version of it: "web_search" stands for "web_search_20250305" and
// "web_search_preview", too. No other characters than letters, digits and "_" are in it then.
bool is_hosted_type(std::string_view type, std::initializer_list<std::string_view> names);

// What an answer says of its request, in a header and in the log.
using Notes = std::set<std::string>;

// The text in place of an item or a block of another service's tools: its type and what it says, but for ids and what
// that service has encrypted. REQUIRES: an object with a "type".
std::string foreign_text(const nlohmann::json& value);
// Notes that there was one of this type. REQUIRES: is_hosted_type() of some names.
void note_foreign(std::string_view type, Notes& notes);

// The text in place of what no model reads here, such as an "image" in the result of a tool. `type` is one of ours.
std::string left_out_text(std::string_view type, Notes& notes);

}  // namespace volley::serve
