// Runs `volley chat` as its user does: at a pseudo terminal and behind pipes, with its own model and with a server.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "apps/process_for_test.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;

// Created before any fork.
const std::string& state_home() {
  static const std::string path =
      (fs::temp_directory_path() / ("volley_chat_state_" + std::to_string(getpid()))).string();
  return path;
}

[[noreturn]] void execute_chat(const std::vector<std::string>& arguments) {
  setenv("XDG_STATE_HOME", state_home().c_str(), 1);
  setenv("TERM", "xterm", 1);
  setenv("LC_ALL", "C", 1);
  unsetenv("NO_COLOR");
  execute(VOLLEY_PROGRAM, arguments);
}

class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments, unsigned short columns = 100) {
    const winsize size{24, columns, 0, 0};
    pid_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ == 0) execute_chat(arguments);
  }
  ~Terminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }

  void type(const std::string& keys) {
    EXPECT_EQ(write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Returns all output until `text` comes, for at most 60 s.
  std::string until(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (size_t found; (found = seen_.find(text)) == std::string::npos;) {
      pollfd ready{fd_, POLLIN, 0};
      std::array<char, 4096> piece;
      const ssize_t got = poll(&ready, 1, 100) > 0 ? read(fd_, piece.data(), piece.size()) : 0;
      if (got > 0) seen_.append(piece.data(), static_cast<size_t>(got));
      if (got < 0 || std::chrono::steady_clock::now() > end) {
        ADD_FAILURE() << "no \"" << text << "\" in: " << seen_;
        return std::exchange(seen_, "");
      }
    }
    const size_t found = seen_.find(text) + text.size();
    const std::string before = seen_.substr(0, found);
    seen_.erase(0, found);
    return before;
  }
  // Returns the output up to the next prompt, and waits until the terminal is ready: keys in between are lost. The
  // terminal's mode, which its other end can read, shows when.
  std::string prompt(const std::string& text = "\x1b[?2004h> ") {
    const std::string before = until(text);
    termios mode{};
    for (int i = 0; i < 60'000 && tcgetattr(fd_, &mode) == 0 && (mode.c_lflag & ICANON) != 0; ++i) usleep(1000);
    EXPECT_EQ(mode.c_lflag & ICANON, 0u) << "the line is not read";
    return before;
  }
  std::string answer(const std::string& keys) {
    type(keys);
    return prompt();
  }
  int status() { return status_of(pid_); }
  void signal(int number) const { kill(pid_, number); }
  bool echoes() const {
    termios mode{};
    return tcgetattr(fd_, &mode) == 0 && (mode.c_lflag & ECHO) != 0 && (mode.c_lflag & ICANON) != 0;
  }

 private:
  int fd_ = -1;
  pid_t pid_ = -1;
  std::string seen_;
};

std::string without_codes(const std::string& text) {
  return std::regex_replace(text, std::regex("\x1b\\[[0-9?]*[a-zA-Z]"), "");
}

constexpr const char* kSort = "Sort these numbers: 50, 49, 35, 79.";

class Chat : public testing::Test {
 protected:
  Chat() { fs::remove_all(state_home()); }
  ~Chat() override { fs::remove_all(state_home()); }
};

TEST_F(Chat, TurnsAtATerminal) {
  Terminal terminal({"chat", "--verify", "full"});
  EXPECT_NE(terminal.prompt().find("Chat with pocket"), std::string::npos);
  const std::string answer = terminal.answer(std::string(kSort) + "\r");
  EXPECT_NE(without_codes(answer).find("35, 49, 50, 79\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("\x1b[32m"), std::string::npos) << "accepted tokens are green";
  EXPECT_NE(answer.find("\x1b[1m"), std::string::npos) << "the target's own are bold";
  EXPECT_NE(terminal.answer("/stats\r").find(" tokens a step."), std::string::npos);
  EXPECT_NE(without_codes(terminal.answer("/regenerate\r")).find("/regenerate\r\n"), std::string::npos);
  const std::string from_history = terminal.answer("\x1b[A\x1b[A\x1b[A\r");
  EXPECT_NE(from_history.find(kSort), std::string::npos) << from_history;
  terminal.type("/quit\r");
  EXPECT_EQ(terminal.status(), 0);
  const std::string history = state_home() + "/volley/chat_history";
  struct stat entry {};
  ASSERT_EQ(stat(history.c_str(), &entry), 0);
  EXPECT_EQ(entry.st_mode & 0777, 0600u) << "what was typed is its owner's";
}

TEST_F(Chat, InputsOfSeveralLinesAndCharacters) {
  const std::string kept = state_home() + "_kept.json";
  Terminal terminal({"chat", "--max-tokens", "4", "--history", "none"});
  terminal.prompt();
  terminal.answer("\x1b[200~pasted\n\tlines\r\x1b[201~\r");
  terminal.answer("alt\x1b\renter\r");
  terminal.type("\"\"\"/fenced\r");
  terminal.prompt(". ");
  terminal.answer("\xC3\xA4\xF0\x9F\x98\x80\"\"\"\r");
  terminal.answer("/save " + kept + "\r");
  std::ifstream file(kept);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const char* message : {R"("pasted\n\tlines")", R"("alt\nenter")", "\"/fenced\\n\xC3\xA4\xF0\x9F\x98\x80\""}) {
    EXPECT_NE(text.find(message), std::string::npos) << message << " in " << text;
  }
  fs::remove(kept);
  terminal.type("\x04");
  EXPECT_EQ(terminal.status(), 0);
  EXPECT_FALSE(fs::exists(state_home() + "/volley"));
}

TEST_F(Chat, CtrlCStopsAnAnswerAndNotTheProgram) {
  // The answer takes a second or so.
  Terminal terminal({"chat", "--spec", "off", "--ignore-eos", "--max-tokens", "1900"});
  terminal.prompt();
  terminal.type("Tell me a story.\r");
  terminal.until("One");
  EXPECT_NE(terminal.answer("\x03").find("Stopped."), std::string::npos);
  EXPECT_NE(terminal.answer("/stats\r").find("prompt tokens"), std::string::npos);
  terminal.answer("dropped\x03");
  terminal.signal(SIGTERM);
  EXPECT_EQ(terminal.status(), 143);
}

constexpr const char* kLongAnswer[] = {"chat",         "--spec", "off",       "--ignore-eos",
                                       "--max-tokens", "1900",   "--history", "none"};

// Keys pressed during an answer begin the next message.
TEST_F(Chat, WhatIsTypedDuringAnAnswerIsKept) {
  Terminal terminal({std::begin(kLongAnswer), std::end(kLongAnswer)});
  terminal.prompt();
  terminal.type("Tell me a story.\r");
  terminal.until("One");
  terminal.type("/sta \x7fts");
  usleep(100'000);
  terminal.type("\x03");
  const std::string stopped = terminal.until("Stopped.");
  EXPECT_EQ(stopped.find("/sta"), std::string::npos) << "it would stand in the answer: " << stopped;
  EXPECT_EQ(stopped.find("^C"), std::string::npos) << stopped;
  terminal.prompt();
  EXPECT_NE(terminal.answer("\r").find("prompt tokens"), std::string::npos) << "/stats";
  terminal.answer("/clear\r");
  // The user types a line and half of the next; the first is pasted.
  terminal.type("Tell me a story.\r");
  terminal.until("One");
  terminal.type("\x1b[200~/system one\ntwo\x1b[201~\r/sys");
  usleep(100'000);
  terminal.type("\x03");
  terminal.until("The system message is set.");
  terminal.prompt();
  EXPECT_NE(terminal.answer("tem\r").find("one\r\ntwo"), std::string::npos);
  terminal.type("/quit\r");
  EXPECT_EQ(terminal.status(), 0);
}

TEST_F(Chat, TheTerminalGetsItsModeBack) {
  for (const bool answering : {false, true}) {
    Terminal terminal({std::begin(kLongAnswer), std::end(kLongAnswer)});
    terminal.prompt();
    if (answering) {
      terminal.type("Tell me a story.\r");
      terminal.until("One");
      EXPECT_FALSE(terminal.echoes());
    }
    terminal.signal(SIGTERM);
    terminal.until("\x1b[?2004l");
    for (int i = 0; i < 100 && !terminal.echoes(); ++i) usleep(10'000);
    EXPECT_TRUE(terminal.echoes());
    EXPECT_EQ(terminal.status(), 143);
  }
}

TEST_F(Chat, TabCompletesCommandsSettingsAndFiles) {
  const fs::path folder = state_home() + "_files";
  fs::create_directories(folder / "kept folder");
  std::ofstream(folder / "kept.json") << "[]";
  Terminal terminal({"chat", "--history", "none"});
  terminal.prompt();
  EXPECT_NE(terminal.answer("/sy\tBe brief.\r").find("The system message is set."), std::string::npos);
  EXPECT_NE(terminal.answer("/se\ttop_\tk 7\r").find("top_k"), std::string::npos) << "top_p and top_k are listed";
  EXPECT_NE(terminal.answer("/set\r").find("top_k               7\r\n"), std::string::npos);
  EXPECT_NE(terminal.answer("/set thin\to\tn\r").find("off"), std::string::npos);
  EXPECT_NE(terminal.answer("/lo\t" + folder.string() + "/kept.\t\r").find("Loaded 0 messages."), std::string::npos);
  terminal.answer("/save " + folder.string() + "/kept \tone\r");
  EXPECT_TRUE(fs::exists(folder / "kept folder" / "one"));
  terminal.type("\tplain\t");
  terminal.until("plain");  // no command, no words; Ctrl-C drops unread keys
  terminal.answer("\x03");
  terminal.type("\x04");
  EXPECT_EQ(terminal.status(), 0);
  fs::remove_all(folder);
}

TEST_F(Chat, AnswersBreakBetweenWords) {
  constexpr size_t kColumns = 32;
  Terminal terminal({"chat", "--verify", "full", "--history", "none"}, kColumns);
  terminal.prompt();
  std::string story = without_codes(terminal.answer("Tell me a story about a fox and a lantern.\r"));
  story.erase(0, story.find("\n", story.find("lantern.")) + 1);
  size_t lines = 0;
  for (size_t end; (end = story.find("\r\n")) != std::string::npos && end > 0; story.erase(0, end + 2), ++lines) {
    const std::string whole = story.substr(0, end);
    const std::string line = whole.substr(whole.rfind('\r') + 1);  // after the line that said what it waits for
    EXPECT_LE(line.size(), kColumns) << line;
    EXPECT_NE(line.back(), ' ') << line;
  }
  EXPECT_GT(lines, 3u);
}

TEST_F(Chat, TheGreetingSaysWhatThePocketModelCan) {
  Terminal terminal({"chat", "--history", "none"});
  const std::string greeting = terminal.prompt();
  for (const char* word :
       {"toy", "four tasks", "Sort these numbers", "Tell me a story", "facts into JSON", "What is"}) {
    EXPECT_NE(greeting.find(word), std::string::npos) << word;
  }
}

// A process whose standard streams are pipes or files.
class Piped {
 public:
  Piped(const std::vector<std::string>& arguments, const std::string& input) {
    std::array<int, 2> in{}, out{};
    EXPECT_EQ(pipe(in.data()), 0);
    EXPECT_EQ(pipe(out.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      execute_chat(arguments);
    }
    close(in[0]);
    close(out[1]);
    EXPECT_EQ(write(in[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
    close(in[1]);
    out_ = out[0];
  }
  ~Piped() {
    if (pid_ > 0) {
      kill(pid_, SIGTERM);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
  }
  std::string line() const {
    std::string line;
    for (char c = 0; c != '\n' && read(out_, &c, 1) == 1;) line += c;
    return line;
  }
  std::string rest() const {
    std::string text;
    for (std::string next; !(next = line()).empty();) text += next;
    return text;
  }
  int status() { return status_of(pid_); }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

TEST_F(Chat, APipeIsOneMessageAndTheAnswerAlone) {
  Piped chat({"chat"}, std::string(kSort) + "\n");
  EXPECT_EQ(chat.rest(), "35, 49, 50, 79\n");
  EXPECT_EQ(chat.status(), 0);
  Piped empty({"chat"}, "\n");
  EXPECT_EQ(empty.rest(), "");
  EXPECT_EQ(empty.status(), 2);
}

TEST_F(Chat, AServerAnswersAsTheModelDoes) {
  Piped server({"serve", "--port", "0", "--verify", "full"}, "");
  std::smatch url;
  const std::string line = server.line();
  ASSERT_TRUE(std::regex_search(line, url, std::regex("http://[^ ]*:[0-9]+"))) << line;
  const std::string address = url[0];
  Piped chat({"chat", "--url", address + "/v1"}, kSort);
  EXPECT_EQ(chat.rest(), "35, 49, 50, 79\n");
  EXPECT_EQ(chat.status(), 0);
  Piped unknown({"chat", "--url", address, "--model", "other"}, "x");
  EXPECT_EQ(unknown.status(), 2);

  Terminal terminal({"chat", "--url", address, "--max-tokens", "1900", "--ignore-eos", "--history", "none"});
  terminal.prompt();
  terminal.answer("/set max_tokens 14\r");
  const std::string answer = terminal.answer(std::string(kSort) + "\r");
  EXPECT_NE(without_codes(answer).find("35, 49, 50, 79"), std::string::npos) << answer;
  EXPECT_NE(answer.find("\x1b[32m"), std::string::npos) << "the server says what was drafted";
  terminal.answer("/clear\r");
  terminal.answer("/set max_tokens 1900\r");
  terminal.type("Tell me a story.\r");
  terminal.until("One");
  EXPECT_NE(terminal.answer("\x03").find("Stopped."), std::string::npos);
  terminal.type("\x04");
  EXPECT_EQ(terminal.status(), 0);
}

}  // namespace
}  // namespace volley::apps
