// BPE over characters (Llama 2, Mistral, Gemma as tokenizer.json writes them): spaces were rewritten to
// U+2581, a word starts as its characters, and neighbours are joined in the order of the merge list. A
// character that is no token becomes the tokens of its bytes, or else is unknown.
#pragma once

#include <memory>

#include "src/tokenizer/tokenizer.h"

namespace wi {

std::unique_ptr<const Tokenizer> make_char_bpe(Vocabulary vocabulary,
                                               Watch* watch);  // validated in what is common to all

// The byte that "<0xNN>" stands for; -1 for any other text.
int byte_of(std::string_view token);

}  // namespace wi
