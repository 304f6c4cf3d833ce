// The prompts of `volley bench serving`, and how answers to them are judged.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace volley::apps {

enum class DatasetKind {
  kAuto,       // by the fields of the first line
  kGsm8k,      // question, answer that ends with "#### n" (Cobbe et al. 2021, as published)
  kHumanEval,  // prompt, test, entry_point (Chen et al. 2021, as published)
  kJsonl,      // prompt or messages; optionally max_tokens, and expected or answer
};
const char* dataset_kind_name(DatasetKind kind);  // "auto", "gsm8k", "humaneval", "jsonl"

struct Sample {
  std::string prompt;                   // a user's message, or text to continue; empty if there are messages
  std::string messages_json;            // a JSON array of messages; empty if there is a prompt
  std::optional<int> max_tokens;        // as the line gives it
  std::optional<std::string> expected;  // what a right answer says; empty: the answer is not judged
};

struct Dataset {
  DatasetKind kind = DatasetKind::kJsonl;
  std::vector<Sample> samples;
  std::string note;  // why answers are not judged; empty if they are
};

// The first `limit` lines of a file, plain or gzip-compressed. `instruction` is added to GSM8K's questions. Memory: the
// samples. kNotFound, kInvalidArgument with the line that is wrong.
Result<Dataset> read_dataset(const std::string& path, DatasetKind kind, const std::string& instruction, int64_t limit);

// Whether an answer is right: a number is compared with the one that the text gives as its result (after "####", in
// \boxed{}, or else its last one), any other expected text with the whole answer, white space around it left out.
bool is_right(const std::string& expected, const std::string& answer);

}  // namespace volley::apps
