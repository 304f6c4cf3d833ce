#include "apps/bench/serving/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "serve/json_text.h"

namespace volley::apps {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{64} << 20;

// Lines of a plain or compressed file: zlib reads both.
class Lines {
 public:
  explicit Lines(const std::string& path) : file_(gzopen(path.c_str(), "rb"), gzclose) {}
  bool is_open() const { return file_ != nullptr; }
  // False at the end, and at an error, which error() then names.
  bool next(std::string* line) {
    line->clear();
    char piece[16 << 10];
    while (gzgets(file_.get(), piece, sizeof piece) != nullptr) {
      *line += piece;
      if (line->back() == '\n') break;
      if (line->size() > kMaxLineBytes) return false;
    }
    while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
    return !line->empty() || gzeof(file_.get()) == 0;
  }
  std::string error() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    return code == Z_OK || code == Z_STREAM_END ? std::string() : std::string(text);
  }

 private:
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

DatasetKind kind_of(const Json& line) {
  if (line.contains("question") && line.contains("answer")) return DatasetKind::kGsm8k;
  if (line.contains("prompt") && line.contains("entry_point")) return DatasetKind::kHumanEval;
  return DatasetKind::kJsonl;
}

Result<std::string> text_field(const Json& line, const char* name) {
  const auto field = line.find(name);
  if (field != line.end() && field->is_string()) return field->get<std::string>();
  return invalid_argument("it has no text \"" + std::string(name) + "\"");
}

// The number that a text gives as its result, in one way of writing it; empty if there is none.
std::string number_at(const std::string& text, size_t begin) {
  std::string digits;
  size_t i = begin;
  while (i < text.size() && (text[i] == ' ' || text[i] == '$' || text[i] == '*')) ++i;
  if (i < text.size() && text[i] == '-') digits += text[i++];
  for (; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    const bool next_digit = i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9';
    if (text[i] == ',' && next_digit) continue;
    const bool point = text[i] == '.' && next_digit && digits.find('.') == std::string::npos;
    if (!digit && !point) break;
    digits += text[i];
  }
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
  }
  const size_t sign = digits.starts_with('-') ? 1 : 0;
  const size_t first = std::min(digits.find_first_not_of('0', sign), digits.size());
  if (digits.size() == sign) return {};
  const std::string magnitude = digits.substr(first);
  if (magnitude.empty()) return "0";
  return (sign == 1 ? "-" : "") + (magnitude[0] == '.' ? "0" + magnitude : magnitude);
}

std::string last_number(const std::string& text) {
  for (const char* marker : {"####", "\\boxed{"}) {
    const size_t at = text.rfind(marker);
    if (at != std::string::npos) return number_at(text, at + std::string_view(marker).size());
  }
  // Backwards to the last digit, then to where its number begins.
  size_t end = text.find_last_of("0123456789");
  if (end == std::string::npos) return {};
  size_t begin = end;
  const auto inside = [&text](size_t i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    const bool mark = (text[i] == ',' || text[i] == '.') && i > 0 && text[i - 1] >= '0' && text[i - 1] <= '9';
    return digit || mark;
  };
  while (begin > 0 && inside(begin - 1)) --begin;
  // "5 - 3" is no negative number, "is -3" is one.
  const bool minus = begin > 0 && text[begin - 1] == '-' && (begin == 1 || text[begin - 2] == ' ');
  return number_at(text, minus ? begin - 1 : begin);
}

// Empty unless the whole text is one number.
std::string as_number(const std::string& text) {
  const std::string value(trim(text));
  if (value.empty() || value.find_first_not_of("-$0123456789.,") != std::string::npos) return {};
  return number_at(value, 0);
}

std::optional<std::string> expected_of(const Json& line) {
  for (const char* name : {"expected", "answer"}) {
    const auto field = line.find(name);
    if (field == line.end() || field->is_null()) continue;
    if (field->is_number()) return field->dump();
    if (!field->is_string()) continue;
    const std::string text = field->get<std::string>();
    const bool solution = text.find("####") != std::string::npos;
    return solution ? last_number(text) : text;
  }
  return std::nullopt;
}

