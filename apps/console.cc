#include "apps/console.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "base/environment.h"
#include "serve/json_text.h"

namespace volley::apps {

Console::Console()
    : stdout_terminal_(isatty(STDOUT_FILENO) == 1),
      stderr_terminal_(isatty(STDERR_FILENO) == 1),
      colours_(stdout_terminal_ && !env_no_color()) {}

void Console::note(const std::string& line) {
  print_line("volley: " + escape_controls(line));
}

void Console::error(const std::string& sentence) {
  print_line("volley: " + escape_controls(sentence));
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

std::string escape_controls(const std::string& text) {
  std::string shown;
  std::string_view rest = text;
  const auto escape = [&shown, &rest](size_t bytes) {
    for (; bytes > 0; --bytes, rest.remove_prefix(1)) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02X", static_cast<unsigned char>(rest.front()));
      shown += code;
    }
  };
  size_t valid = serve::find_invalid_utf8(rest).value_or(rest.size());  // bytes of `rest` that are UTF-8
  while (!rest.empty()) {
    const auto byte = static_cast<unsigned char>(rest.front());
    const size_t before = rest.size();
    if (valid == 0) {
      escape(1);
      valid = serve::find_invalid_utf8(rest).value_or(rest.size());
      continue;
    }
    const bool latin1_control = byte == 0xC2 && static_cast<unsigned char>(rest[1]) < 0xA0;
    if (byte < 0x20 || byte == 0x7F || latin1_control) {
      escape(latin1_control ? 2 : 1);
    } else {
      shown += rest.front();
      rest.remove_prefix(1);
    }
    valid -= before - rest.size();
  }
  return shown;
}

}  // namespace volley::apps
