// The tokenizer of a Hugging Face directory: tokenizer.json is a small program (normalizer, pre-tokenizer,
// model, post-processor). What would change ids and is not implemented is refused by name. "truncation" and
// "padding" are settings of a call there, which transformers does not apply unless asked; they are not
// applied here either.
#include "src/tokenizer/vocabulary_json.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "src/error.h"
#include "src/tokenizer/char_bpe.h"

namespace wi {
namespace {

TokenIds read_tokens(const JsonFields& model, int32_t vocab, bool byte_fallback, Watch* watch,
                     Vocabulary* vocabulary);
std::vector<std::string> read_merges(const JsonFields& model, Watch* watch);
void read_unknown(const JsonFields& model, const TokenIds& ids, Vocabulary* vocabulary);
void refuse_unsupported(const JsonFields& model);
void refuse_unsupported_words(const Json& words);
void read_chat_templates(const TokenizerTexts& texts, const Json& words, VocabularyFile* file);

}  // namespace

VocabularyFile vocabulary_from_json(const TokenizerTexts& texts, int32_t vocab) {
  const JsonTree tree = parse_json(texts.tokenizer, kTokenizerFile, texts.watch);
  const Json& root = *tree;
  const JsonFields fields(root, kTokenizerFile);
  const Json* object = fields.find_object("model");
  check(object, WI_E_FORMAT, fields.at("model"), " is missing");
  const JsonFields model(*object, kTokenizerFile + ": model");
  refuse_unsupported(model);

  VocabularyFile file;
  Vocabulary& vocabulary = file.vocabulary;
  read_tokenizer_steps(root, &vocabulary);
  const BuiltByClass built = apply_tokenizer_class(texts, root, model, &vocabulary);
  const bool byte_fallback = built.byte_fallback || model.find_bool("byte_fallback").value_or(false);
  TokenIds ids = read_tokens(model, vocab, byte_fallback, texts.watch, &vocabulary);
  vocabulary.merges = read_merges(model, texts.watch);
  vocabulary.ignore_merges = model.find_bool("ignore_merges").value_or(false);
  vocabulary.fuse_unknown = model.find_bool("fuse_unk").value_or(false);
  read_special_tokens(texts, root, vocab, built, &ids, &vocabulary);
  read_unknown(model, ids, &vocabulary);
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    tick(texts.watch, id);
    if (vocabulary.kinds[id] == TokenKind::unused) vocabulary.tokens[id] = concat("[PAD", id, "]");
  }
  const JsonTree words = tokenizer_words(texts, built);
  refuse_unsupported_words(*words);
  mend_mistral_words(texts, *words, root, ids.size(), &vocabulary);
  read_chat_templates(texts, *words, &file);
  return file;
}

void place_token(const std::string& where, const std::string& text, int64_t id, TokenKind kind, TokenIds* ids,
                 Vocabulary* vocabulary) {
  const size_t vocab = vocabulary->tokens.size();
  check(id >= 0 && static_cast<size_t>(id) < vocab, WI_E_FORMAT, where, ": '", text, "' has id ", id,
        ", but config.json's vocab_size is ", vocab);
  const size_t at = static_cast<size_t>(id);
  check(vocabulary->kinds[at] == TokenKind::unused || vocabulary->tokens[at] == text, WI_E_FORMAT, where,
        ": '", text, "' has id ", id, ", which is '", vocabulary->tokens[at], "'");
  auto [known, fresh] = ids->emplace(text, static_cast<int32_t>(id));
  check(fresh || known->second == id, WI_E_FORMAT, where, ": '", text, "' has ids ", known->second, " and ",
        id);
  vocabulary->tokens[at] = text;
  // A byte token that is also an added one is still what a character without a token falls back to.
  if (vocabulary->kinds[at] != TokenKind::byte) vocabulary->kinds[at] = kind;
}

JsonTree parse_or_empty(std::string_view text, const std::string& file, Watch* watch) {
  return text.empty() ? JsonTree(Json::object()) : parse_json(text, file, watch, kMostCompanionMemory);
}

