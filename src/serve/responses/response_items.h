// Items of a conversation in the Responses API: those that clients send, answers contain and the store keeps. Pure.
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
  // kTools: tools that a client adds in mid-conversation. kForeign: a call of a tool that ran elsewhere.
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
  std::string role = {};  // a message's role
  // text of a message, thought or output; a call's arguments or input; tools as JSON; a foreign item's whole JSON
  std::string text = {};
  std::string call_id = {};                // for a call and its output
  std::string name = {};                   // a call's tool
  std::string space = {};                  // namespace of a call's tool; may be empty
  bool sealed = false;                     // a thought's "encrypted_content" has it, too
  std::vector<ChatPicture> pictures = {};  // as in ChatMessage

  bool has_tools() const { return kind == Kind::kTools || kind == Kind::kSearchOutput; }
  size_t bytes() const {
    size_t bytes = sizeof *this + id.size() + role.size() + text.size() + call_id.size() + name.size() + space.size();
    for (const ChatPicture& picture : pictures) bytes += sizeof picture + picture.where.size() + picture.url.size();
    return bytes;
  }
};

// `status`: "in_progress", "completed" or "incomplete". `logprobs`: an answer's, as elements of a JSON array.
std::string item_json(const ResponseItem& item, std::string_view status, std::string_view logprobs = {});
// A part of an answer's message or thought.
std::string part_json(const ResponseItem& item, std::string_view logprobs = {});
// "msg_", "rs_", "fc_" and so on.
std::string_view id_prefix(ResponseItem::Kind kind);

// The earlier answer's item that a client refers to; nothing: not stored.
using FindItem = std::function<std::optional<ResponseItem>(const std::string& id)>;

// "input": a text, or a list of items; `raw` is its text. An item without an id gets one: its kind's prefix,
// `id_suffix` and its number. `sees`: the model takes pictures. `notes` gets what the model reads otherwise.
std::vector<ResponseItem> read_input(FieldReader& in, std::string_view raw, const std::string& id_suffix, bool sees,
                                     const FindItem& find, Notes& notes);

void add_turns(const std::vector<ResponseItem>& items, ChatTurns& turns);

}  // namespace volley::serve
