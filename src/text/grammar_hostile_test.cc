// Grammars made to exhaust a server (tests/data/hostile/grammars.jsonl): each is refused with a sentence, or runs
// within the limits of time, states and memory that all grammars have.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "text/grammar_testing.h"

// A compilation that ends at a limit unwinds through libraries that may leak a kilobyte, as a panic may in Rust. Memory
// that must not leak is counted: GrammarUsage.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}

namespace volley::text {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class HostileGrammars : public GrammarTest {
 protected:
  // No test measures time: what ends a grammar here is its fuel.
  static constexpr GrammarLimits kLimits = {int64_t{256} << 20, 600'000};

  static GrammarSpec spec(const json& entry) {
    std::string text = entry.value("text", "");
    for (const json& part : entry.value("parts", json::array())) {
      for (int i = 0; i < part.at(1).get<int>(); ++i) text += part.at(0).get<std::string>();
    }
    const std::string kind = entry.at("kind");
    if (kind == "choice") return choice({text});
    if (kind == "regex") return regex(text);
    if (kind == "ebnf") return ebnf(text);
    return kind == "lark" ? lark(text) : GrammarSpec{Kind::kJsonSchema, text, {}};
  }

  // Blocks of drafted tokens along a random text, as a request asks for them: until the text ends, or the grammar.
  static Status walk_blocks(Matcher& matcher, int blocks) {
    std::mt19937 random(5);
    std::vector<TokenId> drafted;
    for (int block = 0; block < blocks; ++block) {
      std::vector<uint32_t> words((drafted.size() + 1) * kMaskWords);
      std::vector<TextEnd> ends(drafted.size() + 1);
      const auto filled = matcher.masks_along(drafted, words.data(), kMaskWords, ends.data());
      if (!filled.status.ok()) return filled.status;
      const auto last = static_cast<size_t>(filled.rows - 1);
      const auto* row = words.data() + last * kMaskWords;
      const auto allowed = Row{{row, row + kMaskWords}, ends[last]}.tokens();
      drafted.resize(last);
      if (allowed.empty()) return {};
      drafted.push_back(allowed[random() % allowed.size()]);
      VOLLEY_RETURN_IF_ERROR(matcher.commit(drafted));
      drafted.assign(3, drafted.back());
    }
    return {};
  }
};

TEST_F(HostileGrammars, AreRefusedOrRunWithinTheirLimits) {
  std::ifstream file("tests/data/hostile/grammars.jsonl");
  std::string line;
  int entries = 0;
  for (; std::getline(file, line); ++entries) {
    const json entry = json::parse(line);
    SCOPED_TRACE(entry.at("kind").get<std::string>() + ": " + entry.at("name").get<std::string>());
    const std::string expect = entry.at("expect");
    auto made = tokenizer_->grammars()->compile(spec(entry), kLimits);
    if (!made.ok()) {
      EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument) << made.error().message;
      EXPECT_THAT(made.error().message, HasSubstr(entry.value("says", "")));
      EXPECT_THAT(made.error().message, Not(HasSubstr("backtrace")));
      if (entry.at("kind") != "lark") {
        EXPECT_THAT(made.error().message, Not(HasSubstr("lark")));
      }
      EXPECT_LT(made.error().message.size(), 1'000u);
    } else {
      EXPECT_NE(expect, "refused");
      const Status status = walk_blocks(**made, 12);
      if (!status.ok()) {
        EXPECT_THAT(status.error().message, HasSubstr("the grammar"));
      }
    }
    EXPECT_LE(tokenizer_->grammars()->usage().bytes, kLimits.memory_bytes);
  }
  EXPECT_GE(entries, 60);
}

// The cache is bounded in bytes: unused grammars are evicted, which only costs time.
TEST_F(HostileGrammars, KeptGrammarsTakeHalfOfTheMemoryAtMost) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const GrammarLimits limits = {int64_t{64} << 20, 600'000};
  for (int i = 0; i < 40; ++i) {
    auto made = grammars.compile(schema({{"type", "integer"}, {"multipleOf", 9'973 - i}}), limits);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE(walk_blocks(**made, 6).ok());
    made = std::unique_ptr<Matcher>();
    EXPECT_LE(grammars.usage().bytes, limits.memory_bytes);
  }
  ASSERT_TRUE(grammars.compile(regex("a"), limits).ok());
  EXPECT_LE(grammars.usage().bytes, limits.memory_bytes / 2);
}

// Grammars in use count too. When they fill the limit, others are refused, but only for the moment.
TEST_F(HostileGrammars, MatchersInUseCount) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const GrammarLimits limits = {int64_t{48} << 20, 600'000};
  const int64_t before = grammars.usage().bytes;
  std::vector<std::unique_ptr<Matcher>> running;
  Status refused;
  while (refused.ok() && running.size() < 10'000) {
    auto made = grammars.compile(schema({{"type", "integer"}, {"multipleOf", 9'973}}), limits);
    if (made.ok()) {
      running.push_back(std::move(*made));
    } else {
      refused = made.error();
    }
  }
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("try again later"));
  EXPECT_LE(grammars.usage().bytes, limits.memory_bytes + (int64_t{4} << 20));
  running.clear();
  EXPECT_TRUE(grammars.compile(regex("b"), limits).ok());
  EXPECT_LE(grammars.usage().bytes, before + limits.memory_bytes / 2);
}

// States that matchers have computed are kept once for all matchers, and later ones begin with them.
TEST_F(HostileGrammars, WhatMatchersLearnIsKeptOnce) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const auto usage = [&] { return grammars.usage().bytes; };
  const GrammarSpec words = regex("([a-z]{2,5}[0-9]? ){3,40}end");
  auto first = matcher(words);
  const int64_t at_the_start = usage();
  ASSERT_TRUE(walk_blocks(*first, 40).ok());
  const int64_t learned = usage() - at_the_start;
  ASSERT_GT(learned, 0);
  first = nullptr;
  const int64_t kept = usage();
  std::vector<std::unique_ptr<Matcher>> many;
  for (int i = 0; i < 20; ++i) many.push_back(matcher(words));
  const int64_t running = usage();
  for (const auto& one : many) ASSERT_TRUE(walk_blocks(*one, 40).ok());
  EXPECT_LT(usage() - running, std::ssize(many) * learned / 2) << "they learned it all again";
  many.clear();
  EXPECT_LE(usage(), kept);
}

// A parser keeps memory of the longest text that it has read, so others do not begin with a copy of it.
TEST_F(HostileGrammars, ALongTextIsNotKept) {
  constexpr int64_t kLearned = int64_t{2} << 20;  // as textkit has it
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  auto one = matcher(lark("start: (WORD \" \")*\nWORD: /[a-z]+/"));
  const int64_t at_the_start = grammars.usage().bytes;
  for (int i = 0; i < 1'000 && grammars.usage().bytes < at_the_start + 2 * kLearned; ++i) {
    ASSERT_TRUE(walk_blocks(*one, 100).ok());
  }
  ASSERT_GE(grammars.usage().bytes, at_the_start + 2 * kLearned) << "the text was not long enough";
  one = nullptr;
  EXPECT_LE(grammars.usage().bytes, at_the_start + kLearned);
}

TEST_F(HostileGrammars, CompilingHasALimitOfTime) {
  json large;
  for (int i = 0; i < 4'000; ++i) large["properties"]["property" + std::to_string(i)] = {{"type", "string"}};
  const auto made = tokenizer_->grammars()->compile({Kind::kJsonSchema, large.dump(), {}}, {int64_t{1} << 30, 1});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("longer than 1 ms"));
}

// Numbers whose multiples have a large automaton each: all together they take minutes and many gigabytes. `first`:
// makes the grammar differ from cached ones.
GrammarSpec endless(int first) {
  json schema = {{"type", "object"}};
  for (int i = 0; i < 4'000; ++i) {
    const std::string name = "p" + std::to_string(i);
    schema["properties"][name] = {{"type", "integer"}, {"multipleOf", 160'001 + 2 * ((first + i * 37) % 19'999)}};
    schema["required"].push_back(name);
  }
  return {GrammarSpec::Kind::kJsonSchema, schema.dump(), {}};
}

// Waits until all abandoned work is freed.
void expect_soon(const GrammarCompiler& grammars, int64_t bytes) {
  for (int i = 0; i < 600 && grammars.usage().bytes > bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LE(grammars.usage().bytes, bytes);
}

// The limit of memory holds during a compilation, not only for its result.
TEST_F(HostileGrammars, CompilingHasALimitOfMemory) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const int64_t before = grammars.usage().bytes;
  const auto made = grammars.compile(endless(0), {int64_t{256} << 20, 600'000});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(made.error().message, HasSubstr("more than 64 MB"));
  EXPECT_LE(grammars.usage().bytes, before);
}

// A compilation abandoned at the limit of time ends, and its place becomes free: there are fewer places than
// compilations here.
TEST_F(HostileGrammars, CompilingEndsAtItsLimitOfTime) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const int64_t before = grammars.usage().bytes;
  for (int i = 0; i < 10; ++i) {
    const auto made = grammars.compile(endless(i), {int64_t{8} << 30, 300});
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message, HasSubstr("longer than 300 ms"));
  }
  expect_soon(grammars, before);
  EXPECT_TRUE(grammars.compile(regex("after[0-9]"), kLimits).ok());
}

TEST_F(HostileGrammars, CompilingEndsWhenTheCallerHasLeft) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const int64_t before = grammars.usage().bytes;
  const std::atomic<bool> cancelled{true};
  const auto made = grammars.compile(endless(100), {int64_t{8} << 30, 600'000, false, &cancelled});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kCancelled);
  expect_soon(grammars, before);
}

// A limit may end a compilation anywhere, also while the libraries make data that all compilations share.
TEST_F(HostileGrammars, WhatEndsAtALimitSpoilsNothingForOthers) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const auto refers = schema({{"$defs", {{"a", {{"$ref", "http://json-schema.org/draft-07/schema#"}}}}},
                              {"type", "object"},
                              {"properties", {{"x", {{"type", "string"}, {"format", "date-time"}}}}}});
  int ended = 0;
  for (int64_t memory = 1 << 12; memory < 1 << 22; memory += memory / 8) {
    const auto made = grammars.compile(refers, {memory, 600'000});
    ended += made.ok() ? 0 : 1;
  }
  EXPECT_GT(ended, 20);
  const auto made = grammars.compile(refers, kLimits);
  EXPECT_TRUE(made.ok()) << made.error().message;
}

// A call that finds all places taken waits for one, unless it was told not to or its caller has left. A call for a
// compiled grammar does not wait.
TEST_F(HostileGrammars, OthersWaitForAPlace) {
  const GrammarCompiler& grammars = *tokenizer_->grammars();
  const GrammarSpec known = regex("known[0-9]");
  EXPECT_FALSE(grammars.is_quick(known));
  ASSERT_TRUE(grammars.compile(known, kLimits).ok());
  EXPECT_TRUE(grammars.is_quick(known));
  EXPECT_TRUE(grammars.is_quick(regex(std::string(300'000, 'a')))) << "is refused by its size";

  std::atomic<bool> hold_no_more{false};
  std::atomic<int> waited{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kMostCompiling; ++i) {
    threads.emplace_back([&, i] {
      EXPECT_FALSE(grammars.compile(endless(200 + i), {int64_t{64} << 30, 600'000, false, &hold_no_more}).ok());
    });
  }
  while (grammars.usage().compiling < kMostCompiling) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (int i = 0; i < 2 * kMostCompiling; ++i) {
    threads.emplace_back([&, i] {
      const auto made = grammars.compile(regex("waits[0-9]{" + std::to_string(i / 2 + 1) + "}"), kLimits);
      EXPECT_TRUE(made.ok()) << made.error().message;
      ++waited;
    });
  }
  EXPECT_TRUE(grammars.compile(known, kLimits).ok());
  const auto error = [&](const GrammarLimits& limits) { return grammars.compile(regex("new"), limits).error().code; };
  const std::atomic<bool> left{true};
  EXPECT_EQ(error({kLimits.memory_bytes, kLimits.compile_ms, false, &left}), ErrorCode::kCancelled);
  EXPECT_EQ(error({kLimits.memory_bytes, kLimits.compile_ms, true}), ErrorCode::kResourceExhausted);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(waited, 0);
  hold_no_more = true;
  for (std::thread& thread : threads) thread.join();
}

// A stopped matcher fails at once, and leaves others of its grammar as they are.
TEST_F(HostileGrammars, AStoppedMatcherFailsAlone) {
  ASSERT_TRUE(walk_blocks(*matcher(regex("[a-z]+")), 3).ok());  // which the others begin as copies of
  const auto stopped = matcher(regex("[a-z]+")), other = matcher(regex("[a-z]+"));
  const Row before = row(*other);
  stopped->stop();
  std::vector<uint32_t> words(kMaskWords);
  TextEnd end;
  const auto filled = stopped->masks_along({}, words.data(), kMaskWords, &end);
  EXPECT_FALSE(filled.status.ok());
  EXPECT_EQ(filled.rows, 0);
  EXPECT_EQ(row(*other), before);
  EXPECT_EQ(row(*matcher(regex("[a-z]+"))), before);
}

// The error is about the user's own pattern.
TEST_F(HostileGrammars, RegexErrorsNameThePlaceInThePattern) {
  EXPECT_THAT(error_of(regex("a(b")), HasSubstr("at character 2: unclosed group"));
  EXPECT_THAT(error_of(regex("é(b")), HasSubstr("at character 2"));
  EXPECT_THAT(error_of(regex("a\\bc")), HasSubstr("at its ends alone"));
}

}  // namespace
}  // namespace volley::text
