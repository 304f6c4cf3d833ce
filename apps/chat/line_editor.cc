#include "apps/chat/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstring>
#include <cwchar>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "serve/json/json_text.h"

namespace volley::apps {

void use_utf8_locale() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

namespace {

constexpr int kHistoryEntries = 1000;
constexpr wchar_t kQuoteNext = L'\x16';  // Ctrl-V: libedit takes the next key as text
constexpr std::string_view kPasteBegin = "\x1b[200~", kPasteEnd = "\x1b[201~";

constexpr std::string_view kMarkPastes = "\x1b[?2004h", kMarkNoPastes = "\x1b[?2004l";

std::string common_beginning(const std::vector<std::string>& words) {
  std::string common = words.front();
  for (const std::string& word : words) {
    const auto end = std::ranges::mismatch(common, word).in1;
    common.erase(end, common.end());
  }
  // Removes half a character.
  while (!common.empty() && common.size() < words.front().size() && (words.front()[common.size()] & 0xC0) == 0x80) {
    common.pop_back();
  }
  return common;
}

}  // namespace

struct LineEditor::Terminal {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::FILE* out = nullptr;
  std::string history_file, prompt, last;
  Complete complete;
  termios own{};  // the terminal's former mode
  int wake = -1;  // eventfd
  bool interrupted = false;
  std::string bytes;  // read and not yet returned
  bool pasting = false, quoted = false;
  winsize size{};

  static Terminal* of(EditLine* editor) {
    Terminal* state = nullptr;
    el_get(editor, EL_CLIENTDATA, &state);
    return state;
  }
  static int next_character(EditLine* editor, wchar_t* into) { return of(editor)->next(into); }
  static char* prompt_of(EditLine* editor) { return of(editor)->prompt.data(); }
  static unsigned char tab(EditLine* editor, int) { return of(editor)->complete_line(); }

