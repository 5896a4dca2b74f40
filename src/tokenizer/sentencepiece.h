// SentencePiece-style BPE (Llama 2, Mistral): the whole text is one word with spaces written as U+2581, the
// pair that makes the best-scored token is joined first, and what is no token falls back to byte tokens.
#pragma once

#include <memory>

#include "src/tokenizer/tokenizer.h"

namespace wi {

std::unique_ptr<const Tokenizer> make_sentencepiece(Vocabulary vocabulary,
                                                    Watch* watch);  // validated in what is common to all

}  // namespace wi
