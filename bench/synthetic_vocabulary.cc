#include "synthetic_vocabulary.h"

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <unordered_map>
#include <vector>

namespace volley::bench {
namespace {

using nlohmann::json;

// How a byte-level vocabulary spells each byte: printable ones as themselves, the others from U+0100 on.
std::array<std::string, 256> spellings() {
  std::array<std::string, 256> spelled;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = printable ? byte : next++;
    if (code < 0x80) {
      spelled[byte] = std::string(1, static_cast<char>(code));
    } else {
      spelled[byte] = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
    }
  }
  return spelled;
}

// Tokens grow by merging two known ones, so that the file's merges can reach each of them.
class Builder {
 public:
  explicit Builder(int32_t tokens) : wanted_(static_cast<size_t>(tokens)) {
    for (const std::string& byte : spelled_) add(byte);
  }

  std::string file() {
    for (const char c : std::string("abcdefghijklmnopqrstuvwxyz")) {
      letters_.push_back(spelled_[static_cast<unsigned char>(c)]);
      heads_.push_back(spelled_[static_cast<unsigned char>(c)]);
      heads_.push_back(spelled_[static_cast<unsigned char>(c - 32)]);
      if (merge(spelled_[' '], heads_[heads_.size() - 2])) heads_.push_back(last_);
    }
    while (ids_.size() < wanted_) {
      switch (random_() % 20) {
        case 0:
          grow("0123456789", 3);
          break;
        case 1:
          grow("{}[]()\":,.;=<>/\\'-_+*!?# \n\t", 4);
          break;
        case 2:
          character();
          break;
        default:
          word();
      }
    }
    return json{
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", json::array()},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
        {"post_processor", nullptr},
        {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model", {{"type", "BPE"}, {"vocab", ids_}, {"merges", merges_}}}}
        .dump();
  }

 private:
  void add(const std::string& token) { ids_.emplace(token, ids_.size()); }

  bool merge(const std::string& left, const std::string& right) {
    if (ids_.size() >= wanted_ || ids_.contains(left + right)) return false;
    merges_.push_back({left, right});
    add(left + right);
    last_ = left + right;
    return true;
  }

  // A beginning of a word and a piece of up to three letters.
  void word() {
    const std::string& head = heads_[random_() % heads_.size()];
    if (head.size() > 12) return;
    const std::string& tail = letters_[random_() % letters_.size()];
    if (!merge(head, tail)) return;
    heads_.push_back(last_);
    if (tail.size() <= 2 && merge(letters_[random_() % 26], tail)) letters_.push_back(last_);
  }

  void grow(const std::string& alphabet, size_t most) {
    std::string token = spelled_[static_cast<unsigned char>(alphabet[random_() % alphabet.size()])];
    for (size_t i = 1; i < most; ++i) {
      const std::string& next = spelled_[static_cast<unsigned char>(alphabet[random_() % alphabet.size()])];
      if (!ids_.contains(token + next)) {
        merge(token, next);
        return;
      }
      token += next;
    }
  }

  // Three bytes of a character from U+4E00 on, or its first two.
  void character() {
    const uint32_t code = 0x4E00 + random_() % 0x4000;
    const std::string two = spelled_[0xE0 | (code >> 12)] + spelled_[0x80 | ((code >> 6) & 0x3F)];
    if (!ids_.contains(two)) merge(spelled_[0xE0 | (code >> 12)], spelled_[0x80 | ((code >> 6) & 0x3F)]);
    if (ids_.contains(two)) merge(two, spelled_[0x80 | (code & 0x3F)]);
  }

  const std::array<std::string, 256> spelled_ = spellings();
  const size_t wanted_;
  std::mt19937 random_{42};
  std::unordered_map<std::string, size_t> ids_;
  std::vector<std::pair<std::string, std::string>> merges_;
  std::vector<std::string> letters_, heads_;
  std::string last_;
};

}  // namespace

std::string synthetic_tokenizer(int32_t tokens) {
  return Builder(tokens).file();
}

}  // namespace volley::bench
