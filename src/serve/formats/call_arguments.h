// Turns what a model writes as a call's arguments into the text of one JSON object, while it grows. JSON passes through
// byte for byte. Clients parse arguments, some of them before they end, so what has gone out can always be completed:
// names, numbers, words and escapes are held back until they are known to be whole.
//
// What models are seen to get wrong within JSON is mended: control characters in strings are escaped, a backslash that
// begins no escape stands for itself, half a surrogate pair becomes U+FFFD, and a comma before a closing bracket goes.
// What is no JSON otherwise is handed on as text, in a member "INVALID_JSON" behind the members that had gone out. This
// is the form in which Anthropic's API takes such arguments back, and a client that checks arguments refuses it.
#pragma once

#include <string>
#include <string_view>

namespace volley::serve {

class CallArguments {
 public:
  // Appends to `json` what is certain. Returns how many bytes belong to the arguments: none behind the object's end.
  size_t push(std::string_view text, std::string& json);
  // Nothing more comes: appends what makes a whole object of what has gone out. No arguments at all are {}.
  void end(std::string& json);
  bool ended() const { return ended_; }

 private:
  // The inside of a string.
  class StringText {
   public:
    bool push(char c, std::string& to);  // whether the byte is the string's end
    void end(std::string& to);           // what was held back

   private:
    bool push_escape(char c, std::string& to);
    void add_code_unit(std::string& to);
    void end_pair(std::string& to);

    std::string escape_;          // the beginning of one
    std::string high_surrogate_;  // an escape that is the first half of a pair
  };

  enum class Place { kBetween, kKey, kString, kWord, kInvalid };
  enum class Next { kObject, kKeyOrEnd, kKey, kColon, kValue, kValueOrEnd, kCommaOrEnd };

  void step(char c, std::string& json);
  void between(char c, std::string& json);
  void begin_value(char c, std::string& json);
  void begin_invalid(std::string_view more, std::string& json);
  void open(char bracket, std::string& json);
  void close(char bracket, std::string& json);
  void close_all(size_t depth, std::string& json);
  bool word_is_json() const;
  bool is_in_list() const { return !open_.empty() && open_.back() == ']'; }
  void send_held(std::string& json);

  Place place_ = Place::kBetween;
  Next next_ = Next::kObject;
  std::string open_;  // the brackets that close what is open, innermost last
  std::string held_;  // what has not gone out
  size_t word_ = 0;   // where in held_ the word begins
  size_t comma_ = 0;  // where in held_ the comma is that next_ follows
  StringText string_;
  bool sent_ = false;  // something has gone out
  bool ended_ = false;
};

}  // namespace volley::serve
