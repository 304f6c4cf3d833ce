// Handles inputs of a chat: messages for the model, and commands, which begin with "/". Threads: stop() on any; else
// one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/chat_backend.h"
#include "apps/chat/conversation.h"

namespace volley::apps {

struct ChatLook {
  bool colours = false;         // the terminal shows colour codes
  bool show_reasoning = false;  // shown, dim with colours
  bool spaced = false;          // an empty line follows each answer
};

class ChatSession {
 public:
  using Print = std::function<void(std::string_view text)>;
  // `print` gets the text to read, in pieces; `say` gets sentences outside of answers; `waiting` gets the text to show
  // until the answer's next text, a few times a second, and an empty one when the wait is over. `backend` must outlive
  // the session.
  ChatSession(ChatBackend* backend, const ChatLook& look, Print print, Print say, Print waiting)
      : backend_(*backend), look_(look), print_(std::move(print)), say_(std::move(say)), waiting_(std::move(waiting)) {}

  Conversation& conversation() { return conversation_; }
  ChatSettings& settings() { return settings_; }

  // Takes one input. False: /quit.
  bool take(const std::string& input);
  // Sends the text as a message, even if it looks like a command. False: there is no whole answer.
  bool ask(const std::string& text);
  void stop() { backend_.stop(); }  // the running answer

 private:
  void command(const std::string& name, const std::string& rest);
  void system(const std::string& rest);
  void set(const std::string& rest);
  void save(const std::string& path);
  void load(const std::string& path);
  void show_picture(const std::string& path);
  void regenerate();
  void show(const ChatSpan& span);
  void wait(const ChatWait& wait);
  void finish(const ChatAnswer& answer);
  std::string describe_stats() const;

  ChatBackend& backend_;
  const ChatLook look_;
  const Print print_, say_, waiting_;
  Conversation conversation_;
  ChatSettings settings_;
  std::vector<std::string> pictures_;  // of the next message
  std::optional<ChatStats> last_;      // the last answer's
  bool stats_after_each_ = false;
  bool quit_ = false;
  bool in_reasoning_ = false;  // the shown answer is in its reasoning
  bool line_open_ = false;     // the printed text did not end its line
  bool shown_ = false;         // some text of this answer was shown
  int64_t hidden_spans_ = 0;   // spans of hidden reasoning
};

}  // namespace volley::apps