Result<Sample> generic_sample(const Json& line) {
  Sample sample;
  const auto messages = line.find("messages");
  if (messages != line.end() && messages->is_array()) {
    sample.messages_json = messages->dump();
  } else {
    VOLLEY_ASSIGN(sample.prompt, text_field(line, "prompt"));
  }
  const auto max_tokens = line.find("max_tokens");
  if (max_tokens != line.end() && max_tokens->is_number_integer()) sample.max_tokens = max_tokens->get<int>();
  sample.expected = expected_of(line);
  return sample;
}

Result<Sample> sample_of(const Json& line, DatasetKind kind, const std::string& instruction) {
  Sample sample;
  switch (kind) {
    case DatasetKind::kGsm8k: {
      VOLLEY_ASSIGN(sample.prompt, text_field(line, "question"));
      VOLLEY_ASSIGN(const std::string answer, text_field(line, "answer"));
      if (!instruction.empty()) sample.prompt += "\n" + instruction;
      sample.expected = last_number(answer);
      return sample;
    }
    case DatasetKind::kHumanEval: {
      VOLLEY_ASSIGN(sample.prompt, text_field(line, "prompt"));
      return sample;
    }
    case DatasetKind::kAuto:
    case DatasetKind::kJsonl:
      break;
  }
  return generic_sample(line);
}

std::string note_of(const Dataset& dataset) {
  if (dataset.kind == DatasetKind::kHumanEval) {
    return "HumanEval's answers are programs: judging them means running them, which this benchmark does not do.";
  }
  const bool judged = std::any_of(dataset.samples.begin(), dataset.samples.end(),
                                  [](const Sample& sample) { return sample.expected.has_value(); });
  return judged ? "" : "No line says which answer is right (\"expected\" or \"answer\"), so none is judged.";
}

}  // namespace

const char* dataset_kind_name(DatasetKind kind) {
  switch (kind) {
    case DatasetKind::kAuto:
      return "auto";
    case DatasetKind::kGsm8k:
      return "gsm8k";
    case DatasetKind::kHumanEval:
      return "humaneval";
    case DatasetKind::kJsonl:
      return "jsonl";
  }
  return "auto";
}

Result<Dataset> read_dataset(const std::string& path, DatasetKind kind, const std::string& instruction, int64_t limit) {
  Lines lines(path);
  if (!lines.is_open()) return not_found("Cannot open the dataset " + path + ".");
  Dataset dataset;
  dataset.kind = kind;
  std::string text;
  for (int64_t number = 1; static_cast<int64_t>(dataset.samples.size()) < limit && lines.next(&text); ++number) {
    if (trim(text).empty()) continue;
    const std::string where = path + " line " + std::to_string(number) + ": ";
    const auto parsed = serve::parse_json(text);
    const auto* line = std::get_if<Json>(&parsed);
    if (line == nullptr || !line->is_object()) return invalid_argument(where + "it is not a JSON object.");
    if (dataset.kind == DatasetKind::kAuto) dataset.kind = kind_of(*line);
    auto sample = sample_of(*line, dataset.kind, instruction);
    if (!sample.ok()) return invalid_argument(where + sample.error().message + ".");
    dataset.samples.push_back(std::move(sample).value());
  }
  if (const std::string error = lines.error(); !error.empty()) {
    return data_loss("Reading " + path + " failed: " + error + ".");
  }
  if (dataset.samples.empty()) return invalid_argument(path + " holds no prompts.");
  dataset.note = note_of(dataset);
  return dataset;
}

bool is_right(const std::string& expected, const std::string& answer) {
  const std::string number = as_number(expected);
  return number.empty() ? trim(expected) == trim(answer) : number == last_number(answer);
}

}  // namespace volley::apps
