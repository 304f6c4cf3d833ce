#include "apps/chat/session.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "apps/chat/chat_commands.h"
#include "apps/cli/option_aliases.h"
#include "base/file.h"
#include "base/text.h"
#include "serve/json/json_text.h"

namespace volley::apps {
namespace {

constexpr size_t kMaxFileBytes = 64u << 20;
constexpr double kPatience_s = 0.7;  // a wait that needs no explanation
constexpr std::string_view kDim = "\x1b[2m", kReset = "\x1b[0m";
// Shows control codes as text.
std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\n\t"), text.size());
    shown += serve::escape_controls(text.substr(0, end));
    if (end < text.size()) shown += text[end];
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return shown;
}

// Removes line breaks only around the user's text.
std::string message_of(const std::string& input) {
  return std::string(trim(input));
}

}  // namespace

bool ChatSession::take(const std::string& input) {
  const std::string text = message_of(input);
  if (text.empty()) return true;
  if (!input.starts_with('/')) {
    ask(text);
    return true;
  }
  const size_t end = std::min(text.find_first_of(" \t\n"), text.size());
  command(text.substr(0, end), std::string(trim(std::string_view(text).substr(end))));
  return !quit_;
}

void ChatSession::command(const std::string& name, const std::string& rest) {
  const ChatCommandName* known = find_chat_command(name);
  if (known == nullptr) {
    const std::string nearest = nearest_name(name, chat_command_names());
    say_(name + " is no command" + (nearest.empty() ? "" : " (did you mean " + nearest + "?)") +
         ": /help lists them. A space before it makes it a message.");
  } else if (!known->takes_words() && !rest.empty()) {
    say_(name + " takes nothing: leave out \"" + rest + "\".");
  } else if (name == "/quit" || name == "/exit") {
    quit_ = true;
  } else if (name == "/help") {
    print_(chat_help());
  } else if (name == "/clear") {
    conversation_.messages.clear();
    say_("The conversation is empty.");
  } else if (name == "/system") {
    system(rest);
  } else if (name == "/set") {
    set(rest);
  } else if (name == "/stats" && (rest == "on" || rest == "off")) {
    stats_after_each_ = rest == "on";
  } else if (name == "/stats") {
    say_(!rest.empty() ? "/stats takes on, off or nothing." : last_ ? describe_stats() : "There is no answer yet.");
  } else if (name == "/regenerate") {
    regenerate();
  } else if (rest.empty()) {
    say_(name + " needs a file: " + name + " FILE.");
  } else if (name == "/save") {
    save(rest);
  } else if (name == "/image") {
    show_picture(rest);
  } else {
    load(rest);
  }
}

void ChatSession::system(const std::string& rest) {
  if (rest == "none") {
    conversation_.system.clear();
    say_("There is no system message now.");
  } else if (!rest.empty()) {
    conversation_.system = rest;
    say_("The system message is set.");
  } else if (conversation_.system.empty()) {
    say_("There is no system message: /system TEXT sets one.");
  } else {
    print_(printable(conversation_.system) + "\n");
    say_("That is the system message: /system TEXT sets another one, /system none takes it away.");
  }
}

void ChatSession::set(const std::string& rest) {
  const size_t end = std::min(rest.find_first_of(" \t"), rest.size());
  const std::string value(trim(std::string_view(rest).substr(end)));
  if (rest.empty()) {
    print_(settings_.describe(backend_.defaults()));
  } else if (value.empty()) {
    say_("/set needs a name and a value, such as /set temperature 0.7.");
  } else if (const Status status = settings_.set(rest.substr(0, end), value); !status.ok()) {
    say_(status.error().message);
  }
}

// What the file held stays until all is written.
void ChatSession::save(const std::string& path) {
  const std::string made = path + ".being-saved";
  errno = 0;
  std::ofstream file(made, std::ios::binary | std::ios::trunc);
  file << conversation_file(conversation_, settings_);
  file.close();
  if (file && std::rename(made.c_str(), path.c_str()) == 0) return say_("Saved to " + path + ".");
  const Error failed = write_error(path);
  std::remove(made.c_str());
  say_(failed.message);
}

void ChatSession::load(const std::string& path) {
  const Result<std::string> text = read_file(path, kMaxFileBytes);
  if (!text.ok()) {
    say_(text.error().message);
    return;
  }
  auto read = read_conversation(*text, &settings_);
  if (!read.ok()) {
    say_(path + " is no kept conversation: " + read.error().message + ".");
    return;
  }
  conversation_ = std::move(*read);
  say_("Loaded " + std::to_string(conversation_.messages.size()) + " messages.");
}

void ChatSession::show_picture(const std::string& path) {
  auto url = picture_url(path);
  if (!url.ok()) {
    say_(url.error().message);
    return;
  }
  pictures_.push_back(std::move(*url));
  say_("The next message shows " + path + ".");
}

