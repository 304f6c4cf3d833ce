// Lines typed at a terminal, with editing and history (libedit). Threads: interrupt() from any; everything else from
// one.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace volley::apps {

// What may stand in a line from `begin` on.
struct LineCompletion {
  size_t begin = 0;
  std::vector<std::string> words;
};

// Characters are read, drawn and measured by the process's locale. Only their encoding is taken from the user's:
// numbers stay as programs write them.
void use_utf8_locale();

// While no line is read, keys are neither shown nor lost: the next line begins with them. The terminal gets its own
// mode back at the end.
class LineEditor {
 public:
  using Complete = std::function<LineCompletion(std::string_view before_cursor)>;

  // Reads stdin, which is a terminal, and draws on `out`. `history`: a file that keeps what was typed, readable by its
  // owner alone; empty: none. A history that cannot be read or written is no error: it is left out. `complete`: for
  // Tab.
  LineEditor(std::FILE* out, std::string history, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class State { kText, kInterrupted, kEnd };
  // One input without its final newline. Newlines inside come from a paste, which is taken as it is, and from
  // Alt-Enter. kInterrupted: interrupt() was called, and what was typed is dropped. kEnd: Ctrl-D, or the terminal is
  // gone.
  State read(const std::string& prompt, std::string* text);
  // Into the history; what equals the entry before it is not kept twice.
  void remember(const std::string& text);
  void interrupt();
  // The terminal's own mode, for a process that may end without this object's destructor. Any thread.
  void restore_terminal() const;

 private:
  struct Terminal;
  std::unique_ptr<Terminal> state_;
};

}  // namespace volley::apps
