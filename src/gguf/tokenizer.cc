// The tokenizer of a GGUF file, or of a file of tiktoken, as a tokenizer.json. Parts that the files leave out, such as
// the normaliser, are taken from the models whose pre-tokenizer the file names.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "gguf/config.h"

namespace volley::gguf {
namespace {

using nlohmann::json;

// tokenizer.ggml.token_type
constexpr double kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4;

constexpr size_t kMaxTokenBytes = 4096;
constexpr const char* kSpace = "\u2581";  // SentencePiece's

// How byte-level tokenizers split a text before they merge.
struct Cut {
  const char* name;          // tokenizer.ggml.pre
  const char* pattern;       // null: GPT-2's, which the library has
  bool digits = false;       // each digit alone, before the pattern
  bool normalises = false;   // NFC
  bool whole_first = false;  // a piece that is a token is taken whole, without merges
  bool begins = false;       // a text begins with the bos token unless the file says otherwise
  // Patterns that cut a text before that one does, one after the other.
  std::array<const char*, 2> before = {};
};
#define VOLLEY_QWEN2_PATTERN                                                                            \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)" \
  R"(|\s+(?!\S)|\s+)"
#define VOLLEY_LLAMA3_PATTERN                                                                                \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)" \
  R"(|\s+(?!\S)|\s+)"
// Kimi's: runs of Han characters alone.
constexpr Cut kKimi = {.name = "kimi-k2",
                       .pattern = R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
                                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                                  R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
                                  R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                                  R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                       .whole_first = true};

constexpr Cut kCuts[] = {
    {.name = "gpt-2", .pattern = nullptr},
    {.name = "smollm", .pattern = nullptr, .digits = true},
    {.name = "starcoder", .pattern = nullptr, .digits = true},
    {.name = "refact", .pattern = nullptr, .digits = true},
    {.name = "qwen2", .pattern = VOLLEY_QWEN2_PATTERN, .normalises = true},
    {.name = "deepseek-r1-qwen", .pattern = VOLLEY_QWEN2_PATTERN},
    {.name = "qwen35",
     .pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
                R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .normalises = true},
    {.name = "llama-bpe", .pattern = VOLLEY_LLAMA3_PATTERN, .whole_first = true, .begins = true},
    {.name = "llama3", .pattern = VOLLEY_LLAMA3_PATTERN, .whole_first = true, .begins = true},
    {.name = "chatglm-bpe", .pattern = VOLLEY_LLAMA3_PATTERN},
    {.name = "glm4", .pattern = VOLLEY_LLAMA3_PATTERN},
    kKimi,
    {.name = "deepseek-v3",
     .pattern = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
                R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .before = {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"}},
    {.name = "tekken",
     .pattern = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .whole_first = true,
     .begins = true},
    {.name = "gpt-4o",
     .pattern =
         R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll)"
         R"(|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve)"
         R"(|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json sequence(const char* members, json list) {
  return {{"type", "Sequence"}, {members, std::move(list)}};
}

json pre_tokenizer(const Cut& cut) {
  json list = json::array();
  if (cut.digits) list.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const char* pattern : {cut.before[0], cut.before[1], cut.pattern}) {
    if (pattern == nullptr) continue;
    list.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  list.push_back(byte_level(cut.pattern == nullptr));
  return sequence("pretokenizers", std::move(list));
}

std::optional<size_t> id_of(const Header& header, const std::string& name) {
  const std::optional<double> id = header.number("tokenizer.ggml." + name);
  if (!id || *id < 0 || *id >= 1e9) return std::nullopt;
  return static_cast<size_t>(*id);
}

// Whether a text begins with the bos token.
bool adds_bos(const Header& header, bool usual) {
  return header.boolean("tokenizer.ggml.add_bos_token").value_or(usual);
}

// Puts the bos token before a text.
json post_processor(const Header& header, const std::vector<std::string_view>& tokens, bool begins) {
  const std::optional<size_t> bos = id_of(header, "bos_token_id");
  if (!begins || !bos || *bos >= tokens.size()) return nullptr;
  const std::string token(tokens[*bos]);
  const json first = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  const auto text = [](const char* which, int type) { return json{{"Sequence", {{"id", which}, {"type_id", type}}}}; };
  return {
      {"type", "TemplateProcessing"},
      {"single", json::array({first, text("A", 0)})},
      {"pair", json::array({first, text("A", 0), first, text("B", 1)})},
      {"special_tokens", {{token, {{"id", token}, {"ids", json::array({*bos})}, {"tokens", json::array({token})}}}}}};
}

json added_tokens(const std::vector<std::string_view>& tokens, const std::vector<double>& types) {
  json added = json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool special = types[i] == kControl || types[i] == kUnknown;
    if (!special && types[i] != kUserDefined) continue;
    added.push_back({{"id", i},
                     {"content", tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return added;
}

// Whether the merges of pieces may take much memory: each way to make a piece of two takes its bytes.
bool merges_take_much(const std::vector<std::string_view>& tokens) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  size_t bytes = 0;
  for (const std::string_view token : tokens) bytes += token.size() * token.size();
  return bytes > kMostBytes;
}

// The merges that SentencePiece's scores imply: every way to make a piece of two, the best pieces first. As
// transformers converts them.
json merges_of_scores(const std::vector<std::string_view>& tokens, const std::vector<double>& scores) {
  struct Merge {
    double score;
    size_t left, right;
  };
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids.emplace(tokens[i], i);
  std::vector<Merge> merges;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view piece = tokens[id];
    std::vector<Merge> own;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      if ((static_cast<unsigned char>(piece[cut]) & 0xc0) == 0x80) continue;  // inside of a character
      const auto left = ids.find(piece.substr(0, cut)), right = ids.find(piece.substr(cut));
      if (left != ids.end() && right != ids.end()) own.push_back({scores[id], left->second, right->second});
    }
    std::ranges::sort(own, {}, [](const Merge& merge) { return std::pair(merge.left, merge.right); });
    merges.insert(merges.end(), own.begin(), own.end());
  }
  const auto characters = [&](size_t id) {
    return std::ranges::count_if(tokens[id], [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  };
  std::ranges::stable_sort(merges, std::greater(), [&](const Merge& merge) {
    return std::tuple(merge.score, characters(merge.left), characters(merge.right));
  });
  json list = json::array();
  for (const Merge& merge : merges) list.push_back(json::array({tokens[merge.left], tokens[merge.right]}));
  return list;
}

// SentencePiece's pieces, with byte tokens for characters that have none. Gemma 4's texts always begin with the bos
// token, whatever the file says: llama.cpp overrides files that say no.
json piece_tokenizer(const Header& header, const std::vector<std::string_view>& tokens, json merges, bool gemma4) {
  const std::optional<size_t> unknown = id_of(header, "unknown_token_id");
  const json spaces = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  json normalizers = json::array();
  const bool prefix = header.boolean("tokenizer.ggml.add_space_prefix").value_or(!gemma4);
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  normalizers.push_back(spaces);
  json decoders = json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                               {{"type", "ByteFallback"}},
                               {{"type", "Fuse"}}});
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"normalizer", sequence("normalizers", std::move(normalizers))},
          {"decoder", sequence("decoders", std::move(decoders))},
          {"post_processor", post_processor(header, tokens, gemma4 || adds_bos(header, true))},
          {"model",
           {{"type", "BPE"},
            {"unk_token", unknown && *unknown < tokens.size() ? json(tokens[*unknown]) : json()},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"merges", std::move(merges)}}}};
}

json byte_tokenizer(const Cut& cut, json merges, json post_processor) {
  return {{"normalizer", cut.normalises ? json{{"type", "NFC"}} : json()},
          {"pre_tokenizer", pre_tokenizer(cut)},
          {"decoder", byte_level(true)},
          {"post_processor", std::move(post_processor)},
          {"model", {{"type", "BPE"}, {"ignore_merges", cut.whole_first}, {"merges", std::move(merges)}}}};
}

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The members of the object of ids, of the strings of a list: a map of them takes most of a small model's start.
std::string vocabulary(const std::vector<std::string_view>& tokens) {
  const std::string list = dumped(tokens);
  std::string members;
  for (size_t id = 0, begin = 1; id < tokens.size(); ++id) {
    size_t end = begin + 1;
    while (list[end] != '"') end += list[end] == '\\' ? 2 : 1;
    members.append(list, begin, end + 1 - begin) += ":" + std::to_string(id) + (id + 1 < tokens.size() ? "," : "");
    begin = end + 2;
  }
  return members;
}

// A byte as the character that byte-level tokenizers write for it, in UTF-8.
std::string character_of(unsigned char byte) {
  const auto shows = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int code = byte;
  if (!shows(byte)) {
    code = 256;
    for (int other = 0; other < byte; ++other) code += shows(other) ? 0 : 1;
  }
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

// The bytes of a Base64 text, as such characters; nothing if it is none.
std::optional<std::string> token_of(std::string_view base64) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string token;
  uint32_t bits = 0;
  int count = 0;
  while (base64.ends_with('=')) base64.remove_suffix(1);
  for (const char c : base64) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    token += character_of(static_cast<unsigned char>(bits >> count));
  }
  return token.empty() ? std::nullopt : std::optional(token);
}

}  // namespace

