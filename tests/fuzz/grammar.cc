// Grammars and schemas: compiled, then asked for masks along a text.
#include "text/grammar.h"
#include "fuzz.h"
#include "text/text.h"

using namespace volley;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Kind = GrammarSpec::Kind;
  static constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kRegex, Kind::kEbnf, Kind::kLark, Kind::kChoice};
  static const auto tokenizer = *text::Tokenizer::load("models/pocket");
  const auto [kind, source] = fuzz::choose(data, size, 5);
  GrammarSpec spec{kKinds[kind], std::string(source), {}};
  if (kKinds[kind] == Kind::kChoice) spec.choices = {std::string(source)};
  auto made = tokenizer->grammars()->compile(spec, {int64_t{256} << 20, 60'000});
  if (!made.ok()) return 0;
  constexpr int32_t kWords = 64;
  for (int step = 0; step < 6; ++step) {
    uint32_t words[kWords] = {};
    text::TextEnd end{};
    if (!(*made)->masks_along({}, words, kWords, &end).status.ok()) break;
    TokenId token = 0;
    while (token < kWords * 32 && (words[token / 32] >> (token % 32) & 1) == 0) ++token;
    if (token == kWords * 32 || !(*made)->commit(std::span(&token, 1)).ok()) break;
  }
  return 0;
}
