// Characters of UTF-8 text as Python's str methods see them. A byte that is no UTF-8 counts as one character.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace wi::chat {

size_t character_length(std::string_view text, size_t at);  // bytes, 1 to 4
size_t character_start(std::string_view text,
                       size_t end);  // of the character that ends at `end`, which is > 0
size_t count_characters(std::string_view text);
size_t character_offset(std::string_view text, size_t from,
                        size_t characters);         // bytes; the end if there are fewer
char32_t code_point(std::string_view character);    // a lone byte: U+DC00 + byte, as Python's surrogateescape
void append_utf8(std::string& out, char32_t code);  // at most U+10FFFF

bool is_space(char32_t code);       // str.isspace, what str.strip() strips
bool is_line_break(char32_t code);  // where str.splitlines() splits
bool is_printable(char32_t code);   // what repr() shows as it is
int decimal_digit(char32_t code);   // 0 to 9 in any script, what int() takes; -1: none
bool is_cased(char32_t code);
bool is_case_ignorable(char32_t code);  // of a character that is not cased
enum class Case { upper, lower, title };
void append_in_case(std::string& out, char32_t code, Case wanted);  // one to three characters

}  // namespace wi::chat
