// Grammar masks of one round: 8 requests, a block of 16 positions each, over a made-up vocabulary of 150,000 tokens.
// Every drafted token is one that the grammar allows, so that no row is skipped: the dearest case.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "device/cpu/thread_pool.h"
#include "synthetic_vocabulary.h"
#include "text/grammar.h"
#include "text/text.h"

namespace volley::bench {
namespace {

using text::Matcher;
using text::TextEnd;

constexpr int32_t kVocab = 150'000, kMaskWords = (kVocab + 31) / 32;
constexpr int kRequests = 8, kRows = 16;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) die(result.error().message);
  return std::move(result).value();
}

const text::Tokenizer& tokenizer() {
  static const std::shared_ptr<const text::Tokenizer> made = [] {
    const auto dir = std::filesystem::temp_directory_path() / "volley_grammar_bench";
    std::filesystem::create_directories(dir);
    std::ofstream(dir / "tokenizer.json", std::ios::binary) << synthetic_tokenizer(kVocab);
    auto loaded = must(text::Tokenizer::load(dir.string()));
    std::filesystem::remove_all(dir);
    return loaded;
  }();
  return *made;
}

std::string words(std::mt19937& random, int count) {
  static const char* all[] = {"river", "of",     "seventeen", "brave",   "ladders",
                              "near",  "garden", "wonder",    "lantern", "it"};
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? " " : "") + std::string(all[random() % std::size(all)]);
  return text;
}

std::string nested_words(std::mt19937& random) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "((" + words(random, 3) + ")),";
  return text + words(random, 1) + ".";
}

struct Case {
  const char* name;
  GrammarSpec grammar;
  std::string (*text)(std::mt19937&);  // one that satisfies it
};

const std::vector<Case>& cases() {
  using Kind = GrammarSpec::Kind;
  static const std::vector<Case> all = {
      {"schema",
       {Kind::kJsonSchema,
        R"({"type":"object","additionalProperties":false,"required":["title","items","note"],"properties":{
          "title":{"type":"string","maxLength":200},
          "items":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["id","kind","size"],
            "properties":{"id":{"type":"string","pattern":"^[A-Z]{2}-[0-9]{4}$"},"kind":{"enum":["small","large","none"]},
            "size":{"type":"number","minimum":0,"maximum":100}}}},
          "note":{"type":"string"}}})",
        {}},
       [](std::mt19937& random) {
         std::string items;
         for (int i = 0; i < 6; ++i) {
           items += std::string(i > 0 ? ", " : "") + R"({"id": "AB-12)" + std::to_string(10 + random() % 90) +
                    R"(", "kind": "large", "size": )" + std::to_string(random() % 100) + ".5}";
         }
         return R"({"title": ")" + words(random, 12) + R"(", "items": [)" + items + R"(], "note": ")" +
                words(random, 150) + "\"}";
       }},
      {"json_object",
       {Kind::kJsonObject, "", {}},
       [](std::mt19937& random) {
         std::string text = "{";
         for (int i = 0; i < 20; ++i) {
           text += (i > 0 ? ", \"" : "\"") + words(random, 1) + std::to_string(i) + R"(": [1, true, ")" +
                   words(random, 8) + "\"]";
         }
         return text + "}";
       }},
      {"regex",
       {Kind::kRegex, "([A-Za-z]+ ){1,400}\\.", {}},
       [](std::mt19937& random) { return words(random, 300) + " ."; }},
      {"gbnf",
       {Kind::kEbnf,
        "root ::= item (\",\" item)* \".\"\nitem ::= word (\" \" word)* | \"(\" item \")\"\nword ::= [a-zA-Z]+",
        {}},
       nested_words},
      {"lark",
       {Kind::kLark,
        "start: item (\",\" item)* \".\"\nitem: WORD (\" \" WORD)* | \"(\" item \")\"\nWORD: /[a-zA-Z]+/\n",
        {}},
       nested_words},
  };
  return all;
}

// Tokens that spell the text and that the grammar allows, the longest first.
std::vector<TokenId> tokens_of(Matcher& matcher, std::string_view text) {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> mask(kMaskWords);
  while (!text.empty()) {
    TextEnd end;
    if (!matcher.masks_along({}, mask.data(), kMaskWords, &end).status.ok()) die("the grammar failed");
    TokenId best = -1;
    size_t size = 0;
    const auto ids = must(tokenizer().encode(text.substr(0, 64), false));
    const auto allowed = [&](TokenId id) { return (mask[id / 32] >> (id % 32) & 1) != 0; };
    if (allowed(ids[0])) {
      best = ids[0];
    } else {  // the tokenizer joins characters that the grammar tells apart
      best = *tokenizer().token_id(text.substr(0, 1));
    }
    size = tokenizer().decode({{best}}, false).size();
    if (!allowed(best)) die("the text does not satisfy the grammar at \"" + std::string(text.substr(0, 30)) + "\"");
    if (!matcher.commit({{best}}).ok()) die("the grammar failed");
    tokens.push_back(best);
    text.remove_prefix(size);
  }
  return tokens;
}

struct Request {
  std::unique_ptr<Matcher> matcher;
  std::vector<TokenId> tokens;
  size_t position = 0;
};

void masks_of_a_round(benchmark::State& state, const Case& c, int threads) {
  ThreadPool pool(threads);
  const auto start = [&] { return must(tokenizer().grammars()->compile(c.grammar)); };
  std::vector<Request> requests(kRequests);
  std::mt19937 random(5);
  for (Request& request : requests) {
    request.tokens = tokens_of(*start(), c.text(random));
    request.matcher = start();
    request.position = random() % (request.tokens.size() - kRows);
    if (!request.matcher->commit(std::span(request.tokens).first(request.position)).ok()) die("the grammar failed");
  }
  std::vector<uint32_t> words(static_cast<size_t>(kRequests) * kRows * kMaskWords);
  int64_t rows = 0;
  for (auto _ : state) {
    std::array<int32_t, kRequests> filled{};
    pool.parallel_for(kRequests, [&](int64_t i, int) {
      Request& request = requests[i];
      std::array<TextEnd, kRows> ends;
      const auto drafted = std::span(request.tokens).subspan(request.position, kRows - 1);
      filled[i] =
          request.matcher->masks_along(drafted, words.data() + i * kRows * kMaskWords, kMaskWords, ends.data()).rows;
      // Half of the block is accepted; a finished text begins again.
      if (!request.matcher->commit(drafted.first(kRows / 2)).ok()) die("the grammar failed");
      request.position += kRows / 2;
      if (request.position + kRows > request.tokens.size()) {
        request.matcher = start();
        request.position = 0;
      }
    });
    for (const int32_t n : filled) rows += n;
  }
  state.counters["rows"] = benchmark::Counter(static_cast<double>(rows), benchmark::Counter::kAvgIterations);
}

}  // namespace
}  // namespace volley::bench

int main(int argc, char** argv) {
  using namespace volley::bench;
  benchmark::Initialize(&argc, argv);
  for (const Case& c : cases()) {
    for (const int threads : {1, 2}) {
      benchmark::RegisterBenchmark((std::string("masks/") + c.name + "/threads:" + std::to_string(threads)).c_str(),
                                   [&c, threads](benchmark::State& state) { masks_of_a_round(state, c, threads); })
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime()
          ->Iterations(40);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
