// Byte-level BPE, as GPT-2 began it: text is cut into words (pre_tokenizer.h), a word starts as its bytes,
// and neighbours are joined in the order of the merge list.
#pragma once

#include <memory>

#include "src/tokenizer/tokenizer.h"

namespace wi {

std::unique_ptr<const Tokenizer> make_byte_bpe(Vocabulary vocabulary,
                                               Watch* watch);  // validated in what is common to all

}  // namespace wi