Result<std::string> tiktoken_json(const std::string& path, std::string_view file, std::string_view config) {
  constexpr size_t kSpecial = 256;
  std::vector<std::string> texts;
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    const std::string_view line = file.substr(at, end - at);
    at = end + 1;
    const size_t space = line.find(' ');
    const std::optional<std::string> token = token_of(line.substr(0, space));
    if (space == std::string_view::npos || !token || token->size() > kMaxTokenBytes ||
        line.substr(space + 1) != std::to_string(texts.size())) {
      return data_loss(path + " line " + std::to_string(texts.size() + 1) +
                       " is not a token in Base64 and the rank that follows: the file is damaged.");
    }
    texts.push_back(*token);
  }
  const std::vector<std::string_view> tokens(texts.begin(), texts.end());
  if (merges_take_much(tokens)) return data_loss(path + " has too many long tokens: the file is damaged.");
  std::vector<double> scores;
  for (size_t i = 0; i < tokens.size(); ++i) scores.push_back(-static_cast<double>(i));
  json tokenizer = byte_tokenizer(kKimi, merges_of_scores(tokens, scores), nullptr);
  json& vocabulary = tokenizer["model"]["vocab"] = json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary.emplace(tokens[i], i);
  if (vocabulary.size() != tokens.size()) return data_loss(path + ": two tokens are alike: the file is damaged.");
  const json fields = json::parse(config, nullptr, false);
  const json named = fields.is_object() ? fields.value("added_tokens_decoder", json::object()) : json::object();
  std::vector<std::string> special;
  for (size_t id = tokens.size(); id < tokens.size() + kSpecial; ++id) {
    const json entry = named.is_object() ? named.value(std::to_string(id), json::object()) : json::object();
    const auto content = entry.is_object() ? entry.find("content") : entry.end();
    const bool is_named = entry.is_object() && content != entry.end() && content->is_string();
    special.push_back(is_named ? content->get<std::string>() : "<|reserved_token_" + std::to_string(id) + "|>");
  }
  tokenizer["version"] = "1.0";
  json& added = tokenizer["added_tokens"] =
      added_tokens({special.begin(), special.end()}, std::vector<double>(kSpecial, kControl));
  for (json& token : added) token["id"] = token["id"].get<size_t>() + tokens.size();
  return dumped(tokenizer);
}

