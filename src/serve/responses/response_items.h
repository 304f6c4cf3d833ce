// The items of a conversation in the Responses API: what clients send, what answers hold, what is kept between them.
// Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/api/hosted_tools.h"
#include "serve/json/fields.h"

namespace volley::serve {

struct ResponseItem {
  // kTools: tools that a client adds in the midst of a conversation. kForeign: of a tool that ran elsewhere.
  enum class Kind {
    kMessage,
    kReasoning,
    kCall,
    kCallOutput,
    kCustomCall,
    kCustomOutput,
    kSearchCall,
    kSearchOutput,
    kTools,
    kForeign,
  };

  Kind kind = Kind::kMessage;
  std::string id;
  std::string role = {};     // of a message
  std::string text = {};     // of a message, a thought, an output; of a call its arguments or input; tools as JSON;
                             // of what is foreign all of it, as JSON
  std::string call_id = {};  // of a call and its output
  std::string name = {};     // of a call
  std::string space = {};    // of a call: the namespace of its tool; empty: none
  bool sealed = false;       // of a thought: its "encrypted_content" has it, too

  bool has_tools() const { return kind == Kind::kTools || kind == Kind::kSearchOutput; }
  size_t bytes() const {
    return sizeof *this + id.size() + role.size() + text.size() + call_id.size() + name.size() + space.size();
  }
};

// `status`: "in_progress", "completed" or "incomplete". `logprobs`: of an answer's message, elements of a JSON array.
std::string item_json(const ResponseItem& item, std::string_view status, std::string_view logprobs = {});
// A part of an answer's message or thought.
std::string part_json(const ResponseItem& item, std::string_view logprobs = {});
// "msg_", "rs_", "fc_" and so on.
std::string_view id_prefix(ResponseItem::Kind kind);

// The item of an earlier answer that a client refers to; nothing: it is not kept.
using FindItem = std::function<std::optional<ResponseItem>(const std::string& id)>;

// "input": a text, or a list of items; `raw` is what the client wrote. Those without an id get one: its kind's prefix,
// `id_suffix` and their number. What the model reads otherwise goes to `notes`.
std::vector<ResponseItem> read_input(FieldReader& in, std::string_view raw, const std::string& id_suffix,
                                     const FindItem& find, Notes& notes);

void add_turns(const std::vector<ResponseItem>& items, ChatTurns& turns);

}  // namespace volley::serve
