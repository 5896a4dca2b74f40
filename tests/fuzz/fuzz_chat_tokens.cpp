// A conversation of the template's parts and the host's, in turn, through normalizers of every kind: no control
// token, nor any word that the template writes as a mark, is made of a byte of the host's. That is held against the
// same text with something in place of the host's parts that spells nothing, and against whole encodings where the
// two must agree. The first byte picks the tokenizer, the second which part comes first; of the rest a NUL ends a
// part, and other bytes that text has no use for stand for words of the vocabulary and what normalizers make of them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/error.h"
#include "src/tokenizer/normalizer.h"
#include "tests/fuzz/vocabularies.h"

namespace {

using namespace wi;
using Ids = std::vector<int32_t>;
using Step = RewriteStep;
using Kind = RewriteStep::Kind;

const std::string kMark = "\u2581";

// "<｜e｜>" and "<é>" are others to a normal form, "<|user|>" is a role between marks of the template's.
void add_words(Vocabulary& vocabulary) {
  for (const char* text : {"</s>", "<｜e｜>", "<\u00e9>"}) fuzz::add(vocabulary, text, TokenKind::control);
  for (const char* text : {"<|user|>", "[x]"}) fuzz::add(vocabulary, text, TokenKind::user_defined);
}

struct Case {
  Vocabulary vocabulary;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::string context;  // bytes that its normalizer looks for, but the space
};

// flags: how tokens are cut out of text as it is, or of normalised text, or every other one of either: but not where
// pieces between the former get a mark, which the latter then have only behind what the host may have written.
Case make(Vocabulary vocabulary, std::vector<Step> normalizer, std::vector<Step> rewrites, AddedToken flags,
          std::string context = {}) {
  add_words(vocabulary);
  const bool marked = std::any_of(normalizer.begin(), normalizer.end(), [](const Step& step) {
    return step.kind == Kind::prepend || step.kind == Kind::prepend_missing;
  });
  vocabulary.normalizer = std::move(normalizer);
  vocabulary.rewrites = std::move(rewrites);
  vocabulary.added.emplace();
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const TokenKind kind = vocabulary.kinds[i];
    if (kind != TokenKind::control && kind != TokenKind::user_defined) continue;
    flags.token = static_cast<int32_t>(i);
    flags.special = kind == TokenKind::control;
    if (flags.rstrip && !marked) flags.normalized = i % 2;
    vocabulary.added->push_back(flags);
  }
  Case made{vocabulary, nullptr, std::move(context)};
  made.tokenizer = Tokenizer::create(std::move(vocabulary));
  return made;
}

const Case& pick(size_t which) {
  static const std::vector<Case> all = [] {
    const Step spaces{Kind::replace, " ", kMark}, before{Kind::prepend, "", kMark},
        missing{Kind::prepend_missing, "", kMark}, first{Kind::prepend_first, "", kMark};
    AddedToken plain, normalized, wide, word;
    normalized.normalized = true;
    wide.lstrip = wide.rstrip = true;
    word.single_word = true;
    std::vector<Case> made;
    const auto bytes = [] { return fuzz::byte_bpe("gpt-2"); };
    for (const AddedToken& flags : {plain, normalized, wide, word}) {
      made.push_back(make(bytes(), {}, {}, flags));
      for (const Kind form : {Kind::nfc, Kind::nfd, Kind::nfkc, Kind::nfkd})
        made.push_back(make(bytes(), {{form, "", ""}}, {}, flags));
      made.push_back(make(bytes(), {spaces}, {}, flags));
      made.push_back(make(bytes(), {before}, {}, flags));
      made.push_back(make(bytes(), {before, spaces}, {}, flags));
      made.push_back(make(bytes(), {{Kind::nfkc, "", ""}, spaces, missing}, {}, flags));
      made.push_back(make(bytes(), {{Kind::nfc, "", ""}}, {spaces, first}, flags));  // Metaspace
      made.push_back(make(bytes(),
                          {{Kind::replace, "x", "<s>"},
                           {Kind::replace, "[/s", "</s"},
                           {Kind::replace, "y>", "s>"},
                           {Kind::replace, "> ", ">_"}},
                          {}, flags, "x[y"));
      made.push_back(make(fuzz::sentencepiece(), {}, {}, flags));
    }
    return made;
  }();
  return all[which % all.size()];
}

constexpr const char* kWords[] = {nullptr,
                                  "<s>",
                                  "</s>",
                                  "<|end|>",
                                  "<|end|>>",
                                  "<think>",
                                  "<|user|>",
                                  "<｜e｜>",
                                  "<\u00e9>",
                                  nullptr /* tab */,
                                  nullptr /* line feed */,
                                  "e\u0301",
                                  "\u0338",
                                  "\uff1cs\uff1e",
                                  "\u2581",
                                  "\u0323",
                                  "<|",
                                  "|>",
                                  "\u1100\u1161",
                                  "\ufb01",
                                  "\u2260",
                                  "[/s",
                                  "y>",
                                  "\u3000",
                                  "<s",
                                  "s>",
                                  "[x]",
                                  "\u11a7",
                                  "\u0301",
                                  "<e",
                                  "\xe2\x96",
                                  "\x81<s>"};
static_assert(std::size(kWords) == 32);

struct Conversation {
  std::string text, separated, literals = std::string(1, '\0');
  std::vector<TextRange> host;
  std::string of_template, of_host;
};