void ChatSession::regenerate() {
  const Conversation before = conversation_;
  std::string text;
  if (!conversation_.take_back_answer(&text)) {
    say_("There is no message to answer.");
    return;
  }
  // A missing answer must not cost the old one.
  const std::vector<std::string> next = std::exchange(pictures_, {});
  for (const ChatMessage& message : before.messages) {
    if (message.role == "user") pictures_ = message.pictures;  // the last one's stay
  }
  if (!ask(text) && conversation_.messages.size() < before.messages.size()) conversation_ = before;
  pictures_ = next;
}

bool ChatSession::ask(const std::string& text) {
  conversation_.messages.push_back({"user", text, "", std::exchange(pictures_, {})});
  in_reasoning_ = line_open_ = shown_ = false;
  hidden_spans_ = 0;
  auto answer = backend_.answer(
      conversation_, settings_, [this](const ChatSpan& span) { show(span); },
      [this](const ChatWait& waited) { wait(waited); });
  waiting_("");
  if (!answer.ok()) {
    pictures_ = std::move(conversation_.messages.back().pictures);
    conversation_.messages.pop_back();
    say_(answer.error().message);
    return false;
  }
  finish(*answer);
  if (answer->content.empty() && answer->finish != FinishReason::kStop) {
    pictures_ = std::move(conversation_.messages.back().pictures);
    conversation_.messages.pop_back();  // an empty answer cannot be continued
  } else {
    conversation_.messages.push_back({"assistant", std::move(answer->content), std::move(answer->reasoning)});
  }
  return answer->finish == FinishReason::kStop || answer->finish == FinishReason::kLength;
}

// During a long prompt or hidden thoughts the program must not look hung.
void ChatSession::wait(const ChatWait& wait) {
  if (shown_ || wait.seconds < kPatience_s) return;
  std::string text = "waiting for the answer";
  if (hidden_spans_ > 0) {
    text = "thinking";
  } else if (wait.prompt_tokens) {
    const int64_t computed = wait.computed_tokens.value_or(0);
    text = "reading the prompt: ";
    if (computed > 0) text += std::to_string(computed) + " of ";
    text += std::to_string(*wait.prompt_tokens) + " tokens";
  }
  waiting_(text + ", " + std::to_string(static_cast<int64_t>(wait.seconds)) + " s");
}

void ChatSession::show(const ChatSpan& span) {
  if (span.reasoning && !look_.show_reasoning) {
    ++hidden_spans_;
    return;
  }
  if (!shown_) waiting_("");
  shown_ = true;
  const std::string text = printable(span.text);
  if (in_reasoning_ && !span.reasoning) print_(line_open_ ? "\n\n" : "\n");
  in_reasoning_ = span.reasoning;
  line_open_ = !text.ends_with('\n');
  if (!look_.colours) {
    print_(text);
  } else {
    // Without drafts the whole answer would be bold.
    const auto origin = backend_.knows_origins() ? span.origin : TokenColours::Origin::kUnknown;
    print_((span.reasoning ? std::string(kDim) : std::string()) + TokenColours::coloured(text, origin) +
           (span.reasoning ? std::string(kReset) : std::string()));
  }
}

void ChatSession::finish(const ChatAnswer& answer) {
  if (line_open_ || answer.content.empty()) print_("\n");
  last_ = answer.stats;
  switch (answer.finish) {
    case FinishReason::kCancelled:
      say_("Stopped.");
      break;
    case FinishReason::kLength:
      say_("The answer has reached its length: /set max_tokens, or /clear where the context is full.");
      break;
    case FinishReason::kTimeout:
    case FinishReason::kError:
      say_(answer.error ? answer.error->message : "The answer was not finished.");
      break;
    case FinishReason::kStop:
      break;
  }
  if (stats_after_each_) say_(describe_stats());
  if (look_.spaced) print_("\n");
}

std::string ChatSession::describe_stats() const {
  const ChatStats& s = *last_;
  const double decode_s = s.total_s - s.ttft_s;
  char line[256];
  std::snprintf(line, sizeof line, "%lld prompt tokens (%lld cached), %lld tokens in %.2f s, first after %.0f ms",
                static_cast<long long>(s.prompt_tokens), static_cast<long long>(s.cached_tokens),
                static_cast<long long>(s.completion_tokens), s.total_s, s.ttft_s * 1e3);
  std::string text = line;
  if (s.completion_tokens > 1 && decode_s > 0) {
    std::snprintf(line, sizeof line, ", %.1f tok/s", static_cast<double>(s.completion_tokens - 1) / decode_s);
    text += line;
  }
  if (s.tokens_per_step) {
    std::snprintf(line, sizeof line, ", %.2f tokens a step", *s.tokens_per_step);
    text += line;
  }
  return text + ".";
}

}  // namespace volley::apps
