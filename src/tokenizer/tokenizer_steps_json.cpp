// tokenizer.json's normalizer, pre_tokenizer, post_processor and decoder, reduced to rewriting steps, splits
// and a few flags. Every type and every parameter is either one of these or refused by name.
#include "src/error.h"
#include "src/tokenizer/pattern_dialect.h"
#include "src/tokenizer/vocabulary_json.h"

namespace wi {
namespace {

using Kind = RewriteStep::Kind;
using Behavior = SplitStep::Behavior;

// Real files have a handful of steps, whose marks are a few characters.
constexpr size_t kMostSteps = 64, kLongestMark = 64;

void read_normalizer(const Json& root, Vocabulary* vocabulary);
void read_pre_tokenizer(const Json& root, Vocabulary* vocabulary);
void check_decoder(const Json& root, const Vocabulary& vocabulary);
void read_metaspace(const JsonFields& fields, Vocabulary* vocabulary);
SplitStep read_split(const JsonFields& fields);
void add_steps(const Json& step, const std::string& where, const char* members,
               std::vector<const Json*>* list);

}  // namespace

void read_tokenizer_steps(const Json& root, Vocabulary* vocabulary) {
  vocabulary->model = Vocabulary::Model::char_bpe;
  vocabulary->splits.emplace();
  vocabulary->space_mark.clear();
  read_normalizer(root, vocabulary);
  read_pre_tokenizer(root, vocabulary);
  check_decoder(root, *vocabulary);
}

std::vector<const Json*> tokenizer_steps(const Json& root, const char* key, const char* members) {
  std::vector<const Json*> list;
  const Json* step = JsonFields(root, kTokenizerFile).find_object(key);
  if (step) add_steps(*step, kTokenizerFile + ": " + key, members, &list);
  return list;
}

int32_t post_processor_first(const Json& root, const TokenIds& ids) {
  int32_t first_token = -1;
  const auto add = [&](const std::string& where, const std::string& text, int64_t id) {
    const auto found = ids.find(text);
    check(found != ids.end() && found->second == id, WI_E_FORMAT, where, " puts '", text, "' with id ", id,
          " first, which is no such token");
    check(first_token < 0, WI_E_UNSUPPORTED, where, " puts several tokens first, supported is one");
    first_token = found->second;
  };
  for (const Json* step : tokenizer_steps(root, "post_processor", "processors")) {
    const JsonFields fields(*step, kTokenizerFile + ": post_processor");
    const std::string type = fields.text("type");
    if (type == "ByteLevel") continue;  // changes offsets only
    if (type == "RobertaProcessing" || type == "BertProcessing") {
      const Json* first = fields.find_array("cls");
      check(first && first->size() == 2 && (*first)[0].is_string() && (*first)[1].is_number_integer(),
            WI_E_FORMAT, fields.at("cls"), " must be a token and its id");
      add(fields.at("cls"), (*first)[0].get<std::string>(), (*first)[1].get<int64_t>());
      continue;
    }
    check(type == "TemplateProcessing", WI_E_UNSUPPORTED, fields.at("type"), " is '", type,
          "', supported are TemplateProcessing, RobertaProcessing, BertProcessing and ByteLevel");
    const Json* single = fields.find_array("single");
    check(single != nullptr, WI_E_FORMAT, fields.at("single"), " is missing");
    for (const Json& piece : *single) {
      check(piece.is_object(), WI_E_FORMAT, fields.at("single"), " must hold objects");
      const Json* special = JsonFields(piece, fields.at("single")).find_object("SpecialToken");
      if (!special) break;  // the text; what a template puts behind it is for training
      const std::string text = JsonFields(*special, fields.at("single")).text("id");
      const Json* tokens = fields.find_object("special_tokens");
      const Json* token =
          tokens ? JsonFields(*tokens, fields.at("special_tokens")).find_object(text.c_str()) : nullptr;
      check(token != nullptr, WI_E_FORMAT, fields.at("special_tokens"), " lacks '", text, "'");
      const std::vector<int64_t> added =
          JsonFields(*token, fields.at("special_tokens")).integers("ids", 0, INT32_MAX);
      check(added.size() == 1, WI_E_UNSUPPORTED, fields.at("special_tokens"), ": '", text, "' stands for ",
            added.size(), " ids, supported is one");
      add(fields.at("single"), text, added[0]);
    }
  }
  return first_token;
}

namespace {

void add_steps(const Json& step, const std::string& where, const char* members,
               std::vector<const Json*>* list) {
  const JsonFields fields(step, where);
  if (fields.text("type") != "Sequence") {
    check(list->size() < kMostSteps, WI_E_UNSUPPORTED, where, " has more than ", kMostSteps,
          " steps, which is not supported");
    return list->push_back(&step);
  }
  const Json* inner = fields.find_array(members);
  check(inner, WI_E_FORMAT, fields.at(members), " is missing");
  for (const Json& member : *inner) {
    check(member.is_object(), WI_E_FORMAT, fields.at(members), " must hold objects");
    add_steps(member, where, members, list);
  }
}

// What is put into the text or taken out of it.
std::string checked_mark(const std::string& where, std::string mark) {
  check(mark.size() <= kLongestMark, WI_E_UNSUPPORTED, where, " has ", mark.size(), " bytes, at most ",
        kLongestMark, " are supported");
  return mark;
}

// The text that a step's pattern stands for; only as a String.
std::string pattern_text(const JsonFields& fields) {
  const Json* pattern = fields.find_object("pattern");
  check(pattern, WI_E_FORMAT, fields.at("pattern"), " is missing");
  const auto text = JsonFields(*pattern, fields.at("pattern")).find_text("String");
  check(text.has_value(), WI_E_UNSUPPORTED, fields.at("pattern"),
        " is no String, which is what is supported");
  check(!text->empty(), WI_E_UNSUPPORTED, fields.at("pattern"), " is empty");
  return *text;
}

void read_normalizer(const Json& root, Vocabulary* vocabulary) {
  for (const Json* step : tokenizer_steps(root, "normalizer", "normalizers")) {
    const JsonFields fields(*step, kTokenizerFile + ": normalizer");
    const std::string type = fields.text("type");
    constexpr std::pair<std::string_view, Kind> forms[] = {
        {"NFC", Kind::nfc}, {"NFD", Kind::nfd}, {"NFKC", Kind::nfkc}, {"NFKD", Kind::nfkd}};
    bool known = false;
    for (const auto& [name, kind] : forms) {
      if (type != name) continue;
      vocabulary->normalizer.push_back({kind, {}, {}});
      known = true;
    }
    if (type == "Prepend") {
      const std::string mark = checked_mark(fields.at("prepend"), fields.text("prepend"));
      vocabulary->normalizer.push_back({Kind::prepend, {}, mark});
      if (mark == "\u2581" || mark == " ")
        vocabulary->add_space_prefix = vocabulary->space_after_special = true;
      known = true;
    } else if (type == "Replace") {
      const std::string from = checked_mark(fields.at("pattern"), pattern_text(fields)),
                        to = checked_mark(fields.at("content"), fields.text("content"));
      vocabulary->normalizer.push_back({Kind::replace, from, to});
      if (from == " ") vocabulary->space_mark = to;
      known = true;
    }
    check(known, WI_E_UNSUPPORTED, fields.at("type"), " is '", type,
          "', supported are NFC, NFD, NFKC, NFKD, Prepend and Replace");
  }
}

void read_pre_tokenizer(const Json& root, Vocabulary* vocabulary) {
  bool first = true;
  for (const Json* step : tokenizer_steps(root, "pre_tokenizer", "pretokenizers")) {
    const JsonFields fields(*step, kTokenizerFile + ": pre_tokenizer");
    const std::string type = fields.text("type");
    check(vocabulary->model == Vocabulary::Model::char_bpe, WI_E_UNSUPPORTED, fields.at("type"), " is '",
          type, "' behind ByteLevel, which must be the last");
    if (type == "Split") {
      vocabulary->splits->push_back(read_split(fields));
    } else if (type == "Digits") {
      const bool each = fields.find_bool("individual_digits").value_or(false);
      vocabulary->splits->push_back({each ? "\\p{N}" : "\\p{N}+", Behavior::isolated, false});
    } else if (type == "Metaspace") {
      check(first, WI_E_UNSUPPORTED, fields.at("type"), " is 'Metaspace', supported as the first only");
      read_metaspace(fields, vocabulary);
    } else if (type == "ByteLevel") {
      if (fields.find_bool("add_prefix_space").value_or(true)) {
        check(first, WI_E_UNSUPPORTED, fields.at("add_prefix_space"),
              " is true, supported where ByteLevel stands alone");
        vocabulary->rewrites.push_back({Kind::prepend_missing, {}, " "});
        vocabulary->add_space_prefix = vocabulary->space_after_special = true;
      }
      if (fields.find_bool("use_regex").value_or(true))
        vocabulary->splits->push_back({std::string(kGpt2Pattern), Behavior::isolated, false});
      vocabulary->model = Vocabulary::Model::byte_bpe;
    } else {
      fail(WI_E_UNSUPPORTED, fields.at("type"), " is '", type,
           "', supported are Split, Digits, Metaspace and ByteLevel");
    }
    first = false;
  }
}

// Spaces become the replacement, and one comes first where none is.
void read_metaspace(const JsonFields& fields, Vocabulary* vocabulary) {
  const std::string mark = checked_mark(fields.at("replacement"), fields.text("replacement"));
  check(!mark.empty(), WI_E_FORMAT, fields.at("replacement"), " is empty");
  const auto declared = fields.find_text("prepend_scheme");
  const bool prefix = fields.find_bool("add_prefix_space").value_or(true);
  const std::string scheme = declared.value_or(prefix ? "always" : "never");
  check(prefix || scheme == "never", WI_E_FORMAT, fields.at("add_prefix_space"),
        " is false, but prepend_scheme is '", scheme, "'");
  vocabulary->rewrites.push_back({Kind::replace, " ", mark});
  vocabulary->space_mark = mark;
  if (scheme == "always") {
    vocabulary->rewrites.push_back({Kind::prepend_missing, {}, mark});
    vocabulary->add_space_prefix = vocabulary->space_after_special = true;
  } else if (scheme == "first") {
    vocabulary->rewrites.push_back({Kind::prepend_first, {}, mark});
    vocabulary->add_space_prefix = true;
  } else {
    check(scheme == "never", WI_E_UNSUPPORTED, fields.at("prepend_scheme"), " is '", scheme,
          "', supported are always, first and never");
  }
  if (fields.find_bool("split").value_or(true))
    vocabulary->splits->push_back({quoted_pattern(mark), Behavior::merged_next, false});
}

SplitStep read_split(const JsonFields& fields) {
  SplitStep step;
  const std::string behavior = fields.text("behavior");
  constexpr std::pair<std::string_view, Behavior> behaviors[] = {
      {"Isolated", Behavior::isolated},
      {"Removed", Behavior::removed},
      {"MergedWithPrevious", Behavior::merged_previous},
      {"MergedWithNext", Behavior::merged_next},
      {"Contiguous", Behavior::contiguous}};
  bool known = false;
  for (const auto& [name, value] : behaviors) {
    if (behavior != name) continue;
    step.behavior = value;
    known = true;
  }
  check(known, WI_E_UNSUPPORTED, fields.at("behavior"), " is '", behavior,
        "', supported are Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
  step.invert = fields.find_bool("invert").value_or(false);
  const Json* pattern = fields.find_object("pattern");
  check(pattern, WI_E_FORMAT, fields.at("pattern"), " is missing");
  const auto regex = JsonFields(*pattern, fields.at("pattern")).find_text("Regex");
  step.pattern = regex ? *regex : quoted_pattern(pattern_text(fields));
  check(step.pattern.find('\0') == std::string::npos, WI_E_FORMAT, fields.at("pattern"), " holds a NUL");
  return step;
}

// Tokens are decoded by what they were made from, so the decoder must be the way back from the steps above.
void check_decoder(const Json& root, const Vocabulary& vocabulary) {
  for (const Json* step : tokenizer_steps(root, "decoder", "decoders")) {
    const JsonFields fields(*step, kTokenizerFile + ": decoder");
    const std::string type = fields.text("type");
    const bool bytes = vocabulary.model == Vocabulary::Model::byte_bpe;
    if (type == "Fuse" || type == (bytes ? "ByteLevel" : "ByteFallback")) continue;
    if (!bytes && type == "Metaspace" && fields.text("replacement") == vocabulary.space_mark) continue;
    if (!bytes && type == "Replace" && pattern_text(fields) == vocabulary.space_mark &&
        fields.text("content") == " ")
      continue;
    if (!bytes && type == "Strip" && fields.text("content") == " " &&
        fields.integer("start", 0, INT32_MAX) <= 1 && fields.integer("stop", 0, INT32_MAX) == 0)
      continue;
    fail(WI_E_UNSUPPORTED, fields.at("type"), " is '", type,
         "', which is not the way back from the pre_tokenizer");
  }
}

}  // namespace
}  // namespace wi
