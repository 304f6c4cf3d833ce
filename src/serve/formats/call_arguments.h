// Turns a model's arguments of a call into the text of one JSON object, while they grow. Valid JSON passes byte for
// byte. Clients parse arguments, some of them before the end, so sent text can always be completed: names, numbers,
// words and escapes are held back until they are complete.
//
// Models' usual mistakes are corrected: control characters in strings are escaped, a backslash without an escape stands
// for itself, half a surrogate pair becomes U+FFFD, and a comma before a closing bracket is removed. Other text that is
// no JSON goes into a member "INVALID_JSON" behind the members already sent. Anthropic's API takes such arguments back
// in this form, and a client that checks arguments refuses them.
#pragma once

#include <string>
#include <string_view>

namespace volley::serve {

class CallArguments {
 public:
  // Appends the certain part to `json`. Returns the number of bytes that are arguments: none behind the object's end.
  size_t push(std::string_view text, std::string& json);
  // Ends the text: completes the sent part to a whole object. No arguments become {}.
  void end(std::string& json);
  bool ended() const { return ended_; }

 private:
  // The inside of a string.
  class StringText {
   public:
    bool push(char c, std::string& to);  // whether the byte ends the string
    void end(std::string& to);           // appends the held part

   private:
    bool push_escape(char c, std::string& to);
    void add_code_unit(std::string& to);
    void end_pair(std::string& to);

    std::string escape_;          // the beginning of an escape
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
  std::string open_;  // closing brackets of what is open, innermost last
  std::string held_;  // text not sent yet
  size_t word_ = 0;   // index of the word in held_
  size_t comma_ = 0;  // index in held_ of the comma that next_ follows
  StringText string_;
  bool sent_ = false;  // a part was sent
  bool ended_ = false;
};

}  // namespace volley::serve
