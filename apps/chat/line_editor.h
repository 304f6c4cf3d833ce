// Lines typed at a terminal, with editing and history (libedit). Threads: interrupt() from any; everything else from
// one.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace volley::apps {

class LineEditor {
 public:
  // Reads stdin, which is a terminal, and draws on `out`. `history`: a file that keeps what was typed, readable by its
  // owner alone; empty: none. A history that cannot be read or written is no error: it is left out.
  LineEditor(std::FILE* out, std::string history);
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

 private:
  struct Terminal;
  std::unique_ptr<Terminal> state_;
};

}  // namespace volley::apps
