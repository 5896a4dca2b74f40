// The tokenizer of a GGUF file: the arrays tokenizer.ggml.*, checked against each other.
#include <algorithm>
#include <optional>
#include <unordered_set>

#include "src/error.h"
#include "src/files/gguf.h"
#include "src/text_hash.h"
#include "src/tokenizer/pre_tokenizer.h"
#include "src/tokenizer/vocabulary.h"

namespace wi {
namespace {

void check_one_each(const Gguf& gguf, const char* key, const Vocabulary& vocabulary);
std::optional<int32_t> find_token(const Gguf& gguf, const char* key, const Vocabulary& vocabulary);
void read_kinds(const Gguf& gguf, Vocabulary* vocabulary);
void read_scores(const Gguf& gguf, Vocabulary* vocabulary);
void read_special_ids(const Gguf& gguf, Vocabulary* vocabulary);
void know_by_text(Vocabulary* vocabulary, Watch* watch);
void flag_by_name(std::string name, Vocabulary* vocabulary);
std::vector<std::string> copied(const std::vector<std::string_view>& texts, Watch* watch);
void read_chat_templates(const Gguf& gguf, VocabularyFile* file, Watch* watch);

}  // namespace

VocabularyFile vocabulary_from_gguf(const Gguf& gguf, Watch* watch) {
  VocabularyFile file;
  Vocabulary& vocabulary = file.vocabulary;
  const std::string_view model = gguf.text("tokenizer.ggml.model");
  const std::vector<std::string_view> tokens = gguf.texts("tokenizer.ggml.tokens", watch);
  check(!tokens.empty(), WI_E_FORMAT, gguf.where("tokenizer.ggml.tokens"), " is missing or empty");
  check(tokens.size() <= limits::kVocab, WI_E_FORMAT, gguf.where("tokenizer.ggml.tokens"), " has ",
        tokens.size(), " elements, at most ", limits::kVocab, " are allowed");
  vocabulary.tokens = copied(tokens, watch);
  read_kinds(gguf, &vocabulary);
  tick(watch);
  if (model == "gpt2") {
    vocabulary.model = Vocabulary::Model::byte_bpe;
    const std::string_view pre = gguf.text("tokenizer.ggml.pre");
    const std::vector<std::string_view> merges = gguf.texts("tokenizer.ggml.merges", watch);
    check(gguf.find("tokenizer.ggml.merges"), WI_E_FORMAT, gguf.where("tokenizer.ggml.merges"),
          " is missing");
    vocabulary.pre_tokenizer = pre;
    vocabulary.merges = copied(merges, watch);
    vocabulary.ignore_merges = PreTokenizer::ignores_merges(pre);
    vocabulary.add_bos = vocabulary.ignore_merges;  // llama.cpp's default, which converters rely on
  } else if (model == "llama") {
    vocabulary.model = Vocabulary::Model::sentencepiece;
    read_scores(gguf, &vocabulary);
    vocabulary.add_bos = true;
    vocabulary.add_space_prefix = gguf.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
    vocabulary.space_after_special = vocabulary.add_space_prefix;
  } else {
    fail(WI_E_UNSUPPORTED, gguf.where("tokenizer.ggml.model"), " is '", model,
         "', supported are gpt2 and llama");
  }
  const std::optional<bool> stated = gguf.find_bool("tokenizer.ggml.add_bos_token");
  vocabulary.add_bos = stated.value_or(vocabulary.add_bos);
  read_special_ids(gguf, &vocabulary);
  check(!stated.value_or(false) || vocabulary.bos >= 0, WI_E_FORMAT,
        gguf.where("tokenizer.ggml.bos_token_id"),
        gguf.find("tokenizer.ggml.bos_token_id") ? " is -1" : " is missing", ", but add_bos_token is true");
  vocabulary.add_bos = vocabulary.add_bos && vocabulary.bos >= 0;
  know_by_text(&vocabulary, watch);
  flag_by_name(std::string(gguf.find_text("general.name").value_or("")), &vocabulary);
  add_known_ends(&vocabulary, watch);
  read_chat_templates(gguf, &file, watch);
  return file;
}

void add_known_ends(Vocabulary* vocabulary, Watch* watch) {
  constexpr std::string_view known[] = {"<|im_end|>", "<|eot_id|>",           "<|eom_id|>",
                                        "<|end|>",    "<|endoftext|>",        "<|end_of_text|>",
                                        "<EOT>",      "<｜end▁of▁sentence｜>"};
  std::vector<int32_t>& ends = vocabulary->end_of_generation;
  if (vocabulary->eos >= 0) ends.push_back(vocabulary->eos);
  for (size_t id = 0; id < vocabulary->tokens.size(); ++id) {
    tick(watch, id);
    const TokenKind kind = vocabulary->kinds[id];
    if (kind != TokenKind::control && kind != TokenKind::user_defined) continue;
    if (std::find(std::begin(known), std::end(known), vocabulary->tokens[id]) != std::end(known))
      ends.push_back(static_cast<int32_t>(id));
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

namespace {

std::vector<std::string> copied(const std::vector<std::string_view>& texts, Watch* watch) {
  std::vector<std::string> copies;
  copies.reserve(texts.size());
  for (const std::string_view text : texts) {
    tick(watch, copies.size());
    copies.emplace_back(text);
  }
  return copies;
}

// Before an array is expanded: its length is the file's word alone.
void check_one_each(const Gguf& gguf, const char* key, const Vocabulary& vocabulary) {
  const GgufField* field = gguf.find(key);
  check(!field || field->type != GgufType::array || field->count == vocabulary.tokens.size(), WI_E_FORMAT,
        gguf.where(key), " has ", field ? field->count : 0, " elements, but there are ",
        vocabulary.tokens.size(), " tokens");
}

// Converters write -1 for none, mostly as a number without a sign.
std::optional<int32_t> find_token(const Gguf& gguf, const char* key, const Vocabulary& vocabulary) {
  const auto id = gguf.find_integer(key, INT64_MIN, INT64_MAX);
  if (!id || *id == -1 || *id == UINT32_MAX) return {};
  return static_cast<int32_t>(gguf.integer(key, 0, static_cast<int64_t>(vocabulary.tokens.size()) - 1));
}

void read_kinds(const Gguf& gguf, Vocabulary* vocabulary) {
  const size_t count = vocabulary->tokens.size();
  vocabulary->kinds.assign(count, TokenKind::normal);
  if (!gguf.find("tokenizer.ggml.token_type")) return;
  check_one_each(gguf, "tokenizer.ggml.token_type", *vocabulary);
  const std::vector<int64_t> kinds = gguf.integers("tokenizer.ggml.token_type");
  for (size_t i = 0; i < count; ++i) {
    check(kinds[i] >= 1 && kinds[i] <= 6, WI_E_FORMAT, gguf.where("tokenizer.ggml.token_type"), ": element ",
          i, " is ", kinds[i], ", must be 1 to 6");
    vocabulary->kinds[i] = static_cast<TokenKind>(kinds[i]);
  }
}

void read_scores(const Gguf& gguf, Vocabulary* vocabulary) {
  check(gguf.find("tokenizer.ggml.scores"), WI_E_FORMAT, gguf.where("tokenizer.ggml.scores"), " is missing");
  check_one_each(gguf, "tokenizer.ggml.scores", *vocabulary);
  vocabulary->scores = gguf.floats("tokenizer.ggml.scores");
}

// SentencePiece files may leave out what is 1, 2 and 0 in nearly all of them, or say -1 and mean that, as llama.cpp has it.
void read_special_ids(const Gguf& gguf, Vocabulary* vocabulary) {
  const bool sentencepiece =
      vocabulary->model == Vocabulary::Model::sentencepiece && vocabulary->tokens.size() > 2;
  const auto id = [&](const char* key, int32_t otherwise) {
    return gguf.find(key) ? find_token(gguf, key, *vocabulary).value_or(otherwise) : otherwise;
  };
  vocabulary->bos = id("tokenizer.ggml.bos_token_id", sentencepiece ? 1 : -1);
  vocabulary->eos = id("tokenizer.ggml.eos_token_id", sentencepiece ? 2 : -1);
  vocabulary->unknown = id("tokenizer.ggml.unknown_token_id", sentencepiece ? 0 : -1);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto end = find_token(gguf, key, *vocabulary)) vocabulary->end_of_generation.push_back(*end);
}

// Converters gave many files' <|im_end|> and the like the type of an ordinary token: a template's would then be text, and
// an answer go on behind it, or a message's text would be that token. llama.cpp goes by their text, whatever their type.
void know_by_text(Vocabulary* vocabulary, Watch* watch) {
  constexpr std::string_view ends[] = {
      "<|eot_id|>",      "<|im_end|>",    "<|end|>",       "<|return|>", "<|call|>",
      "<|flush|>",       "<|calls|>",     "<end_of_turn>", "</s>",       "<|endoftext|>",
      "<|eom_id|>",      "<EOT>",         "_<EOT>",        "[EOT]",      "[EOS]",
      "<|end_of_text|>", "<eos>",         "<turn|>",       "[e~[",       "<end_of_utterance>",
      "<|fim_pad|>",     "<fim-pad>",     "<fim_pad>",     "<PAD>",      "<|tool_response>",
      "<|fim_repo|>",    "<|repo_name|>", "<fim-repo>",    "<REPO>",     "<｜end▁of▁sentence｜>",
      "<reponame>",      "<|file_sep|>",  "[PAD]"};
  constexpr std::string_view infill[] = {
      "<|fim_prefix|>", "<fim-prefix>",    "<fim_prefix>",    "<｜fim▁begin｜>", "<PRE>",
      "▁<PRE>",         "<|code_prefix|>", "<|prefix|>",      "<|fim_suffix|>",  "<fim-suffix>",
      "<fim_suffix>",   "<｜fim▁hole｜>",  "<SUF>",           "▁<SUF>",          "<|code_suffix|>",
      "<|suffix|>",     "<|fim_middle|>",  "<fim-middle>",    "<fim_middle>",    "<｜fim▁end｜>",
      "<MID>",          "▁<MID>",          "<|code_middle|>", "<|middle|>"};
  const auto holds = [](const auto& list, const std::string& text) {
    return std::find(std::begin(list), std::end(list), text) != std::end(list);
  };
  for (size_t id = 0; id < vocabulary->tokens.size(); ++id) {
    tick(watch, id);
    const std::string& text = vocabulary->tokens[id];
    if (text.empty() || std::string_view("<[_\xE2").find(text[0]) == std::string_view::npos) continue;
    const bool end = holds(ends, text);
    if (!end && !holds(infill, text)) continue;
    if (vocabulary->kinds[id] != TokenKind::unknown) vocabulary->kinds[id] = TokenKind::control;
    if (end) vocabulary->end_of_generation.push_back(static_cast<int32_t>(id));
  }
}

// What tokens do to the text beside them stands in no GGUF file. Phi-3's take the white space behind them along, but for
// the three that it had before, and llama.cpp knows them by the model's name.
void flag_by_name(std::string name, Vocabulary* vocabulary) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) return;
  vocabulary->added = added_by_kind(*vocabulary);
  for (AddedToken& token : *vocabulary->added) {
    const std::string& text = vocabulary->tokens[static_cast<size_t>(token.token)];
    token.rstrip = text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
  }
}

// tokenizer.chat_template is the default, tokenizer.chat_template.NAME another one.
void read_chat_templates(const Gguf& gguf, VocabularyFile* file, Watch* watch) {
  const std::string key = "tokenizer.chat_template";
  if (const auto text = gguf.find_text(key.c_str()); text && !text->empty())
    file->chat_templates.emplace_back("default", *text);
  std::vector<std::string_view> names;
  if (gguf.find("tokenizer.chat_templates")) names = gguf.texts("tokenizer.chat_templates", watch);
  std::unordered_set<std::string_view, TextHash> seen = {"default"};
  for (const std::string_view name : names) {
    tick(watch);
    if (!seen.insert(name).second) continue;
    if (const auto text = gguf.find_text(concat(key, '.', name).c_str()))
      file->chat_templates.emplace_back(name, *text);
  }
  const Vocabulary& vocabulary = file->vocabulary;
  const auto add = [&](const char* name, int32_t id) {
    if (id >= 0) file->special_texts.emplace_back(name, vocabulary.tokens[static_cast<size_t>(id)]);
  };
  // Beyond the tokens where a converter did not take the model's own padding along.
  const auto add_key = [&](const char* name, const char* id_key) {
    const auto id = gguf.find_integer(id_key, INT64_MIN, INT64_MAX);
    if (id && *id >= 0 && *id < static_cast<int64_t>(vocabulary.tokens.size()))
      add(name, static_cast<int32_t>(*id));
  };
  add("bos_token", vocabulary.bos);
  add("eos_token", vocabulary.eos);
  add("unk_token", vocabulary.unknown);
  add_key("sep_token", "tokenizer.ggml.seperator_token_id");
  add_key("pad_token", "tokenizer.ggml.padding_token_id");
  add_key("mask_token", "tokenizer.ggml.mask_token_id");
}

}  // namespace
}  // namespace wi
