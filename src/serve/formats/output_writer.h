// What generated text adds to an answer, and who writes it.
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
  kCut,    // a limit or the client's own stop did, wherever the model was
};

// What a piece of generated text adds to an answer, in the order in which the model wrote it.
struct OutputDelta {
  enum class Kind { kReasoning, kText, kCall };

  // A piece of one thought, of one text or of one call. Neighbours of one kind, or of one call, are one piece.
  struct Piece {
    Kind kind = Kind::kText;
    std::string text;        // of a call: a piece of its arguments' JSON text, or of its input
    int call = -1;           // kCall: its index
    std::string id, name;    // of a call's first piece; empty in later ones
    bool is_custom = false;  // kCall: of a custom tool, so that `text` is its input
  };

  struct ToolCall {
    int index = 0;
    std::string id, name;
    std::string arguments;  // of a custom tool its input
    bool is_custom = false;
  };

  std::vector<Piece> pieces;

  bool empty() const { return pieces.empty(); }
  // What a chat is told, which does not say in which order its parts were written.
  std::string content() const { return joined(Kind::kText); }
  std::string reasoning() const { return joined(Kind::kReasoning); }
  std::vector<ToolCall> tool_calls() const;  // at most one a call

  void add(Piece piece);
  void add(OutputDelta more);

 private:
  std::string joined(Kind kind) const;
};

// The only way from a parser's stages to an answer. Whatever a stage writes, and in whatever order, clients get:
//   - each call once, with its id and name first, and nothing else between its first piece and its last;
//   - arguments that are a JSON object (serve/call_arguments.h), but for a call that was open when the text was cut.
// One thread at a time.
class OutputWriter {
 public:
  // Ids are `call_id_prefix` and the call's index, or (`short_ids`) as serve/call_ids.h makes them of that.
  explicit OutputWriter(std::string call_id_prefix, bool short_ids = false)
      : id_prefix_(std::move(call_id_prefix)), short_ids_(short_ids) {}

  // Text and thoughts end the call before them.
  void content(std::string_view text) { add(OutputDelta::Kind::kText, text); }
  void reasoning(std::string_view text) { add(OutputDelta::Kind::kReasoning, text); }

  void begin_call(std::string_view name);
  // More of the arguments' text. Returns how many bytes of it are: none behind the end of a whole object. REQUIRES:
  // a call was begun and not ended.
  size_t arguments(std::string_view text);
  // Nothing more comes for the call that was begun last: what there is of its arguments becomes a whole object.
  void end_call();

  // What was written since the last time.
  OutputDelta take() { return std::exchange(delta_, {}); }

  int calls() const { return calls_; }                                    // begun so far
  bool has_open_call() const { return in_call_ && !arguments_.ended(); }  // its arguments are not whole

 private:
  void add(OutputDelta::Kind kind, std::string_view text);
  void grow_call(std::string json);

  const std::string id_prefix_;
  const bool short_ids_;
  OutputDelta delta_;
  CallArguments arguments_;  // of the call that was begun last
  bool in_call_ = false;
  int calls_ = 0;
};

}  // namespace volley::serve