  int next(wchar_t* into);
  bool fill(int wait_ms);
  int take_character(wchar_t* into);
  bool at_marker(std::string_view marker);
  void follow_size();
  unsigned char complete_line();
  void list(const std::vector<std::string>& words) const;
};

// Like shells, inserts the candidates' common beginning, or lists them if there is none.
unsigned char LineEditor::Terminal::complete_line() {
  const LineInfo* line = el_line(editor);
  const std::string_view before(line->buffer, static_cast<size_t>(line->cursor - line->buffer));
  const LineCompletion found = complete(before);
  if (found.words.empty()) return CC_ERROR;
  const size_t typed = before.size() - found.begin;
  std::string common = common_beginning(found.words);
  const bool whole = found.words.size() == 1;
  if (whole && !common.ends_with('/')) common += ' ';
  if (common.size() > typed) {
    return el_insertstr(editor, common.c_str() + typed) == 0 ? CC_REFRESH : CC_ERROR;
  }
  if (whole) return CC_ERROR;
  list(found.words);
  return CC_REDISPLAY;
}

void LineEditor::Terminal::list(const std::vector<std::string>& words) const {
  constexpr size_t kColumns = 80, kGap = 2;
  size_t column = 0;
  std::fputs("\n", out);
  for (const std::string& name : words) {
    const std::string word = serve::escape_controls(name);  // a file's name may hold anything
    if (column > 0 && column + word.size() + kGap > kColumns) {
      std::fputs("\n", out);
      column = 0;
    }
    std::fprintf(out, "%s  ", word.c_str());
    column += word.size() + kGap;
  }
  std::fputs("\n", out);
  std::fflush(out);
}

// Notices at the next key that the window was resized.
void LineEditor::Terminal::follow_size() {
  winsize now{};
  if (ioctl(STDIN_FILENO, TIOCGWINSZ, &now) != 0) return;
  const bool same = now.ws_col == size.ws_col && now.ws_row == size.ws_row;
  size = now;
  if (!same) el_resize(editor);
}

// Whether more bytes came.
bool LineEditor::Terminal::fill(int wait_ms) {
  for (;;) {
    pollfd ready[2] = {{wake, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const int count = poll(ready, 2, wait_ms);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    if (ready[0].revents != 0) {
      uint64_t calls = 0;
      interrupted = ::read(wake, &calls, sizeof calls) > 0;
      return false;
    }
    char piece[4096];
    const ssize_t got = ::read(STDIN_FILENO, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes.append(piece, static_cast<size_t>(got));
    return true;
  }
}

// Removes the marker if it comes next. A marker's bytes are sent together, so this hardly ever waits for the rest.
bool LineEditor::Terminal::at_marker(std::string_view marker) {
  constexpr int kRestMs = 20;
  while (bytes.size() > 1 && bytes.size() < marker.size() && marker.starts_with(bytes)) {
    if (!fill(kRestMs)) return false;
  }
  if (!bytes.starts_with(marker)) return false;
  bytes.erase(0, marker.size());
  return true;
}

int LineEditor::Terminal::take_character(wchar_t* into) {
  for (;;) {
    std::mbstate_t conversion{};
    const size_t used = std::mbrtowc(into, bytes.data(), bytes.size(), &conversion);
    if (used == static_cast<size_t>(-2)) {  // half a character
      if (!fill(-1)) return 0;
      continue;
    }
    const bool wrong = used == static_cast<size_t>(-1);
    if (wrong) *into = L'\xFFFD';
    bytes.erase(0, wrong || used == 0 ? 1 : used);
    return 1;
  }
}

// libedit's reader: returns 1 and a character, or 0 at the end.
int LineEditor::Terminal::next(wchar_t* into) {
  for (;;) {
    if (bytes.empty() && !fill(-1)) return 0;
    follow_size();
    if (!pasting && at_marker(kPasteBegin)) {
      pasting = true;
      continue;
    }
    if (pasting && at_marker(kPasteEnd)) {
      pasting = false;
      continue;
    }
    // Alt-Enter becomes a quoted newline. (A binding would do, but libedit never frees it.)
    if (!pasting && (at_marker("\x1b\r") || at_marker("\x1b\n"))) bytes.insert(0, "\x16\n");
    if (interrupted) return 0;
    if (bytes.empty()) continue;
    const unsigned char first = static_cast<unsigned char>(bytes.front());
    if (!pasting || (first >= ' ' && first != 0x7F)) return take_character(into);
    if (first != '\n' && first != '\r' && first != '\t') {
      bytes.erase(0, 1);  // a paste must not press keys
    } else if (!quoted) {
      quoted = true;
      *into = kQuoteNext;
      return 1;
    } else {
      quoted = false;
      *into = first == '\t' ? L'\t' : L'\n';
      bytes.erase(0, 1);
      return 1;
    }
  }
}

LineEditor::LineEditor(std::FILE* out, std::string history_file, Complete complete)
    : state_(std::make_unique<Terminal>()) {
  use_utf8_locale();
  Terminal& state = *state_;
  tcgetattr(STDIN_FILENO, &state.own);
  state.complete = std::move(complete);
  state.out = out;
  state.history_file = std::move(history_file);
  state.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  state.editor = el_init("volley", stdin, out, stderr);
  state.history = history_init();
  VOLLEY_CHECK(state.wake >= 0 && state.editor != nullptr && state.history != nullptr);
  HistEvent event;
  history(state.history, &event, H_SETSIZE, kHistoryEntries);
  history(state.history, &event, H_SETUNIQUE, 1);
  if (!state.history_file.empty()) history(state.history, &event, H_LOAD, state.history_file.c_str());
  EditLine* editor = state.editor;
  el_set(editor, EL_CLIENTDATA, &state);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_PROMPT, &Terminal::prompt_of);
  el_set(editor, EL_HIST, history, state.history);
  el_set(editor, EL_GETCFN, &Terminal::next_character);
  // The mode between lines: Ctrl-C is a signal, and keeps typed text.
  el_set(editor, EL_SETTY, "-x", "-echo", "-icanon", "+noflsh", nullptr);
  el_set(editor, EL_ADDFN, "volley-complete", "Completes a command", &Terminal::tab);
  const char* const keys[][2] = {{"^R", "em-inc-search-prev"},
                                 {"\x1b[3~", "ed-delete-next-char"},
                                 {"\x1b[H", "ed-move-to-beg"},
                                 {"\x1b[F", "ed-move-to-end"},
                                 {"^I", "volley-complete"}};
  for (const auto& [key, function] : keys) el_set(editor, EL_BIND, key, function, nullptr);
  el_source(editor, nullptr);  // the user's ~/.editrc
  std::fputs(kMarkPastes.data(), out);
  std::fflush(out);
}

LineEditor::~LineEditor() {
  el_end(state_->editor);
  restore_terminal();
  history_end(state_->history);
  close(state_->wake);
}

LineEditor::State LineEditor::read(const std::string& prompt, std::string* text) {
  Terminal& state = *state_;
  state.prompt = prompt;
  state.interrupted = false;
  uint64_t calls = 0;
  (void)!::read(state.wake, &calls, sizeof calls);  // an interrupt from before this line
  std::fputs(kMarkPastes.data(), state.out);        // other programs may have turned the marking of pastes off
  std::fflush(state.out);
  int count = 0;
  const char* line = el_gets(state.editor, &count);
  if (state.interrupted) {
    state.bytes.clear();
    state.pasting = state.quoted = false;
    el_reset(state.editor);
    return State::kInterrupted;
  }
  if (line == nullptr || count <= 0) return State::kEnd;
  text->assign(line, static_cast<size_t>(count));
  if (text->ends_with('\n')) text->pop_back();
  return State::kText;
}

void LineEditor::remember(const std::string& text) {
  Terminal& state = *state_;
  if (text.empty() || text == state.last) return;
  state.last = text;
  HistEvent event;
  history(state.history, &event, H_ENTER, text.c_str());
  if (state.history_file.empty()) return;
  // libedit would make the file readable by all.
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(state.history_file).parent_path(), ignored);
  const int fd = open(state.history_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) return;
  close(fd);
  history(state.history, &event, H_SAVE, state.history_file.c_str());
}

void LineEditor::interrupt() {
  const uint64_t one = 1;
  (void)!::write(state_->wake, &one, sizeof one);
}

void LineEditor::restore_terminal() const {
  const int terminal = fileno(state_->out);
  (void)!::write(terminal, kMarkNoPastes.data(), kMarkNoPastes.size());
  tcsetattr(STDIN_FILENO, TCSANOW, &state_->own);
}

}  // namespace volley::apps
