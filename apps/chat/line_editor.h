// Reads lines at a terminal, with editing and history (libedit). Threads: interrupt() on any; all else on one.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace volley::apps {

// Candidates for the part of a line from `begin` on.
struct LineCompletion {
  size_t begin = 0;
  std::vector<std::string> words;
};

// Sets the process's locale to the user's encoding, to read, draw and measure characters. Numbers keep the C format.
void use_utf8_locale();

// Between two lines, keys are neither shown nor lost: the next line begins with them. The terminal gets its own mode
// back at the end.
class LineEditor {
 public:
  using Complete = std::function<LineCompletion(std::string_view before_cursor)>;

  // Reads from stdin, which is a terminal, and draws on `out`. `history`: a file of earlier lines, readable by its
  // owner alone; may be empty. A history that cannot be read or written is left out, without an error. `complete`: for
  // Tab.
  LineEditor(std::FILE* out, std::string history, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class State { kText, kInterrupted, kEnd };
  // Reads one input, without its final newline. A paste, taken as it is, and Alt-Enter can bring newlines.
  // kInterrupted: interrupt() was called, and the typed text is dropped. kEnd: Ctrl-D, or the terminal is gone.
  State read(const std::string& prompt, std::string* text);
  // Adds to the history, unless it equals the last entry.
  void remember(const std::string& text);
  void interrupt();
  // Restores the terminal's own mode, for a process that may end without this destructor. Any thread.
  void restore_terminal() const;

 private:
  struct Terminal;
  std::unique_ptr<Terminal> state_;
};

}  // namespace volley::apps
