// Unicode's normalisation forms (UAX #15), as Hugging Face's tokenizers computes them: utf8proc's data, but
// for characters whose combining class or decomposition is newer than Unicode 9. That library does not know
// them, so no model was trained on text in which they were touched.
#pragma once

#include <string>
#include <string_view>

#include "src/tokenizer/plain_trace.h"
#include "src/tokenizer/poll.h"

namespace wi {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

// Bytes that are no well-formed UTF-8 stay as they are, and nothing is composed across them. trace, if there
// is one: a character is plain if anything that it was made from is.
std::string to_form(std::string_view text, UnicodeForm form, Poll& poll, PlainTrace* trace = nullptr);

}  // namespace wi
