// Breaks lines between words instead of at the terminal's edge. Threads: one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace volley::apps {

class WordWrap {
 public:
  using Print = std::function<void(std::string_view text)>;
  // `columns`: the terminal's current width, called for each word; 0: no breaks. Needs a UTF-8 locale to measure
  // characters.
  WordWrap(std::function<int()> columns, Print print) : columns_(std::move(columns)), print_(std::move(print)) {}

  // Colour codes ("\x1b[1m") have no width. A word is held back until it ends; a line end or flush() prints the rest.
  void add(std::string_view text);
  void flush();

 private:
  void take_character(std::string_view bytes);
  void place_word();
  void end_line();

  const std::function<int()> columns_;
  const Print print_;
  std::string out_;            // printed at the end of add()
  std::string spaces_, word_;  // held back
  int spaces_width_ = 0, word_width_ = 0;
  int column_ = 0;  // in the current line
};

}  // namespace volley::apps