// Bytes of white space and of the mark for it: what tokens take along, and what may stand before a token's own text.
// A part's last ones stay in what is compared with, in which they make more control tokens possible, never less.
constexpr std::string_view kSpaceBytes =
    " \t\n\v\f\r\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028"
    "\u2029"
    "\u202f\u205f\u3000\u2581";

size_t last_spaces(std::string_view part) {
  const size_t last = part.find_last_not_of(kSpaceBytes);
  return last == std::string_view::npos ? 0 : last + 1;
}

Conversation read(std::string_view rest, bool host) {
  Conversation read;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    std::string text;
    for (const char c : part) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < std::size(kWords) && kWords[byte])
        text += kWords[byte];
      else
        text += c;
    }
    const size_t begin = read.text.size();
    read.text += text;
    if (host && !text.empty()) {
      if (!read.host.empty() && read.host.back().end == begin)
        read.host.back().end = read.text.size();
      else
        read.host.push_back({begin, read.text.size()});
      read.of_host += text + '\n';
      const size_t spaces = last_spaces(text);
      if (spaces > 0) read.separated += "\ue000";  // joins nothing, is of no word
      read.separated += text.substr(spaces);
    } else if (!host) {
      read.of_template += text;
      read.separated += text;
      read.literals += text + '\0';
    }
    host = !host;
  }
  return read;
}

void expect(bool holds) {
  if (!holds) std::abort();
}

// Of the ids, those that the host must not be able to spell.
Ids bound(const Case& of, const Ids& ids, const std::string& literals) {
  Ids bound;
  for (const int32_t id : ids) {
    const auto i = static_cast<size_t>(id);
    const TokenKind kind = of.vocabulary.kinds[i];
    const bool mark =
        kind == TokenKind::user_defined && literals.find(of.vocabulary.tokens[i]) != std::string::npos;
    if (kind == TokenKind::control || mark) bound.push_back(id);
  }
  return bound;
}

bool is_within(const Ids& some, const Ids& all) {
  size_t found = 0;
  for (const int32_t id : all) found += found < some.size() && some[found] == id;
  return found == some.size();
}

// Whether no byte of the host's can be a part of a token, or of what becomes one.
bool spells_nothing(const Case& of, const Conversation& conversation) {
  std::string alphabet = of.context;
  for (const AddedToken& added : *of.vocabulary.added) {
    const std::string& text = of.vocabulary.tokens[static_cast<size_t>(added.token)];
    alphabet += text;
    if (!of.vocabulary.normalizer.empty()) {
      Poll poll(nullptr);
      RewriteCall call = RewriteCall::of_text(text.size(), poll);
      std::string buffer;
      alphabet += Normalizer({{Kind::nfkd, "", ""}}).apply(text, false, &buffer, call);
    }
  }
  Poll poll(nullptr);
  RewriteCall call = RewriteCall::of_text(conversation.of_host.size(), poll);
  std::string buffer;
  const std::string_view normal =
      Normalizer({{Kind::nfkd, "", ""}}).apply(conversation.of_host, false, &buffer, call);
  return conversation.of_host.find_first_of(alphabet) == std::string::npos &&
         normal.find_first_of(alphabet) == std::string_view::npos;
}

// Ranges follow their bytes: in bounds, ascending, apart; and the text is what it is without them.
void follow_ranges(const Case& of, const Conversation& conversation) {
  const Normalizer normalizer(of.vocabulary.normalizer);
  Poll poll(nullptr);
  RewriteCall one = RewriteCall::of_text(conversation.text.size(), poll), other = one;
  std::string with, without;
  std::vector<TextRange> moved = conversation.host;
  const std::string_view text = normalizer.apply(conversation.text, true, &with, one, &moved);
  expect(text == normalizer.apply(conversation.text, true, &without, other));
  size_t end = 0;
  for (const TextRange& range : moved) {
    expect(range.begin >= end && range.begin < range.end && range.end <= text.size());
    end = range.end;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Case& of = pick(data[0]);
  const Tokenizer& tokenizer = *of.tokenizer;
  const Conversation conversation =
      read(std::string_view(reinterpret_cast<const char*>(data) + 2, size - 2), data[1] & 1);
  const std::string &text = conversation.text, &literals = conversation.literals;
  try {
    follow_ranges(of, conversation);
    const Ids whole = tokenizer.encode(text, false, true);
    expect(tokenizer.encode_beside(text, {}, literals) == whole);
    const Ids beside = tokenizer.encode_beside(text, conversation.host, literals);
    expect(is_within(bound(of, beside, literals),
                     bound(of, tokenizer.encode(conversation.separated, false, true), literals)));
    if (spells_nothing(of, conversation)) expect(beside == whole);
    if (of.vocabulary.normalizer.empty() && of.vocabulary.rewrites.empty() &&
        of.vocabulary.model == Vocabulary::Model::byte_bpe && !(*of.vocabulary.added)[0].lstrip)
      expect(tokenizer.decode(beside, true) == text);
    if (text.empty()) return 0;
    // All of it the host's: as text of which no special tokens are parsed.
    const TextRange all[] = {{0, text.size()}};
    expect(tokenizer.encode_beside(text, all, {}) == tokenizer.encode(text, false, false));
  } catch (const Error&) {
  }
  return 0;
}
