// Makes the compiler of a tokenizer's grammars. For the .cc files of this folder.
#pragma once

#include <textkit.h>

#include <memory>

#include "text/grammar.h"

namespace volley::text {

// `tokenizer` must outlive the compiler's first successful call of compile().
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const textkit_tokenizer* tokenizer);

}  // namespace volley::text
