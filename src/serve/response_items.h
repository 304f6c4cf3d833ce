// The items of a conversation in the Responses API: what clients send, what answers hold, what is kept between them.
// Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/chat_body.h"
#include "serve/fields.h"

namespace volley::serve {

struct ResponseItem {
  enum class Kind { kMessage, kReasoning, kCall, kCallOutput };

  Kind kind = Kind::kMessage;
  std::string id;
  std::string role = {};     // of a message
  std::string text = {};     // of a message, a thought, an output; of a call its arguments
  std::string call_id = {};  // of a call and its output
  std::string name = {};     // of a call

  size_t bytes() const { return sizeof *this + id.size() + role.size() + text.size() + call_id.size() + name.size(); }
};

// `status`: "in_progress", "completed" or "incomplete". `logprobs`: of an answer's message, elements of a JSON array.
std::string item_json(const ResponseItem& item, std::string_view status, std::string_view logprobs = {});
// A part of an answer's message or thought.
std::string part_json(const ResponseItem& item, std::string_view logprobs = {});
// "msg_", "rs_", "fc_" or "fco_".
std::string_view id_prefix(ResponseItem::Kind kind);

// The item of an earlier answer that a client refers to; nothing: it is not kept.
using FindItem = std::function<std::optional<ResponseItem>(const std::string& id)>;

// "input": a text, or a list of items. Those without an id get one: its kind's prefix, `id_suffix` and their number.
std::vector<ResponseItem> read_input(FieldReader& in, const std::string& id_suffix, const FindItem& find);

void add_turns(const std::vector<ResponseItem>& items, ChatTurns& turns);

}  // namespace volley::serve
