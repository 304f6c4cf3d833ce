#include <algorithm>
#include <array>
#include <utility>

#include "text/text.h"

namespace volley::text {
namespace {

// The decoders' output for bytes that are not, or not yet, a character. Three bytes long.
constexpr std::string_view kReplacement = "\uFFFD";
// An unfinished character is at most three bytes, each of which may be a token.
constexpr size_t kUnfinishedIds = 3;
// Ids that end in U+FFFD for longer than this are not an unfinished character but bytes that never become one.
constexpr size_t kMaxHeldIds = 4;
// From so many ids on the window is shortened even in the middle of such bytes.
constexpr size_t kMaxWindow = 16;
// A run of U+FFFD this long holds more bytes than a character can join across a cut: both sides of it decode alike.
constexpr size_t kReplacementContext = 8 * kReplacement.size();

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

std::string_view without_replacements(std::string_view text) {
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  return text;
}

// The longest common suffix that begins at the start of a character.
size_t common_suffix(std::string_view a, std::string_view b) {
  const size_t limit = std::min(a.size(), b.size());
  size_t size = 0;
  while (size < limit && a[a.size() - 1 - size] == b[b.size() - 1 - size]) ++size;
  while (size > 0 && is_continuation(a[a.size() - size])) --size;
  return size;
}

// Whether two decodings that agree on this much text before a point agree on everything after it.
bool is_context(std::string_view text) {
  while (text.starts_with(kReplacement) && text.size() < kReplacementContext) text.remove_prefix(kReplacement.size());
  return !text.empty();
}

}  // namespace

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                         std::span<const TokenId> context)
    : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {
  if (context.empty()) return;
  std::string text = tokenizer_->decode(context, skip_special_tokens_);
  if (text.ends_with(kReplacement) || !is_context(text)) return;
  window_.assign(context.begin(), context.end());
  shown_ = std::move(text);
  shown_ids_ = window_.size();
}

std::string Detokenizer::push(std::span<const TokenId> ids) {
  if (ids.empty()) return {};
  const size_t old_size = window_.size();
  window_.insert(window_.end(), ids.begin(), ids.end());
  const std::string text = decode(0, window_.size());
  std::string out;
  const bool sound = text.starts_with(shown_) && text.find(kReplacement, shown_.size()) == std::string::npos;
  if (ids.size() > 1 && !sound) {  // how long text is held back depends on the ids, not on their number
    window_.resize(old_size);
    for (const TokenId& id : ids) out += push({&id, 1});
    return out;
  }
  out = advance(text);
  if (out.empty()) drop_traceless(old_size);
  return out;
}

std::string Detokenizer::finish() {
  const std::string text = decode(0, window_.size());
  std::string out = text.starts_with(shown_) ? text.substr(shown_.size()) : decode(shown_ids_, window_.size());
  window_.clear();
  shown_.clear();
  shown_ids_ = 0;
  return out;
}

std::string Detokenizer::decode(size_t begin, size_t end) const {
  return tokenizer_->decode(std::span(window_).subspan(begin, end - begin), skip_special_tokens_);
}

// `text`: the decoding of window_.
std::string Detokenizer::advance(const std::string& text) {
  const size_t size = window_.size();
  if (!text.ends_with(kReplacement)) return text.starts_with(shown_) ? show(size, text) : restart();

  // The end may be an unfinished character. Most often it begins with a token of its own, and all before it is certain.
  std::string out;
  for (size_t back = 1; back <= kUnfinishedIds && shown_ids_ + back < size; ++back) {
    const std::string before = decode(0, size - back);
    if (!before.ends_with(kReplacement) && before.starts_with(shown_)) {
      out = show(size - back, before);
      // The remaining text ends in U+FFFD again and has no such token.
      if (!out.empty()) return out + advance(decode(0, window_.size()));
      break;
    }
  }
  // Or it begins inside of a token, whose other characters are certain.
  const bool stuck = size - shown_ids_ > kMaxHeldIds;
  std::string_view certain = without_replacements(text);
  if (stuck) certain = std::string_view(text).substr(0, text.size() - kReplacement.size());
  if (certain.starts_with(shown_)) {
    out = certain.substr(shown_.size());
    shown_ = certain;
    if (!out.empty() && size > kMaxWindow) shrink(size, text);
  } else if (stuck) {
    out = restart();
  }
  return out;
}

// Gives out the new text of `text`, the decoding of window_[0, end).
std::string Detokenizer::show(size_t end, const std::string& text) {
  std::string out = text.substr(shown_.size());
  if (out.empty()) return out;
  shown_ = text;
  shown_ids_ = end;
  shrink(end, text);
  return out;
}

// The decoder changed text that was already given out: that text stays, and the ids after it are decoded alone.
std::string Detokenizer::restart() {
  std::string out = decode(shown_ids_, window_.size());
  window_.erase(window_.begin(), window_.begin() + shown_ids_);
  shown_ = out;
  shown_ids_ = window_.size();
  return out;
}

// Drops ids from the front of the window that later text does not need: the remaining ids must decode to the same end,
// from some text before the part that is not shown yet. `text` is the decoding of window_[0, end) and begins with
// shown_.
void Detokenizer::shrink(size_t end, const std::string& text) {
  const size_t unshown = text.size() - shown_.size();
  for (size_t keep = 1; keep < end; keep = keep < 4 ? keep + 1 : 2 * keep) {
    const std::string rest = decode(end - keep, end);
    const size_t common = common_suffix(text, rest);
    if (common <= unshown || !is_context(std::string_view(text).substr(text.size() - common, common - unshown)))
      continue;
    const size_t dropped = end - keep;
    window_.erase(window_.begin(), window_.begin() + dropped);
    shown_ = rest.substr(0, rest.size() - unshown);
    shown_ids_ -= std::min(shown_ids_, dropped);
    return;
  }
}

// Ids that leave no trace in any decoding (skipped special tokens, ids outside the vocabulary) may come without end and
// must not fill the window. Repeating an id distinguishes it from a space that a decoder strips from the start of a
// text.
void Detokenizer::drop_traceless(size_t begin) {
  const auto is_traceless = [&](TokenId id) {
    const std::array<TokenId, 4> repeated{id, id, id, id};
    return tokenizer_->decode(repeated, skip_special_tokens_).empty();
  };
  const auto first = window_.begin() + std::min(begin, window_.size());
  window_.erase(std::remove_if(first, window_.end(), is_traceless), window_.end());
}

}  // namespace volley::text