Result<std::string> tokenizer_json(const File& file) {
  const Header& header = file.header();
  const std::string instead =
      ": fetch the tokenizer.json of the model's checkpoint, and name it with --tokenizer FILE.";
  std::vector<std::string_view> tokens = header.texts("tokenizer.ggml.tokens");
  const std::string model = header.text("tokenizer.ggml.model").value_or("");
  if (tokens.empty()) return data_loss(file.path() + " holds no tokenizer (\"tokenizer.ggml.tokens\")" + instead);
  // Longer ones would take quadratic time.
  if (std::ranges::any_of(tokens, [](std::string_view token) { return token.size() > kMaxTokenBytes; })) {
    return data_loss(file.path() + " has a token of more than " + std::to_string(kMaxTokenBytes) +
                     " bytes: the file is damaged.");
  }
  std::vector<double> types = header.numbers("tokenizer.ggml.token_type");
  types.resize(tokens.size(), kNormal);
  std::deque<std::string> runs;
  json tokenizer, merges = json::array();
  for (const std::string_view merge : header.texts("tokenizer.ggml.merges")) merges.push_back(merge);
  if (model == "llama") {
    std::vector<double> scores = header.numbers("tokenizer.ggml.scores");
    if (scores.size() != tokens.size()) {
      return data_loss(file.path() + ": \"tokenizer.ggml.scores\" are not one for each token: the file is damaged.");
    }
    // Gemma's merges are in the order of their tokens, also those of runs of spaces, which its files have as added
    // tokens.
    const bool in_order = header.text("general.architecture").value_or("").starts_with("gemma");
    for (size_t i = 0; in_order && i < tokens.size(); ++i) {
      scores[i] = -static_cast<double>(i);
      if (types[i] != kUserDefined || tokens[i].size() < 2 || tokens[i].find_first_not_of(' ') != tokens[i].npos)
        continue;
      std::string& run = runs.emplace_back();
      while (run.size() < tokens[i].size() * std::strlen(kSpace)) run += kSpace;
      tokens[i] = run;
      types[i] = kNormal;
    }
    if (merges_take_much(tokens)) return data_loss(file.path() + " has too many long tokens: the file is damaged.");
    tokenizer = piece_tokenizer(header, tokens, merges_of_scores(tokens, scores), false);
  } else if (model == "gemma4") {
    if (merges.empty()) {
      return data_loss(file.path() + " has no merges (\"tokenizer.ggml.merges\"): the file is damaged.");
    }
    tokenizer = piece_tokenizer(header, tokens, std::move(merges), true);
  } else if (model == "gpt2") {
    const std::string pre = header.text("tokenizer.ggml.pre").value_or("");
    const auto* cut = std::ranges::find(kCuts, pre, &Cut::name);
    if (cut == std::end(kCuts)) {
      return unimplemented(file.path() + " has the pre-tokenizer \"" + pre + "\", which is not built" + instead);
    }
    tokenizer = byte_tokenizer(*cut, std::move(merges), post_processor(header, tokens, adds_bos(header, cut->begins)));
  } else {
    return unimplemented(file.path() + " has a tokenizer of the kind \"" + model +
                         "\", which is not built; built are gemma4, gpt2 and llama" + instead);
  }
  if (std::unordered_set<std::string_view>(tokens.begin(), tokens.end()).size() != tokens.size()) {
    return data_loss(file.path() + ": two tokens of \"tokenizer.ggml.tokens\" are alike: the file is damaged.");
  }
  tokenizer["version"] = "1.0";
  tokenizer["added_tokens"] = added_tokens(tokens, types);
  tokenizer["model"]["vocab"] = nullptr;
  // Quotes inside of strings have a backslash before them, so that this is the member's name.
  constexpr std::string_view kPlace = "\"vocab\":null";
  std::string text = dumped(tokenizer);
  return text.replace(text.find(kPlace), kPlace.size(), "\"vocab\":{" + vocabulary(tokens) + "}");
}

std::string tokenizer_config_json(const File& file) {
  const Header& header = file.header();
  const std::vector<std::string_view> tokens = header.texts("tokenizer.ggml.tokens");
  json config = json::object();
  constexpr std::array kTokens = {std::pair{"bos_token_id", "bos_token"}, std::pair{"eos_token_id", "eos_token"},
                                  std::pair{"unknown_token_id", "unk_token"},
                                  std::pair{"padding_token_id", "pad_token"}};
  for (const auto& [stored, name] : kTokens) {
    if (const auto id = id_of(header, stored); id && *id < tokens.size()) config[name] = tokens[*id];
  }
  const auto usual = header.text("tokenizer.chat_template"), tools = header.text("tokenizer.chat_template.tool_use");
  if (usual && tools) {
    config["chat_template"] =
        json::array({{{"name", "default"}, {"template", *usual}}, {{"name", "tool_use"}, {"template", *tools}}});
  } else if (usual) {
    config["chat_template"] = *usual;
  }
  return dumped(config);
}

}  // namespace volley::gguf
