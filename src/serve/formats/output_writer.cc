#include "serve/formats/output_writer.h"

#include "base/check.h"
#include "serve/formats/call_ids.h"

namespace volley::serve {

std::vector<OutputDelta::ToolCall> OutputDelta::tool_calls() const {
  std::vector<ToolCall> calls;
  for (const Piece& piece : pieces) {
    if (piece.kind != Kind::kCall) continue;
    if (calls.empty() || calls.back().index != piece.call)
      calls.push_back({piece.call, piece.id, piece.name, {}, piece.is_custom});
    calls.back().arguments += piece.text;
  }
  return calls;
}

void OutputDelta::add(Piece piece) {
  const bool goes_on = !pieces.empty() && pieces.back().kind == piece.kind && pieces.back().call == piece.call;
  if (goes_on) {
    pieces.back().text += piece.text;
  } else {
    pieces.push_back(std::move(piece));
  }
}

void OutputDelta::add(OutputDelta more) {
  for (Piece& piece : more.pieces) add(std::move(piece));
}

std::string OutputDelta::joined(Kind kind) const {
  std::string text;
  for (const Piece& piece : pieces) {
    if (piece.kind == kind) text += piece.text;
  }
  return text;
}

void OutputWriter::add(OutputDelta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  end_call();
  delta_.add({kind, std::string(text), -1, {}, {}});
}

void OutputWriter::begin_call(std::string_view name) {
  end_call();
  std::string id = id_prefix_ + std::to_string(calls_);
  if (short_ids_) id = short_call_id(id);
  delta_.add({OutputDelta::Kind::kCall, {}, calls_, std::move(id), std::string(name)});
  arguments_ = {};
  in_call_ = true;
  ++calls_;
}

size_t OutputWriter::arguments(std::string_view text) {
  VOLLEY_CHECK(in_call_);
  std::string json;
  const size_t taken = arguments_.push(text, json);
  grow_call(std::move(json));
  return taken;
}

void OutputWriter::end_call() {
  if (!std::exchange(in_call_, false)) return;
  std::string json;
  arguments_.end(json);
  grow_call(std::move(json));
}

void OutputWriter::grow_call(std::string json) {
  if (!json.empty()) delta_.add({OutputDelta::Kind::kCall, std::move(json), calls_ - 1, {}, {}});
}

}  // namespace volley::serve
