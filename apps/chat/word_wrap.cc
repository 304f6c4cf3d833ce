#include "apps/chat/word_wrap.h"

#include <wchar.h>

#include <algorithm>
#include <cstdint>

namespace volley::apps {
namespace {

constexpr int kTab = 8;

// Bytes of the UTF-8 character at the start of `text`; 1 if it is invalid.
size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t bytes = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  return std::min(bytes, text.size());
}

int width_of(std::string_view bytes) {
  if (bytes.size() == 1) return 1;
  const auto first = static_cast<unsigned char>(bytes.front());
  uint32_t code = first & (0xFFu >> (bytes.size() + 1));
  for (const char byte : bytes.substr(1)) code = code << 6 | (static_cast<unsigned char>(byte) & 0x3Fu);
  const int width = wcwidth(static_cast<wchar_t>(code));
  return width < 0 ? 1 : width;
}

// Bytes of the colour code at the start of `text`; 0: none.
size_t code_bytes(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const size_t end = text.find('m');
  return end == std::string_view::npos ? 0 : end + 1;
}

}  // namespace

void WordWrap::add(std::string_view text) {
  while (!text.empty()) {
    size_t bytes = code_bytes(text);
    if (bytes > 0) {
      word_ += text.substr(0, bytes);
    } else {
      bytes = character_bytes(text);
      take_character(text.substr(0, bytes));
    }
    text.remove_prefix(bytes);
  }
  if (!out_.empty()) print_(out_);
  out_.clear();
}

void WordWrap::flush() {
  place_word();
  if (!out_.empty()) print_(out_);
  out_.clear();
}

void WordWrap::take_character(std::string_view bytes) {
  const char first = bytes.front();
  if (first == '\n') {
    end_line();
  } else if (first == ' ' || first == '\t') {
    place_word();
    spaces_ += first;
    spaces_width_ += first == ' ' ? 1 : kTab - (column_ + spaces_width_) % kTab;
  } else {
    const int width = width_of(bytes);
    // Scripts of wide characters have no spaces. A word as wide as the terminal cannot be held back.
    if (width > 1 || word_width_ + width > std::max(1, columns_())) place_word();
    word_ += bytes;
    word_width_ += width;
    if (width > 1) place_word();
  }
}

void WordWrap::place_word() {
  if (word_.empty()) return;
  const int columns = columns_();
  if (columns > 0 && column_ > 0 && column_ + spaces_width_ + word_width_ > columns) {
    out_ += '\n';
    column_ = 0;
  } else {
    out_ += spaces_;
    column_ += spaces_width_;
  }
  out_ += word_;
  column_ += word_width_;
  spaces_.clear();
  word_.clear();
  spaces_width_ = word_width_ = 0;
}

// Spaces that reach the edge would begin a line of their own.
void WordWrap::end_line() {
  place_word();
  spaces_.clear();
  spaces_width_ = 0;
  out_ += '\n';
  column_ = 0;
}

}  // namespace volley::apps
