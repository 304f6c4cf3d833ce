#include "apps/commands.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "apps/api_keys.h"
#include "apps/chat/chat_commands.h"
#include "apps/chat/line_editor.h"
#include "apps/chat/session.h"
#include "apps/chat/word_wrap.h"
#include "apps/cli/text_defaults.h"
#include "apps/engine_setup.h"
#include "apps/exit_codes.h"
#include "apps/standard_streams.h"
#include "base/environment.h"
#include "base/text.h"
#include "serve/json/json_text.h"

namespace volley::apps {
namespace {

constexpr std::string_view kFence = "\"\"\"";
constexpr std::string_view kPocket = "pocket";  // the model that comes with volley
constexpr const char* kPocketTasks =
    "  The pocket model is a toy of 7 million parameters, trained for four tasks:\n"
    "    sums       What is ((17 * 6) - 74) * 8?\n"
    "    lists      Sort these numbers: 50, 49, 35, 79.\n"
    "    JSON       Turn the facts into JSON: Mia is 59 years old and lives in Boston.\n"
    "    stories    Tell me a story about a fox and a lantern.\n"
    "  volley run ORG/NAME fetches a model from the Hugging Face hub.";

std::string history_file(const ChatCommand& command) {
  if (command.history) return *command.history == "none" ? "" : *command.history;
  const std::string home = env_state_home();
  return home.empty() ? "" : home + "/volley/chat_history";
}

class Chat {
 public:
  Chat(const ChatCommand& command, ChatBackend* backend, InterruptWatch* interrupt, Console* console)
      : typed_(isatty(STDIN_FILENO) == 1),
        sampling_given_(command.settings.temperature.has_value()),
        interrupt_(interrupt),
        console_(*console),
        wrap_([this] { return console_.stdout_columns(); }, [this](std::string_view text) { write(text); }),
        session_(
            backend, look_of(command), [this](std::string_view text) { wrap_.add(text); },
            [this](std::string_view sentence) { console_.note(std::string(sentence)); },
            [this](std::string_view text) { show_waiting(text); }),
        backend_(*backend) {
    session_.settings().sampling = command.settings;
    session_.settings().thinking = command.thinking;
    session_.conversation().system = command.system.value_or("");
    if (console_.stdout_terminal()) use_utf8_locale();
    if (typed_) {
      editor_.emplace(console_.stdout_terminal() ? stdout : stderr, history_file(command), complete_chat_line);
    }
  }

  int run() {
    const InterruptScope scope(interrupt_, [this] {
      ended_ = true;
      session_.stop();
      if (!editor_) return;
      editor_->restore_terminal();  // a second signal ends the process at once
      editor_->interrupt();
    });
    if (typed_) {
      interrupt_->set_ctrl_c_handler([this] { answering_ ? session_.stop() : editor_->interrupt(); });
    }
    say_defaults();
    const int status = typed_ ? converse() : answer_once();
    interrupt_->set_ctrl_c_handler({});
    if (ended_) return interrupt_->exit_status();
    if (!written_.ok()) return console_.fail(written_.error().message, kExitUsage);
    return status;
  }

 private:
  ChatLook look_of(const ChatCommand& command) const {
    return {console_.colours(), command.show_reasoning.value_or(console_.stdout_terminal()),
            typed_ && console_.stdout_terminal()};
  }

  void show_waiting(std::string_view text) {
    if (text.empty()) {
      console_.clear_progress();
    } else {
      console_.progress(std::string(text), -1);
    }
  }

  void say_defaults() const {
    const AnswerDefaults& defaults = backend_.defaults();
    if (!defaults.milder || sampling_given_) return;
    char line[160];
    std::snprintf(line, sizeof line, "The model's makers name no sampling, so chats have temperature %g and top_p %g",
                  defaults.sampling->temperature, defaults.sampling->top_p);
    console_.note(std::string(line) + (typed_ ? ": /set shows and changes them." : "."));
  }

  void write(std::string_view text) {
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
    if (problem != nullptr) return console_.fail(problem, kExitUsage);
    return session_.ask(text) ? kExitOk : kExitRequestsFailed;
  }

  int converse() {
    console_.note("Chat with " + backend_.name() + ". /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.");
    if (backend_.name() == kPocket) console_.plain(kPocketTasks);
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
      } else {
        answering_ = true;
        const bool goes_on = session_.take(text);
        answering_ = false;
        if (!goes_on) return kExitOk;
      }
    }
    if (!ended_) std::fputs("\n", stderr);  // after the prompt
    return kExitOk;
  }

  // Reads one input: a line, or all lines between two fences.
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
    *text = " " + all;  // the space keeps it from being a command
    return state;
  }

  const bool typed_;           // stdin is a terminal
  const bool sampling_given_;  // on the command line
  InterruptWatch* interrupt_;
  Console& console_;
  WordWrap wrap_;
  ChatSession session_;
  ChatBackend& backend_;
  std::optional<LineEditor> editor_;
  std::atomic<bool> ended_{false};      // a signal ended the chat
  std::atomic<bool> answering_{false};  // false: a line is read
  Status written_;
};

int chat_with_endpoint(const ChatCommand& command, InterruptWatch* interrupt, Console* console) {
  std::vector<std::string> headers;
  if (command.api_key) {
    auto keys = read_api_keys({}, command.api_key);
    if (!keys.ok()) return console->fail("--api-key is no key that a request could send.", kExitUsage);
    headers = {"Authorization: Bearer " + keys->front()};
  }
  auto backend = make_endpoint_backend(*command.url, command.engine.model, std::move(headers), [] { return false; });
  if (!backend.ok()) return console->fail(backend.error().message, kExitUsage);
  return Chat(command, backend->get(), interrupt, console).run();
}

}  // namespace

int run_chat(const ChatCommand& command, InterruptWatch* interrupt, Console* console) {
  if (command.url) return chat_with_endpoint(command, interrupt, console);
  auto setup = resolve_engine(command.engine, 1);
  if (!setup.ok()) return console->fail(setup.error().message, setup_exit_code(setup.error()));
  DeviceFailure device(console);
  auto engine = create_engine(*setup, console, &device);
  if (!engine.ok()) return console->fail(engine.error().message, creation_exit_status(*setup, engine.error()));
  auto backend = make_engine_backend(**engine, setup->model_name, chat_defaults(setup->text, setup->options.model_dir));
  if (!backend.ok()) return console->fail(backend.error().message, kExitModel);
  const int status = Chat(command, backend->get(), interrupt, console).run();
  device.leave();
  return status;
}

}  // namespace volley::apps