namespace {

void refuse_unsupported(const JsonFields& model) {
  const std::string type = model.find_text("type").value_or("BPE");
  check(type == "BPE", WI_E_UNSUPPORTED, model.at("type"), " is '", type, "', supported is BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    check(model.find_text(key).value_or("").empty(), WI_E_UNSUPPORTED, model.at(key),
          " is set, which is not supported");
  check(model.find_number("dropout").value_or(0) == 0, WI_E_UNSUPPORTED, model.at("dropout"),
        " is set: token ids would be random");
}

void refuse_unsupported_words(const Json& words) {
  const JsonFields fields(words, "tokenizer_config.json");
  check(!fields.find_bool("split_special_tokens").value_or(false), WI_E_UNSUPPORTED,
        fields.at("split_special_tokens"), " is true, supported is false");
}

// Tokens of the model by id; ids that nobody names become unused tokens.
TokenIds read_tokens(const JsonFields& model, int32_t vocab, bool byte_fallback, Watch* watch,
                     Vocabulary* vocabulary) {
  const Json* words = model.find_object("vocab");
  check(words && !words->empty(), WI_E_FORMAT, model.at("vocab"), " is missing or empty");
  byte_fallback = byte_fallback && vocabulary->model == Vocabulary::Model::char_bpe;
  TokenIds ids;
  ids.reserve(words->size());
  vocabulary->tokens.resize(static_cast<size_t>(vocab));
  vocabulary->kinds.assign(static_cast<size_t>(vocab), TokenKind::unused);
  for (const auto& [text, id] : words->items()) {
    tick(watch, ids.size());
    check(id.is_number_integer(), WI_E_FORMAT, model.at("vocab"), ": '", text, "' is ", id.type_name(),
          ", must be an integer");
    place_token(model.at("vocab"), text,
                id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX ? INT32_MAX : id.get<int64_t>(),
                byte_fallback && byte_of(text) >= 0 ? TokenKind::byte : TokenKind::normal, &ids, vocabulary);
  }
  return ids;
}

// Older files write "left right", newer ones ["left", "right"]. Of a pair that stands there twice the last
// place holds.
std::vector<std::string> read_merges(const JsonFields& model, Watch* watch) {
  const Json* list = model.find_array("merges");
  check(list, WI_E_FORMAT, model.at("merges"), " is missing");
  std::vector<std::string> merges;
  merges.reserve(list->size());
  for (const Json& merge : *list) {
    tick(watch, merges.size());
    std::string text;
    if (merge.is_string()) text = merge.get<std::string>();
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      for (const Json& part : merge)
        check(part.get<std::string>().find(' ') == std::string::npos, WI_E_UNSUPPORTED, model.at("merges"),
              ": element ", merges.size(), " holds a space, which is not supported");
      text = merge[0].get<std::string>() + ' ' + merge[1].get<std::string>();
    }
    const size_t space = text.find(' ');
    check(space != std::string::npos && space > 0 && space + 1 < text.size() &&
              text.find(' ', space + 1) == std::string::npos,
          WI_E_FORMAT, model.at("merges"), ": element ", merges.size(), " must be two tokens");
    merges.push_back(std::move(text));
  }
  std::unordered_set<std::string_view, TextHash> seen;
  seen.reserve(merges.size());
  std::vector<bool> drop(merges.size());
  bool any = false;
  for (size_t i = merges.size(); i-- > 0;) {
    tick(watch, i);
    any |= drop[i] = !seen.insert(merges[i]).second;
  }
  if (!any) return merges;
  std::vector<std::string> kept;
  for (size_t i = 0; i < merges.size(); ++i)
    if (!drop[i]) kept.push_back(merges[i]);
  return kept;
}

void read_unknown(const JsonFields& model, const TokenIds& ids, Vocabulary* vocabulary) {
  const auto unknown = model.find_text("unk_token");
  if (!unknown) return;
  const auto found = ids.find(*unknown);
  check(found != ids.end(), WI_E_FORMAT, model.at("unk_token"), " is '", *unknown, "', which is no token");
  vocabulary->unknown = found->second;
  vocabulary->kinds[static_cast<size_t>(found->second)] = TokenKind::unknown;
}

// The file chat_template.jinja (the one for tools is a file beside it), or tokenizer_config.json's
// chat_template: a text, or a list of named ones.
void read_chat_templates(const TokenizerTexts& texts, const Json& words, VocabularyFile* file) {
  const JsonFields config(words, "tokenizer_config.json");
  const Json* value = config.find("chat_template");
  std::unordered_map<std::string, size_t> places;
  const auto add = [&](std::string name, std::string text) {
    if (text.empty()) return;
    const auto [place, is_new] = places.emplace(name, file->chat_templates.size());
    if (is_new)
      file->chat_templates.emplace_back(std::move(name), std::move(text));
    else
      file->chat_templates[place->second].second = std::move(text);  // the last counts
  };
  if (!texts.chat_template.empty()) {
    add("default", std::string(texts.chat_template));
    add("tool_use", std::string(texts.tool_template));
  } else if (value && value->is_array()) {
    for (const Json& entry : *value) {
      check(entry.is_object(), WI_E_FORMAT, config.at("chat_template"), " must hold objects");
      const JsonFields fields(entry, config.at("chat_template"));
      add(fields.text("name"), fields.text("template"));
    }
  } else {
    add("default", config.find_text("chat_template").value_or(""));
  }
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Json* token = config.find(name);
    if (!token) continue;
    const std::string text =
        token->is_object() ? JsonFields(*token, config.at(name)).text("content") : config.text(name);
    file->special_texts.emplace_back(name, text);
  }
  // And those that the model has names of its own for.
  std::unordered_set<std::string> known;
  for (const auto& [name, text] : file->special_texts) known.insert(name);
  const auto add_named = [&](const std::string& name, const Json& token) {
    if (token.is_string() && known.insert(name).second)
      file->special_texts.emplace_back(name, token.get<std::string>());
  };
  for (const auto& [name, token] : words.items())
    if (name.ends_with("_token")) add_named(name, token);
  if (words.contains("extra_special_tokens") && words["extra_special_tokens"].is_object())
    for (const auto& [name, token] : words["extra_special_tokens"].items()) add_named(name, token);
  const Vocabulary& vocabulary = file->vocabulary;
  const auto add_by_id = [&](const char* name, int32_t id) {
    if (id >= 0 && texts.tokenizer_config.empty())
      file->special_texts.emplace_back(name, vocabulary.tokens[static_cast<size_t>(id)]);
  };
  add_by_id("bos_token", vocabulary.bos);
  add_by_id("eos_token", vocabulary.eos);
}

}  // namespace
}  // namespace wi
