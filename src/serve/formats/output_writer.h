// Collects generated text into an answer.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/formats/call_arguments.h"

namespace volley::serve {

// Why a generated text ends.
enum class TextEnd {
  kModel,  // the model ended it
  kCut,    // a limit or the client's own stop ended it
};

// A piece of text's addition to an answer, in the model's order.
struct OutputDelta {
  enum class Kind { kReasoning, kText, kCall };

  // A piece of one thought, text or call. Neighbours of one kind, or of one call, are one piece.
  struct Piece {
    Kind kind = Kind::kText;
    std::string text;        // a call's: a piece of its arguments' JSON text, or of its input
    int call = -1;           // kCall: its index
    std::string id, name;    // in a call's first piece; empty in later ones
    bool is_custom = false;  // kCall: the tool is a custom one, so `text` is its input
  };

  struct ToolCall {
    int index = 0;
    std::string id, name;
    std::string arguments;  // a custom tool's input
    bool is_custom = false;
  };

  std::vector<Piece> pieces;

  bool empty() const { return pieces.empty(); }
  // A chat's view, which has no order between kinds.
  std::string content() const { return joined(Kind::kText); }
  std::string reasoning() const { return joined(Kind::kReasoning); }
  std::vector<ToolCall> tool_calls() const;  // at most one for each call

  void add(Piece piece);
  void add(OutputDelta more);

 private:
  std::string joined(Kind kind) const;
};

// The only way from a parser's stages to an answer. Whatever the stages write, clients get:
//   - each call once, with its id and name first, and no other piece between its first and its last;
//   - arguments that are a JSON object (serve/formats/call_arguments.h), except for a call that was open at a cut.
// One thread at a time.
class OutputWriter {
 public:
  // An id is `call_id_prefix` and the call's index, or (`short_ids`) serve/formats/call_ids.h's form of that.
  explicit OutputWriter(std::string call_id_prefix, bool short_ids = false)
      : id_prefix_(std::move(call_id_prefix)), short_ids_(short_ids) {}

  // Text and thoughts end the call before them.
  void content(std::string_view text) { add(OutputDelta::Kind::kText, text); }
  void reasoning(std::string_view text) { add(OutputDelta::Kind::kReasoning, text); }

  void begin_call(std::string_view name);
  // Adds text of the arguments. Returns the number of bytes that belong to them: none behind a whole object's end.
  // REQUIRES: an open call.
  size_t arguments(std::string_view text);
  // Ends the last call: its arguments become a whole object.
  void end_call();

  // Returns what was written since the last time.
  OutputDelta take() { return std::exchange(delta_, {}); }

  int calls() const { return calls_; }                                    // number so far
  bool has_open_call() const { return in_call_ && !arguments_.ended(); }  // its arguments are not complete

 private:
  void add(OutputDelta::Kind kind, std::string_view text);
  void grow_call(std::string json);

  const std::string id_prefix_;
  const bool short_ids_;
  OutputDelta delta_;
  CallArguments arguments_;  // the last call's arguments
  bool in_call_ = false;
  int calls_ = 0;
};

}  // namespace volley::serve
