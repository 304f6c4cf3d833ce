// Tools that another service runs on its machines: web search, code, images. They cannot run here. Agents send them
// with every request, so they are left out, and the header X-Volley-Ignored-Tools names them. A conversation may
// contain their results, and pictures in tool results: the model reads a short text instead, and X-Volley-Notes says
// so. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>

#include "serve/json/fields.h"

namespace volley::serve {

class HostedTools {
 public:
  // `refuse`: makes each an error of `in` (--refuse-hosted-tools).
  HostedTools(FieldReader& in, bool refuse) : in_(in), refuse_(refuse) {}

  // `where`: "tools[3]". False: it is refused. REQUIRES: is_hosted_type() for some names.
  bool leave_out(std::string_view where, std::string_view type);

  const std::set<std::string>& types() const { return types_; }  // types that were left out

 private:
  FieldReader& in_;
  const bool refuse_;
  std::set<std::string> types_;
};

// Whether `type` is one of `names`, or a version of one: "web_search" also matches "web_search_20250305" and
// "web_search_preview". Such a type has only letters, digits and "_".
bool is_hosted_type(std::string_view type, std::initializer_list<std::string_view> names);

// Notes on a request, for a header and the log.
using Notes = std::set<std::string>;

// The text that replaces an item or a block of another service's tools: its type and content, without ids and encrypted
// data. REQUIRES: an object with a "type".
std::string foreign_text(const nlohmann::json& value);
// Notes that the conversation has one of this type. REQUIRES: is_hosted_type() for some names.
void note_foreign(std::string_view type, Notes& notes);

// The text in place of a part that no model here reads, such as an "image" in a tool's result. `type`: our own name.
std::string left_out_text(std::string_view type, Notes& notes);

}  // namespace volley::serve
