// What a text must be, token by token: grammars compiled for a tokenizer, and matchers that say which tokens may
// follow. The C++ face of textkit's grammars (Rust: llguidance).
#pragma once

#include <volley/engine.h>
#include <volley/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

namespace volley::text {

// Whether a text may end at a position.
enum class TextEnd : uint8_t {
  kNo,    // it is incomplete
  kMay,   // it is complete, and more may follow
  kMust,  // it is complete, and nothing may follow: no token is allowed
};

// Where one text stands in its grammar. One thread at a time, but for stop().
class Matcher {
 public:
  virtual ~Matcher() = default;

  // The masks of the position after the committed tokens and of those after each drafted token. Row i of `words`
  // ([drafted + 1][mask_words], token v is bit v % 32 of word v / 32, 1 = allowed) belongs to the position after i of
  // them; ends[i] (drafted + 1 of them) says whether the text may end there. The ids that end a text are the caller's
  // knowledge: they are in no mask. Rows are filled up to the first drafted token that the grammar refuses, or where
  // the text must end. What is filled depends on the grammar and the tokens alone, not on earlier calls.
  struct Filled {
    int32_t rows = 0;
    Status status;  // kInvalidArgument: on the text of the row after these the grammar has grown too complex
  };
  virtual Filled masks_along(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words, TextEnd* ends) = 0;

  // Tokens that are now part of the text, not the id that ends it. Errors as above, or tokens that the masks refuse.
  virtual Status commit(std::span<const TokenId> tokens) = 0;

  // Any thread, while another call runs or not: that call and all later ones fail soon.
  virtual void stop() = 0;
};

struct GrammarLimits {
  int64_t memory_bytes = int64_t{1} << 30;       // of all compiled grammars and matchers of the compiler together
  int compile_ms = 2'000;                        // for one grammar
  bool at_once = false;                          // kResourceExhausted rather than wait for others that compile
  const std::atomic<bool>* cancelled = nullptr;  // once true compile() soon answers kCancelled; borrowed for the call
};

// So many calls of compile() compile at once. A further one waits for one of these to end: who serves others, too, with
// the threads that call it leaves grammars that are not compiled yet to so many threads of their own.
inline constexpr int kMostCompiling = 4;

// What the grammars of a compiler take.
struct GrammarUsage {
  int64_t bytes = 0;     // compiled ones and matchers
  int64_t grammars = 0;  // compiled and kept
  int compiling = 0;     // under way
};

// Grammars of one tokenizer. Any thread. The tokens' tree is built by the first call of compile (about a second for a
// vocabulary of 150,000), and compiled grammars are kept for the requests that ask for the same.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;

  // A matcher at the start of the text. A `lead` that begins with the rule `whole` says what the whole output is: the
  // rule refers to the grammar's own text as `text`. kInvalidArgument says what is wrong with the grammar or which
  // limit it passes; kFailedPrecondition: a tokenizer whose tokens' bytes cannot be told. kResourceExhausted: matchers
  // take all the memory that the limits give, or it was to be at once. Ends at the limits, and what it took by then is
  // given back soon after.
  virtual Result<std::unique_ptr<Matcher>> compile(const GrammarSpec& grammar,
                                                   const GrammarLimits& limits = {}) const = 0;

  // Whether compile() would neither compile nor wait: it finds the grammar, or refuses it by its size.
  virtual bool is_quick(const GrammarSpec& grammar) const = 0;

  virtual GrammarUsage usage() const = 0;
};

}  // namespace volley::text
