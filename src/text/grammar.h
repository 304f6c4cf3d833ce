// Grammars that constrain a text token by token, compiled for a tokenizer, and matchers that compute the allowed next
// tokens. The C++ face of textkit's grammars (Rust: llguidance).
#pragma once

#include <volley/engine.h>
#include <volley/result.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace volley::text {

// Whether a text may end at a position.
enum class TextEnd : uint8_t {
  kNo,    // it is incomplete
  kMay,   // it is complete, and more may follow
  kMust,  // it is complete, and nothing may follow: no token is allowed
};

// One text's state in its grammar. One thread at a time, except for stop().
class Matcher {
 public:
  virtual ~Matcher() = default;

  // The masks of the position after the committed tokens and of those after each drafted token. Row i of `words`
  // ([drafted + 1][mask_words], token v is bit v % 32 of word v / 32, 1 = allowed) belongs to the position after i of
  // them; ends[i] (drafted + 1 of them) says whether the text may end there. Only the caller knows the ids that end a
  // text: they are in no mask. Rows are filled up to the first drafted token that the grammar refuses, or where the
  // text must end. The masks depend only on the grammar and the tokens, not on earlier calls.
  struct Filled {
    int32_t rows = 0;
    Status status;  // kInvalidArgument: on the text of the row after these the grammar has grown too complex
  };
  virtual Filled masks_along(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words, TextEnd* ends) = 0;

  // Commits tokens to the text, without the id that ends it. Errors as above, or for tokens that the masks refuse.
  virtual Status commit(std::span<const TokenId> tokens) = 0;

  // From any thread, also during another call: that call and all later ones fail soon.
  virtual void stop() = 0;
};

struct GrammarLimits {
  int64_t memory_bytes = int64_t{1} << 30;       // bytes of all the compiler's grammars and matchers together
  int compile_ms = 2'000;                        // for one grammar
  bool at_once = false;                          // kResourceExhausted rather than wait for others that compile
  const std::atomic<bool>* cancelled = nullptr;  // once true compile() soon answers kCancelled; borrowed for the call
};

// So many calls of compile() run at once; a further one waits until one ends. A server should therefore compile new
// grammars only on so many threads of their own, so that other threads stay free for other work.
inline constexpr int kMostCompiling = 4;

// The memory and number of a compiler's grammars.
struct GrammarUsage {
  int64_t bytes = 0;     // compiled ones and matchers
  int64_t grammars = 0;  // compiled and kept
  int compiling = 0;     // under way
};

// Grammars of one tokenizer. Any thread. The tokens' tree is built by the first call of compile (about a second for a
// vocabulary of 150,000), and compiled grammars are kept for later requests with the same grammar.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;

  // A matcher at the start of the text. A `lead` that begins with the rule `whole` describes the whole output: the rule
  // refers to the grammar's own text as `text`. kInvalidArgument says what is wrong with the grammar or which limit it
  // exceeds; kFailedPrecondition: the bytes of the tokenizer's tokens cannot be determined. kResourceExhausted:
  // matchers take all the permitted memory, or the call must not wait and no place is free. A compilation ends at the
  // limits; its memory is given back soon after.
  virtual Result<std::unique_ptr<Matcher>> compile(const GrammarSpec& grammar,
                                                   const GrammarLimits& limits = {}) const = 0;

  // Compiles and keeps the grammar like compile(). Returns sentences on parts that are interpreted otherwise than the
  // grammar says; mostly none.
  virtual Result<std::vector<std::string>> check(const GrammarSpec& grammar,
                                                 const GrammarLimits& limits = {}) const = 0;

  // Whether compile() would return without compiling or waiting: the grammar is kept, or is refused for its size.
  virtual bool is_quick(const GrammarSpec& grammar) const = 0;

  virtual GrammarUsage usage() const = 0;
};

}  // namespace volley::text
