// Requests of other APIs, written as the body of a chat completion, so that one parser reads them all. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serve/errors.h"
#include "serve/fields.h"

namespace volley::serve {

// What a field of a chat completion is called in another API.
struct FieldName {
  std::string_view chat, own;
};

// An error about fields of a chat completion as the other API's client must read it: in `param`, and where the message
// quotes a name.
ApiError with_own_names(ApiError error, std::span<const FieldName> names);

// A conversation, turn by turn. What the assistant thinks, says and calls without anything in between is one message;
// so are the first messages of the system, because many templates take one only, at the start.
class ChatTurns {
 public:
  void system(std::string_view text);
  void user(std::string_view text);
  void thought(std::string_view text);
  void said(std::string_view text);
  void called(std::string_view id, std::string_view name, std::string_view arguments);
  void tool_result(std::string_view call_id, std::string_view text);

  bool empty() const { return messages_.empty() && !speaking_ && !has_system_; }
  bool ends_with_text() const { return speaking_ && spoke_ && calls_.empty(); }  // of the assistant
  // The messages as a JSON array. Last.
  std::string take();

 private:
  void end_start();
  void end_turn();
  void add(std::string_view role, std::string_view text, std::string_view more = {});

  std::vector<std::string> messages_;  // as JSON
  std::string system_;                 // of the first message, once the start has ended
  bool has_system_ = false;            // it has said so
  bool at_start_ = true;               // nothing but the system has spoken
  // The assistant's message that is being put together:
  bool speaking_ = false, spoke_ = false;
  std::string content_, reasoning_;
  std::vector<std::string> calls_;  // as JSON
};

class ChatBody {
 public:
  void add(std::string_view name, std::string_view json);
  // Every member of the object `body` that is not among `read`: it means the same in both APIs.
  void add_rest(std::string_view body, const std::set<std::string_view>& read);
  std::string take() { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

}  // namespace volley::serve
