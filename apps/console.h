// What the program says beside its output: notes, errors and a progress line on stderr. Control characters, which
// names and texts of users may hold, are shown as escapes. Threads: any.
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

  int stdout_columns() const;  // of the terminal now; 0: stdout is none, or it does not say

  void note(const std::string& line);       // "volley: …"
  void plain(const std::string& lines);     // the program's own, as they are
  void error(const std::string& sentence);  // "volley: …"
  // The same at the end of a command, which returns its exit status.
  int fail(const std::string& sentence, int status) {
    error(sentence);
    return status;
  }
  // A line of the program's own, colour codes included. Nothing unless stderr is a terminal and colours() holds.
  void coloured(const std::string& line);
  // Redraws the progress line, at most ten times a second (and at 1). Without a bar if `fraction` is negative: not
  // known. Nothing where stderr is not a terminal.
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
