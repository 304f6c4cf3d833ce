#include "text/grammar.h"

#include <atomic>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "text/grammar_compiler.h"
#include "text/textkit_handle.h"

namespace volley::text {
namespace {

static_assert(static_cast<int>(TextEnd::kMay) == TEXTKIT_END_MAY &&
                  static_cast<int>(TextEnd::kMust) == TEXTKIT_END_MUST,
              "ends are passed through");

class TextkitMatcher final : public Matcher {
 public:
  explicit TextkitMatcher(textkit_matcher* handle) : handle_(handle), stop_(textkit_matcher_stop(handle)) {}
  ~TextkitMatcher() override {
    textkit_stop_free(stop_);
    textkit_matcher_free(handle_);
  }
  TextkitMatcher(const TextkitMatcher&) = delete;
  TextkitMatcher& operator=(const TextkitMatcher&) = delete;

  Filled masks_along(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words, TextEnd* ends) override {
    size_t rows = 0;
    OwnedBytes error;
    const textkit_status status =
        textkit_matcher_masks(handle_, drafted.data(), drafted.size(), words, static_cast<size_t>(mask_words),
                              reinterpret_cast<uint8_t*>(ends), &rows, error.out());
    Filled filled{static_cast<int32_t>(rows), {}};
    if (status != TEXTKIT_OK) filled.status = textkit_error(status, error);
    return filled;
  }

  Status commit(std::span<const TokenId> tokens) override {
    OwnedBytes error;
    const textkit_status status = textkit_matcher_commit(handle_, tokens.data(), tokens.size(), error.out());
    if (status != TEXTKIT_OK) return textkit_error(status, error);
    return {};
  }

  void stop() override { textkit_stop_now(stop_); }

 private:
  textkit_matcher* handle_;
  textkit_stop* stop_;
};

textkit_grammar_kind kind_of(GrammarSpec::Kind kind) {
  switch (kind) {
    case GrammarSpec::Kind::kJsonObject:
      return TEXTKIT_GRAMMAR_JSON_OBJECT;
    case GrammarSpec::Kind::kJsonSchema:
      return TEXTKIT_GRAMMAR_JSON_SCHEMA;
    case GrammarSpec::Kind::kRegex:
      return TEXTKIT_GRAMMAR_REGEX;
    case GrammarSpec::Kind::kChoice:
      return TEXTKIT_GRAMMAR_CHOICE;
    case GrammarSpec::Kind::kLark:
      return TEXTKIT_GRAMMAR_LARK;
    case GrammarSpec::Kind::kEbnf:
      return TEXTKIT_GRAMMAR_EBNF;
  }
  return TEXTKIT_GRAMMAR_JSON_OBJECT;
}

// The grammar as textkit takes it, while both live.
class GivenGrammar {
 public:
  explicit GivenGrammar(const GrammarSpec& spec) {
    for (const std::string& choice : spec.choices) choices_.push_back(view(choice));
    given_ = {kind_of(spec.kind), view(spec.text), choices_.data(), choices_.size(), view(spec.lead)};
  }
  GivenGrammar(const GivenGrammar&) = delete;
  GivenGrammar& operator=(const GivenGrammar&) = delete;

  const textkit_grammar* get() const { return &given_; }

 private:
  std::vector<textkit_view> choices_;
  textkit_grammar given_{};
};

const char* what(GrammarSpec::Kind kind) {
  switch (kind) {
    case GrammarSpec::Kind::kJsonObject:
    case GrammarSpec::Kind::kJsonSchema:
      return "The JSON schema cannot be used: ";
    case GrammarSpec::Kind::kRegex:
      return "The regular expression cannot be used: ";
    case GrammarSpec::Kind::kChoice:
      return "The choices cannot be used: ";
    case GrammarSpec::Kind::kLark:
    case GrammarSpec::Kind::kEbnf:
      break;
  }
  return "The grammar cannot be used: ";
}

textkit_grammar_limits given_limits(const GrammarLimits& limits) {
  return {static_cast<uint64_t>(limits.memory_bytes), static_cast<uint32_t>(limits.compile_ms), limits.at_once,
          cancel_of(limits.cancelled)};
}

Error compile_error(textkit_status status, const OwnedBytes& error, GrammarSpec::Kind kind) {
  if (status == TEXTKIT_EXHAUSTED || status == TEXTKIT_CANCELLED) return textkit_error(status, error);
  return textkit_error(status, error, what(kind));
}

class TextkitGrammars final : public GrammarCompiler {
 public:
  explicit TextkitGrammars(const textkit_tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  ~TextkitGrammars() override { textkit_grammars_free(made_); }
  TextkitGrammars(const TextkitGrammars&) = delete;
  TextkitGrammars& operator=(const TextkitGrammars&) = delete;

  Result<std::unique_ptr<Matcher>> compile(const GrammarSpec& grammar, const GrammarLimits& limits) const override {
    static_assert(kMostCompiling == TEXTKIT_MOST_COMPILING);
    VOLLEY_ASSIGN(const textkit_grammars* grammars, handle());
    textkit_matcher* matcher = nullptr;
    const textkit_grammar_limits given = given_limits(limits);
    OwnedBytes error;
    const textkit_status status =
        textkit_grammars_compile(grammars, GivenGrammar(grammar).get(), &given, &matcher, error.out());
    if (status != TEXTKIT_OK) return compile_error(status, error, grammar.kind);
    return std::unique_ptr<Matcher>(std::make_unique<TextkitMatcher>(matcher));
  }

  Result<std::vector<std::string>> check(const GrammarSpec& grammar, const GrammarLimits& limits) const override {
    VOLLEY_ASSIGN(const textkit_grammars* grammars, handle());
    const textkit_grammar_limits given = given_limits(limits);
    OwnedBytes notes, error;
    const textkit_status status =
        textkit_grammars_check(grammars, GivenGrammar(grammar).get(), &given, notes.out(), error.out());
    if (status != TEXTKIT_OK) return compile_error(status, error, grammar.kind);
    std::vector<std::string> lines;
    std::istringstream text(notes.str());
    for (std::string line; std::getline(text, line);) lines.push_back(std::move(line));
    return lines;
  }

  bool is_quick(const GrammarSpec& grammar) const override {
    const textkit_grammars* grammars = made_;
    if (grammars == nullptr) return false;
    return textkit_grammars_is_quick(grammars, GivenGrammar(grammar).get());
  }

  GrammarUsage usage() const override {
    const textkit_grammars* grammars = made_;
    if (grammars == nullptr) return {};
    const textkit_grammar_usage usage = textkit_grammars_usage(grammars);
    return {static_cast<int64_t>(usage.bytes), static_cast<int64_t>(usage.grammars), static_cast<int>(usage.compiling)};
  }

 private:
  Result<const textkit_grammars*> handle() const {
    if (const textkit_grammars* grammars = made_) return grammars;
    const std::lock_guard lock(mutex_);
    if (made_ == nullptr) {
      textkit_grammars* grammars = nullptr;
      OwnedBytes error;
      const textkit_status status = textkit_grammars_new(tokenizer_, &grammars, error.out());
      if (status != TEXTKIT_OK) {
        return textkit_error(status, error, "This model's tokenizer cannot be used with grammars: ");
      }
      made_ = grammars;
    }
    return made_.load();
  }

  const textkit_tokenizer* tokenizer_;
  mutable std::mutex mutex_;  // held while made_ is being made
  mutable std::atomic<textkit_grammars*> made_{nullptr};
};

}  // namespace

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const textkit_tokenizer* tokenizer) {
  return std::make_unique<TextkitGrammars>(tokenizer);
}

}  // namespace volley::text
