// A conversation of any of the three APIs, with one way to the chat template. Pure.
#pragma once

#include <volley/engine.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace volley::serve {

// A picture of a message.
struct ChatPicture {
  std::string where;     // the part that has it, for errors
  std::string url;       // "data:image/png;base64,…" or "https://…", as the client wrote it
  bool is_file = false;  // `url` is the id of a file of /v1/files
};

// The byte that stands for a picture in a content: no text in UTF-8 has it.
inline constexpr char kPicture = '\xFF';
// A Unicode noncharacter, U+FDD1, which messages_json() puts before each picture.
inline constexpr std::string_view kPictureMark = "\xEF\xB7\x91";

// Appends a part of a content: in a line of its own, but for pictures.
void append_part(std::string& content, std::string_view part);

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;                            // joined parts; nothing: null, only for an assistant
  std::optional<std::string> thoughts = {};                      // an assistant's
  std::vector<std::string> calls = {};                           // JSON of each, usually made by call_json()
  std::optional<std::string> call_id = {};                       // for a tool's result: the answered call
  std::vector<std::pair<std::string, std::string>> others = {};  // further members, with values as JSON
  std::vector<ChatPicture> pictures = {};                        // in the order of their bytes in the content
};

struct Conversation {
  // Names of the client's API, for errors.
  std::string_view field = "messages", effort_field = "reasoning_effort";

  std::vector<ChatMessage> messages;
  std::string tools_json;             // JSON array of functions; may be empty
  std::optional<std::string> effort;  // effort to think
  std::optional<bool> thinks;         // the API's own default of the variable `enable_thinking`
  std::string template_kwargs_json;   // JSON object or empty: template variables, including these two
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// JSON of a function call. `arguments`: JSON, which is written as a text.
std::string call_json(std::string_view id, std::string_view name, std::string_view arguments);

// A content with pictures is a list of parts.
std::string messages_json(const std::vector<ChatMessage>& messages);

// Converts a chat for the engine's template. `cancelled` may be null.
ChatMessages for_template(const Conversation& chat, const std::atomic<bool>* cancelled);

// Builds messages from items or blocks, turn by turn. The assistant's consecutive thoughts, texts and calls become one
// message. So do the first system messages, because many templates take only one, at the start.
class ChatTurns {
 public:
  void system(std::string_view text);
  void user(std::string text, std::vector<ChatPicture> pictures = {});
  void thought(std::string_view text);
  void said(std::string_view text);
  // Adds a part to the assistant's message without starting a turn: thoughts and calls around it stay together.
  void remarked(std::string_view text);
  void called(std::string_view id, std::string_view name, std::string_view arguments);
  void tool_result(std::string call_id, std::string text, std::vector<ChatPicture> pictures = {});

  bool ends_with_text() const { return speaking_ && spoke_ && messages_.back().calls.empty(); }  // the assistant's
  std::vector<ChatMessage> take() { return std::move(messages_); }

 private:
  void add(ChatMessage message);
  ChatMessage& assistant();

  std::vector<ChatMessage> messages_;
  bool speaking_ = false, spoke_ = false;  // the last message is the assistant's
};

}  // namespace volley::serve
