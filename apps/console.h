// Messages beside the program's output: notes, errors and a progress line on stderr. Control characters in users' names
// and texts are shown as escapes. Threads: any.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "serve/json/json_text.h"

namespace volley::apps {

class Console {
 public:
  Console();  // looks at stdout, stderr and NO_COLOR once

  bool stdout_terminal() const { return stdout_terminal_; }
  bool stderr_terminal() const { return stderr_terminal_; }
  bool colours() const { return colours_; }  // stdout is a terminal and NO_COLOR is not set

  int stdout_columns() const;  // the terminal's current width; 0: stdout is no terminal, or the width is unknown

  void note(const std::string& line);       // "volley: …"
  void plain(const std::string& lines);     // the program's own lines, unchanged
  void error(const std::string& sentence);  // "volley: …"
  // Prints an error at the end of a command, and returns its exit status.
  int fail(const std::string& sentence, int status) {
    error(sentence);
    return status;
  }
  // Prints a line of the program's own, with colour codes, only if stderr is a terminal and colours() holds.
  void coloured(const std::string& line);
  // Redraws the progress line, at most ten times a second (and at 1), only if stderr is a terminal. A negative
  // `fraction` means unknown: no bar.
  void progress(const std::string& what, double fraction);
  void clear_progress();

 private:
  void print_line(const std::string& line);
  void erase_locked();

  const bool stdout_terminal_, stderr_terminal_, colours_;
  std::mutex mutex_;
  bool drawn_ = false;                            // guarded by mutex_
  std::chrono::steady_clock::time_point last_{};  // guarded by mutex_
};

using serve::escape_controls;

}  // namespace volley::apps
