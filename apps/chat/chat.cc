#include "apps/chat/chat.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/api_keys.h"
#include "apps/chat/line_editor.h"
#include "apps/chat/session.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/standard_streams.h"
#include "base/environment.h"
#include "base/text.h"
#include "serve/json_text.h"

namespace volley::apps {
namespace {

constexpr std::string_view kFence = "\"\"\"";

std::string history_file(const ChatCommand& command) {
  if (command.history) return *command.history == "none" ? "" : *command.history;
  const std::string home = env_state_home();
  return home.empty() ? "" : home + "/volley/chat_history";
}

class Chat {
 public:
  Chat(const ChatCommand& command, ChatBackend* backend, InterruptWatch* interrupt, Console* console)
      : typed_(isatty(STDIN_FILENO) == 1),
        interrupt_(interrupt),
        console_(*console),
        session_(
            backend, look_of(command), [this](std::string_view text) { print(text); },
            [this](std::string_view sentence) { console_.note(std::string(sentence)); }),
        backend_(*backend) {
    session_.settings().sampling = command.settings;
    session_.settings().thinking = command.thinking;
    session_.conversation().system = command.system.value_or("");
    if (typed_) editor_.emplace(console_.stdout_terminal() ? stdout : stderr, history_file(command));
  }

  int run() {
    const auto stop = [this] {
      session_.stop();
      if (editor_) editor_->interrupt();
    };
    const InterruptScope scope(interrupt_, [this, stop] {
      ended_ = true;
      stop();
    });
    if (typed_) interrupt_->set_ctrl_c_handler(stop);
    const int status = typed_ ? converse() : answer_once();
    interrupt_->set_ctrl_c_handler({});
    if (ended_) return interrupt_->exit_status();
    if (!written_.ok()) {
      console_.error(written_.error().message);
      return kExitUsage;
    }
    return status;
  }

 private:
  ChatLook look_of(const ChatCommand& command) const {
    return {console_.colours(), command.show_reasoning.value_or(console_.stdout_terminal()),
            typed_ && console_.stdout_terminal()};
  }

  void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    const Status flushed = flush_standard_output();
    if (flushed.ok() || !written_.ok()) return;
    written_ = flushed;
    session_.stop();
  }

  int answer_once() {
    std::string text(std::istreambuf_iterator<char>(std::cin), {});
    text = std::string(trim(text));
    const char* problem = text.empty()
                              ? "Standard input is empty: write a message to it, or start volley chat at a terminal."
                          : serve::find_invalid_utf8(text) ? "Standard input is not valid UTF-8."
                                                           : nullptr;
    if (problem != nullptr) {
      console_.error(problem);
      return kExitUsage;
    }
    return session_.ask(text) ? kExitOk : kExitRequestsFailed;
  }

  int converse() {
    console_.note("Chat with " + backend_.name() + ". /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.");
    if (backend_.knows_origins()) console_.coloured(TokenColours::legend());
    std::string text;
    while (!ended_ && written_.ok()) {
      const LineEditor::State state = read_input(&text);
      if (state == LineEditor::State::kEnd || ended_) break;
      if (state == LineEditor::State::kInterrupted) {
        std::fputs("\n", stderr);
        continue;
      }
      editor_->remember(text);
      if (serve::find_invalid_utf8(text)) {
        console_.note("The text is not valid UTF-8.");
      } else if (!session_.take(text)) {
        return kExitOk;
      }
    }
    if (!ended_) std::fputs("\n", stderr);  // behind the prompt
    return kExitOk;
  }

  // One input: a line, or all lines between two fences.
  LineEditor::State read_input(std::string* text) {
    LineEditor::State state = editor_->read("> ", text);
    if (state != LineEditor::State::kText || !text->starts_with(kFence)) return state;
    std::string all = text->substr(kFence.size());
    while (!all.ends_with(kFence)) {
      state = editor_->read(". ", text);
      if (state != LineEditor::State::kText) return state;
      all += "\n" + *text;
    }
    all.resize(all.size() - kFence.size());
    *text = " " + all;  // never a command
    return state;
  }

  const bool typed_;  // at a terminal
  InterruptWatch* interrupt_;
  Console& console_;
  ChatSession session_;
  ChatBackend& backend_;
  std::optional<LineEditor> editor_;
  std::atomic<bool> ended_{false};  // by a signal
  Status written_;
};

int chat_with_endpoint(const ChatCommand& command, InterruptWatch* interrupt, Console* console) {
  std::vector<std::string> headers;
  if (command.api_key) {
    auto keys = read_api_keys({}, command.api_key);
    if (!keys.ok()) {
      console->error("--api-key is no key that a request could send.");
      return kExitUsage;
    }
    headers = {"Authorization: Bearer " + keys->front()};
  }
  auto backend = make_endpoint_backend(*command.url, command.engine.model, std::move(headers), [] { return false; });
  if (!backend.ok()) {
    console->error(backend.error().message);
    return kExitUsage;
  }
  return Chat(command, backend->get(), interrupt, console).run();
}

}  // namespace

int run_chat(const ChatCommand& command, InterruptWatch* interrupt, Console* console) {
  if (command.url) return chat_with_endpoint(command, interrupt, console);
  auto setup = resolve_engine(command.engine, 1);
  if (!setup.ok()) {
    console->error(setup.error().message);
    return setup.error().code == ErrorCode::kNotFound ? kExitModel : kExitUsage;
  }
  DeviceFailure device(console);
  auto engine = create_engine(*setup, console, &device);
  if (!engine.ok()) {
    console->error(engine.error().message);
    return creation_exit_status(*setup, engine.error());
  }
  auto backend = make_engine_backend(**engine, setup->model_name);
  if (!backend.ok()) {
    console->error(backend.error().message);
    return kExitModel;
  }
  const int status = Chat(command, backend->get(), interrupt, console).run();
  device.leave();
  return status;
}

}  // namespace volley::apps
