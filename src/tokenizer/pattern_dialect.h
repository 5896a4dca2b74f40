// Model files write their patterns for Oniguruma (Hugging Face's tokenizers). This rewrites one for PCRE2 so
// that it means the same, and refuses syntax for which that is not certain.
#pragma once

#include <string>
#include <string_view>

namespace wi {

// Throws WI_E_UNSUPPORTED naming the construct and its byte offset.
std::string to_pcre2(std::string_view pattern);

// A pattern, in both dialects, that matches this text and nothing else.
std::string quoted_pattern(std::string_view text);

}  // namespace wi
