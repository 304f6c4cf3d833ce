#include "serve/messages/answer_blocks.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace volley::serve {
namespace {

using Kind = AnswerBlock::Kind;

ResponseInfo in_order(ResponseInfo info) {
  info.in_order = true;
  return info;
}

}  // namespace

BlockWriter::BlockWriter(ResponseInfo info, bool keep)
    : info_(in_order(std::move(info))), keep_(keep), output_(info_, 0) {}

std::string BlockWriter::add(int, const Event& event) {
  std::string out;
  if (!std::exchange(begun_, true)) begin_answer(out);
  auto news = output_.read(event);
  add_logprobs(news.logprobs);
  for (OutputDelta::Piece& piece : news.delta.pieces) add_piece(std::move(piece), out);
  if (news.last) {
    usage_.add(0, event.finish->usage, output_.reasoning_tokens());
    if (blocks_.empty()) open({}, out);  // the end came at once: an empty text
    close(out);
  }
  return out;
}

void BlockWriter::add_logprobs(const nlohmann::ordered_json& news) {
  if (news.is_null()) return;
  for (const auto& entry : news.at("content")) {
    new_logprobs_.append(new_logprobs_.empty() ? "" : ",")
        .append(entry.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
}

void BlockWriter::add_piece(OutputDelta::Piece piece, std::string& out) {
  const bool goes_on = open_ && blocks_.back().kind == piece.kind && (piece.kind != Kind::kCall || piece.call == call_);
  if (!goes_on) {
    // Clients cannot return to an ended block, and a call begins with its id and name.
    VOLLEY_CHECK(piece.kind != Kind::kCall || !piece.id.empty());
    call_ = piece.call;
    open({piece.kind, {}, std::move(piece.id), std::move(piece.name)}, out);
  }
  if (!piece.text.empty()) grow(piece.text, out);
}

void BlockWriter::open(AnswerBlock block, std::string& out) {
  close(out);
  blocks_.push_back(std::move(block));
  open_ = true;
  begin_block(blocks_.size() - 1, out);
}

void BlockWriter::close(std::string& out) {
  if (!std::exchange(open_, false)) return;
  if (!new_logprobs_.empty()) grow({}, out);  // logprobs of tokens whose text was cut off
  end_block(blocks_.size() - 1, out);
}

void BlockWriter::grow(std::string_view more, std::string& out) {
  if (keep_) blocks_.back().text += more;
  if (keep_ && !new_logprobs_.empty()) logprobs_.append(logprobs_.empty() ? "" : ",").append(new_logprobs_);
  grow_block(blocks_.size() - 1, more, out);
  new_logprobs_.clear();
}

std::string BlockWriter::end() {
  return end_answer();
}

// Frees the blocks first: their memory may be what is missing.
std::string BlockWriter::fail(const ApiError& error) {
  std::vector<AnswerBlock>().swap(blocks_);
  std::string().swap(logprobs_);
  open_ = false;
  return fail_answer(error);
}

}  // namespace volley::serve
