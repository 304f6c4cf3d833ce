// A conversation as all three APIs read it, and its one way to the chat template. Pure.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace volley::serve {

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;        // parts are joined; nothing: null, of an assistant alone
  std::optional<std::string> thoughts = {};  // of an assistant
  std::vector<std::string> calls = {};       // JSON of each, mostly that of call_json()
  std::optional<std::string> call_id = {};   // of a tool's result: the call that it answers
  std::vector<std::pair<std::string, std::string>> others = {};  // further members, their values as JSON
};

struct Conversation {
  // What the client's API calls these, for errors.
  std::string_view field = "messages", effort_field = "reasoning_effort";

  std::vector<ChatMessage> messages;
  std::string tools_json;             // JSON array of functions, or empty
  std::optional<std::string> effort;  // to think
  std::optional<bool> thinks;         // the API's own default of the variable `enable_thinking`
  std::string template_kwargs_json;   // JSON object or empty: variables of the template, those two included
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// A call of a function. `arguments`: JSON, which is written as a text.
std::string call_json(std::string_view id, std::string_view name, std::string_view arguments);

std::string messages_json(const std::vector<ChatMessage>& messages);

// What the engine's chat template takes. `cancelled` may be null.
ChatMessages for_template(const Conversation& chat, const std::atomic<bool>* cancelled);

// Messages of items or blocks, turn by turn. What the assistant thinks, says and calls without anything in between is
// one message; so are the first messages of the system, because many templates take one only, at the start.
class ChatTurns {
 public:
  void system(std::string_view text);
  void user(std::string text) { add({"user", std::move(text)}); }
  void thought(std::string_view text);
  void said(std::string_view text);
  // A part of the assistant's message, but no turn of its own: thoughts and calls around it stay together.
  void remarked(std::string_view text);
  void called(std::string_view id, std::string_view name, std::string_view arguments);
  void tool_result(std::string call_id, std::string text);

  bool ends_with_text() const { return speaking_ && spoke_ && messages_.back().calls.empty(); }  // of the assistant
  std::vector<ChatMessage> take() { return std::move(messages_); }

 private:
  void add(ChatMessage message);
  ChatMessage& assistant();

  std::vector<ChatMessage> messages_;
  bool speaking_ = false, spoke_ = false;  // the assistant, in the last message
};

}  // namespace volley::serve
