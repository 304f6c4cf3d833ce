// Breaks lines between words where a terminal would break them at its edge. Threads: one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace volley::apps {

class WordWrap {
 public:
  using Print = std::function<void(std::string_view text)>;
  // `columns`: the terminal's width now, asked for each word; 0 breaks nothing. The locale must be one of UTF-8 for the
  // widths of characters to be known.
  WordWrap(std::function<int()> columns, Print print) : columns_(std::move(columns)), print_(std::move(print)) {}

  // Colour codes ("\x1b[1m") take no room. A word is held back until its end is known: a line end or flush() prints the
  // last one.
  void add(std::string_view text);
  void flush();

 private:
  void take_character(std::string_view bytes);
  void place_word();
  void end_line();

  const std::function<int()> columns_;
  const Print print_;
  std::string out_;            // what add() prints at its end
  std::string spaces_, word_;  // held back
  int spaces_width_ = 0, word_width_ = 0;
  int column_ = 0;  // of the line that is shown
};

}  // namespace volley::apps
