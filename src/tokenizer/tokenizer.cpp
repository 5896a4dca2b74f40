// Tokenizer::create(): checks what the file said, then hands it to the model it names. And the calls that do
// not depend on the model (tokenizer_base.h).
#include "src/tokenizer/tokenizer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "src/error.h"
#include "src/files/watch.h"
#include "src/tokenizer/byte_bpe.h"
#include "src/tokenizer/char_bpe.h"
#include "src/tokenizer/sentencepiece.h"
#include "src/tokenizer/tokenizer_base.h"

namespace wi {
namespace {

// Those of real models have some hundreds.
constexpr size_t kLongestToken = size_t{64} << 10;
// All those that are looked for in text, together; searches keep some fifty times that. Models of speech have 1 MB.
constexpr size_t kMostAddedBytes = size_t{8} << 20;

void validate(Vocabulary& vocabulary);
void check_id(const Vocabulary& vocabulary, const char* field, int64_t index, int32_t id);

}  // namespace

std::unique_ptr<const Tokenizer> Tokenizer::create(Vocabulary vocabulary, Watch* watch) {
  validate(vocabulary);
  switch (vocabulary.model) {
    case Vocabulary::Model::sentencepiece:
      return make_sentencepiece(std::move(vocabulary), watch);
    case Vocabulary::Model::char_bpe:
      return make_char_bpe(std::move(vocabulary), watch);
    default:
      return make_byte_bpe(std::move(vocabulary), watch);
  }
}

std::vector<AddedToken> added_by_kind(const Vocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (size_t i = 0; i < vocabulary.kinds.size(); ++i) {
    const TokenKind kind = vocabulary.kinds[i];
    const bool special = kind == TokenKind::control || kind == TokenKind::unknown;
    if (!special && kind != TokenKind::user_defined) continue;
    AddedToken token;
    token.token = static_cast<int32_t>(i);
    token.special = special;
    added.push_back(token);
  }
  return added;
}

bool Tokenizer::ends_generation(int32_t token) const {
  const std::vector<int32_t>& ends = vocabulary().end_of_generation;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

TokenizerBase::TokenizerBase(Vocabulary vocabulary, Watch* watch)
    : vocabulary_(std::move(vocabulary)),
      normalizer_(vocabulary_.normalizer),
      rewrites_(vocabulary_.rewrites),
      specials_(vocabulary_, normalizer_, false, watch),
      normalized_specials_(vocabulary_, normalizer_, true, watch),
      marks_(vocabulary_, watch) {
  ids_.reserve(vocabulary_.tokens.size());
  // Padded vocabularies repeat a text now and then: the first token that has it is the one meant.
  for (size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
    tick(watch, i);
    ids_.insert(vocabulary_.tokens[i], static_cast<int32_t>(i));
  }
}

std::vector<int32_t> TokenizerBase::encode(std::string_view text, bool add_bos, bool parse_special,
                                           const std::atomic<bool>* cancel,
                                           const std::function<void()>* pause) const {
  return encode_parts(text, add_bos, {parse_special, {}, 0, {}}, Poll(cancel, pause));
}

std::vector<int32_t> TokenizerBase::encode_beside(std::string_view text, std::span<const TextRange> plain,
                                                  std::string_view literals) const {
  Poll poll(nullptr);
  const std::vector<int32_t> marks = marks_.find(literals, poll);
  std::vector<int32_t> bound;
  std::merge(marks.begin(), marks.end(), joined_specials_.begin(), joined_specials_.end(),
             std::back_inserter(bound));
  return encode_parts(text, false, {true, plain, 0, bound}, poll);
}

// As the library tokenizers goes about it: tokens of the text as it is come first, what lies between them is
// normalised, then come those of normalised text, and the model gets the rest.
std::vector<int32_t> TokenizerBase::encode_parts(std::string_view text, bool add_bos,
                                                 const ControlTokens& control, Poll poll) const {
  check(text.size() <= std::numeric_limits<int32_t>::max(), WI_E_ARGUMENT, "text has ", text.size(),
        " bytes, at most 2147483647 are taken at once");
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 16);
  if (add_bos && vocabulary_.add_bos) ids.push_back(vocabulary_.bos);
  if (text.empty()) return ids;
  std::deque<std::string> buffers;
  RewriteCall call = RewriteCall::of_text(text.size(), poll);
  const auto found = [&](int32_t token) { ids.push_back(token); };
  const std::unique_ptr<Encoder> encoder =
      make_encoder(text.size(), control.plain.empty() ? Withheld() : control.words, poll);
  const auto between = [&](size_t begin, size_t end) {
    std::string_view normal = text.substr(begin, end - begin);
    std::vector<TextRange> moved;
    ControlTokens inside{control.parsed, control.plain, begin, control.words};
    if (!normalizer_.empty()) {
      moved = control.plain_within(begin, end);
      normal = normalizer_.apply(normal, begin == 0, &buffers.emplace_back(), call,
                                 control.plain.empty() ? nullptr : &moved);
      inside = {control.parsed, moved, 0, control.words};
    }
    normalized_specials_.split(
        normal, inside, poll,
        [&](size_t from, size_t to) {
          std::string_view rest = normal.substr(from, to - from);
          if (!rewrites_.empty())
            rest = rewrites_.apply(rest, begin == 0 && from == 0, &buffers.emplace_back(), call);
          encoder->append(rest, ids);
        },
        found);
  };
  specials_.split(text, control, poll, between, found);
  return ids;
}

std::string_view TokenizerBase::piece(int32_t token, bool keep_special) const {
  const size_t i = checked(token);
  if (!keep_special && is_special(token)) return {};
  return std::string_view(piece_bytes_).substr(piece_offsets_[i], piece_offsets_[i + 1] - piece_offsets_[i]);
}

// A space that encode() put in front of the text, or behind a special token, goes again.
std::string TokenizerBase::decode(std::span<const int32_t> tokens, bool keep_special) const {
  std::string text;
  text.reserve(tokens.size() * 4);
  bool own_space = vocabulary_.add_space_prefix;
  for (int32_t token : tokens) {
    std::string_view bytes = piece(token, keep_special);
    if (splits_text(token)) {
      text += bytes;
      if (!bytes.empty()) own_space = vocabulary_.space_after_special;
      continue;
    }
    if (own_space && bytes.starts_with(' ')) bytes.remove_prefix(1);
    own_space = false;
    text += bytes;
  }
  return text;
}

int32_t TokenizerBase::find(std::string_view token) const {
  const int32_t* found = ids_.find(token);
  return found ? *found : -1;
}

bool TokenizerBase::is_special(int32_t token) const {
  const TokenKind kind = vocabulary_.kinds[checked(token)];
  return kind == TokenKind::control || kind == TokenKind::unknown || kind == TokenKind::unused;
}

bool TokenizerBase::splits_text(int32_t token) const {
  return is_special(token) || vocabulary_.kinds[checked(token)] == TokenKind::user_defined;
}

int32_t TokenizerBase::unknown_for(unsigned char byte) const {
  check(vocabulary_.unknown >= 0, WI_E_ARGUMENT, "text has a byte of value ", int{byte},
        ", which is no UTF-8 there, and for which this vocabulary has no token");
  return vocabulary_.unknown;
}

void TokenizerBase::add_piece(std::string_view bytes) {
  piece_bytes_ += bytes;
  piece_offsets_.push_back(piece_bytes_.size());
}

size_t TokenizerBase::checked(int32_t token) const {
  check(token >= 0 && static_cast<size_t>(token) < vocabulary_.tokens.size(), WI_E_ARGUMENT, "token is ",
        token, ", the vocabulary has ", vocabulary_.tokens.size());
  return static_cast<size_t>(token);
}

namespace {

void validate(Vocabulary& vocabulary) {
  const size_t count = vocabulary.tokens.size();
  check(count > 0, WI_E_FORMAT, "tokens is empty");
  check(count <= std::numeric_limits<int32_t>::max(), WI_E_FORMAT, "tokens has ", count, " entries");
  if (vocabulary.kinds.empty()) vocabulary.kinds.assign(count, TokenKind::normal);
  for (size_t i = 0; i < count; ++i)
    check(vocabulary.tokens[i].size() <= kLongestToken, WI_E_UNSUPPORTED, "tokens[", i, "] has ",
          vocabulary.tokens[i].size(), " bytes, at most ", kLongestToken, " are supported");
  check(vocabulary.kinds.size() == count, WI_E_FORMAT, "kinds has ", vocabulary.kinds.size(),
        " entries, tokens has ", count);
  for (size_t i = 0; i < count; ++i) {
    const auto kind = static_cast<int32_t>(vocabulary.kinds[i]);
    check(kind >= 1 && kind <= 6, WI_E_FORMAT, "kinds[", i, "] is ", kind, ", not 1 to 6");
  }
  check(vocabulary.scores.empty() || vocabulary.scores.size() == count, WI_E_FORMAT, "scores has ",
        vocabulary.scores.size(), " entries, tokens has ", count);
  for (size_t i = 0; i < vocabulary.scores.size(); ++i)
    check(std::isfinite(vocabulary.scores[i]), WI_E_FORMAT, "scores[", i, "] is ", vocabulary.scores[i]);
  check_id(vocabulary, "bos", -1, vocabulary.bos);
  check_id(vocabulary, "eos", -1, vocabulary.eos);
  check_id(vocabulary, "unknown", -1, vocabulary.unknown);
  check(!vocabulary.add_bos || vocabulary.bos >= 0, WI_E_FORMAT, "add_bos is set, but there is no bos token");
  for (size_t i = 0; i < vocabulary.end_of_generation.size(); ++i) {
    check(vocabulary.end_of_generation[i] >= 0, WI_E_FORMAT, "end_of_generation[", i, "] is ",
          vocabulary.end_of_generation[i]);
    check_id(vocabulary, "end_of_generation", static_cast<int64_t>(i), vocabulary.end_of_generation[i]);
  }
  if (!vocabulary.added) vocabulary.added = added_by_kind(vocabulary);
  size_t bytes = 0;
  for (size_t i = 0; i < vocabulary.added->size(); ++i) {
    const int32_t id = (*vocabulary.added)[i].token;
    check(id >= 0, WI_E_FORMAT, "added[", i, "] is ", id);
    check_id(vocabulary, "added", static_cast<int64_t>(i), id);
    bytes += vocabulary.tokens[static_cast<size_t>(id)].size();
  }
  check(bytes <= kMostAddedBytes, WI_E_UNSUPPORTED, "control tokens and added ones have ", bytes,
        " bytes, at most ", kMostAddedBytes, " are supported");
}

void check_id(const Vocabulary& vocabulary, const char* field, int64_t index, int32_t id) {
  const std::string where = index < 0 ? field : concat(field, '[', index, ']');
  check(id >= -1 && id < static_cast<int64_t>(vocabulary.tokens.size()), WI_E_FORMAT, where, " is ", id,
        ", the vocabulary has ", vocabulary.tokens.size());
}

}  // namespace
}  // namespace wi
