#include "apps/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/environment.h"
#include "serve/http/log.h"

namespace volley::apps {
namespace {

// A message may quote a name of any length from a file.
constexpr size_t kMaxSentence = 4096;

}  // namespace

Console::Console()
    : stdout_terminal_(isatty(STDOUT_FILENO) == 1),
      stderr_terminal_(isatty(STDERR_FILENO) == 1),
      colours_(stdout_terminal_ && !env_no_color()) {}

void Console::note(const std::string& line) {
  print_line("volley: " + serve::for_log(line, kMaxSentence));
}

void Console::error(const std::string& sentence) {
  print_line("volley: " + serve::for_log(sentence, kMaxSentence));
}

void Console::plain(const std::string& lines) {
  print_line(lines);
}

int Console::stdout_columns() const {
  winsize size{};
  if (!stdout_terminal_ || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

void Console::coloured(const std::string& line) {
  if (colours_ && stderr_terminal_) print_line(line);
}

void Console::print_line(const std::string& line) {
  const std::lock_guard lock(mutex_);
  erase_locked();
  std::fprintf(stderr, "%s\n", line.c_str());
}

void Console::progress(const std::string& what, double fraction) {
  if (!stderr_terminal_) return;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && fraction < 1 && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  std::fputs("\r\x1b[K", stderr);
  if (fraction >= 0) {
    constexpr int kWidth = 30;
    const double done = std::min(fraction, 1.0);
    const int full = static_cast<int>(done * kWidth);
    const std::string bar = std::string(full, '#') + std::string(kWidth - full, '.');
    std::fprintf(stderr, "[%s] %3d%% ", bar.c_str(), static_cast<int>(done * 100));
  }
  std::fputs(escape_controls(what).c_str(), stderr);
  std::fflush(stderr);
}

void Console::clear_progress() {
  const std::lock_guard lock(mutex_);
  erase_locked();
}

void Console::erase_locked() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace volley::apps
