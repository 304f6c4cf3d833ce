// Writers for APIs whose answers are lists of blocks: thoughts, text, calls, in the order of generation. One choice;
// one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api/choice_output.h"
#include "serve/api/openai_response.h"

namespace volley::serve {

struct AnswerBlock {
  using Kind = OutputDelta::Kind;

  Kind kind = Kind::kText;
  std::string text = {};  // a call's arguments, as JSON text
  std::string call_id = {}, name = {};
};

// Turns events into blocks. A block's borders depend on the text alone, not on its events.
class BlockWriter : public ResponseWriter {
 public:
  std::string add(int choice, const Event& event) final;
  std::string end() final;
  std::string fail(const ApiError& error) final;
  const UsageTotals& usage() const final { return usage_; }

 protected:
  // `keep`: keeps the blocks' text, which a whole answer needs.
  BlockWriter(ResponseInfo info, bool keep);

  // Each appends what a stream's client is told. In end_block() a block's text is complete, if kept.
  virtual void begin_answer(std::string& out) = 0;
  virtual void begin_block(size_t index, std::string& out) = 0;
  virtual void grow_block(size_t index, std::string_view more, std::string& out) = 0;
  virtual void end_block(size_t index, std::string& out) = 0;
  // The rest of a stream, or the whole body.
  virtual std::string end_answer() = 0;
  virtual std::string fail_answer(const ApiError& error) = 0;

  const ResponseInfo& info() const { return info_; }
  const ChoiceOutput& output() const { return output_; }
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  const std::string& logprobs() const { return logprobs_; }          // the whole answer's: elements of a JSON array
  const std::string& new_logprobs() const { return new_logprobs_; }  // those of grow_block()'s text

 private:
  void add_piece(OutputDelta::Piece piece, std::string& out);
  void open(AnswerBlock block, std::string& out);
  void close(std::string& out);
  void grow(std::string_view more, std::string& out);
  void add_logprobs(const nlohmann::ordered_json& news);

  const ResponseInfo info_;
  const bool keep_;
  ChoiceOutput output_;
  UsageTotals usage_{1};
  std::vector<AnswerBlock> blocks_;
  int call_ = -1;  // the last block's call index
  bool begun_ = false, open_ = false;
  std::string logprobs_, new_logprobs_;
};

}  // namespace volley::serve
