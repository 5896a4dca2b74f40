// The tokenizer of a Hugging Face directory: tokenizer.json is a small program (normalizer, pre-tokenizer,
// model, post-processor); the two shapes of it that exist in the supported families are recognised here and
// everything else is refused by name.
#include <algorithm>
#include <unordered_map>

#include "src/error.h"
#include "src/model/config.h"
#include "src/model/json_file.h"
#include "src/model/vocabulary.h"

namespace wi {
namespace {

const std::string kFile = "tokenizer.json";
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Pair {
  std::string left, right;
};
using Ids = std::unordered_map<std::string, int32_t>;

Ids read_tokens(const JsonFields& model, const Json* added, int32_t vocab, Vocabulary* vocabulary);
std::vector<Pair> read_merges(const JsonFields& model);
void read_byte_level(const Json& root, const std::vector<Pair>& merges, Vocabulary* vocabulary);
void read_sentencepiece(const Json& root, const std::vector<Pair>& merges, const Ids& ids,
                        Vocabulary* vocabulary);
void read_special_tokens(const TokenizerTexts& texts, const Json& root, const Ids& ids,
                         Vocabulary* vocabulary);
std::string read_chat_template(const TokenizerTexts& texts);
Json parse_or_empty(std::string_view text, const std::string& file);

}  // namespace

VocabularyFile vocabulary_from_json(const TokenizerTexts& texts, int32_t vocab) {
  const Json root = parse_json(texts.tokenizer, kFile);
  const JsonFields fields(root, kFile);
  const Json* object = fields.find_object("model");
  check(object, WI_E_FORMAT, fields.at("model"), " is missing");
  const JsonFields model(*object, kFile + ": model");
  const std::string type = model.find_text("type").value_or("BPE");
  check(type == "BPE", WI_E_UNSUPPORTED, model.at("type"), " is '", type, "', supported is BPE");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    check(model.find_text(key).value_or("").empty(), WI_E_UNSUPPORTED, model.at(key),
          " is set, which is not supported");

  VocabularyFile file;
  Vocabulary& vocabulary = file.vocabulary;
  const Ids ids = read_tokens(model, fields.find_array("added_tokens"), vocab, &vocabulary);
  std::vector<Pair> merges = read_merges(model);
  if (model.find_bool("byte_fallback").value_or(false)) {
    read_sentencepiece(root, merges, ids, &vocabulary);
  } else {
    read_byte_level(root, merges, &vocabulary);
    vocabulary.ignore_merges = model.find_bool("ignore_merges").value_or(false);
  }
  if (auto unknown = model.find_text("unk_token")) {
    auto found = ids.find(*unknown);
    check(found != ids.end(), WI_E_FORMAT, model.at("unk_token"), " is '", *unknown, "', which is no token");
    vocabulary.unknown = found->second;
    vocabulary.kinds[static_cast<size_t>(found->second)] = TokenKind::unknown;
  }
  read_special_tokens(texts, root, ids, &vocabulary);
  file.chat_template = read_chat_template(texts);
  return file;
}

namespace {

bool is_byte_token(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>' &&
         std::isxdigit(static_cast<unsigned char>(text[3])) &&
         std::isxdigit(static_cast<unsigned char>(text[4]));
}

// Tokens by id from the model's vocabulary and the added ones; ids that neither names become unused tokens.
Ids read_tokens(const JsonFields& model, const Json* added, int32_t vocab, Vocabulary* vocabulary) {
  const Json* words = model.find_object("vocab");
  check(words && !words->empty(), WI_E_FORMAT, model.at("vocab"), " is missing or empty");
  const bool byte_fallback = model.find_bool("byte_fallback").value_or(false);
  Ids ids;
  std::vector<std::string>& tokens = vocabulary->tokens;
  tokens.resize(static_cast<size_t>(vocab));
  vocabulary->kinds.assign(static_cast<size_t>(vocab), TokenKind::unused);
  auto place = [&](const std::string& where, const std::string& text, int64_t id, TokenKind kind) {
    check(id >= 0 && id < vocab, WI_E_FORMAT, where, ": '", text, "' has id ", id,
          ", but config.json's vocab_size is ", vocab);
    const size_t at = static_cast<size_t>(id);
    check(vocabulary->kinds[at] == TokenKind::unused || tokens[at] == text, WI_E_FORMAT, where, ": '", text,
          "' has id ", id, ", which is '", tokens[at], "'");
    auto [known, fresh] = ids.emplace(text, static_cast<int32_t>(id));
    check(fresh || known->second == id, WI_E_FORMAT, where, ": '", text, "' has ids ", known->second, " and ",
          id);
    tokens[at] = text;
    vocabulary->kinds[at] = kind;
  };
  for (const auto& [text, id] : words->items()) {
    check(id.is_number_integer(), WI_E_FORMAT, model.at("vocab"), ": '", text, "' is ", id.type_name(),
          ", must be an integer");
    const bool byte = byte_fallback && is_byte_token(text);
    place(model.at("vocab"), text,
          id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX ? INT32_MAX : id.get<int64_t>(),
          byte ? TokenKind::byte : TokenKind::normal);
  }
  for (size_t i = 0; added && i < added->size(); ++i) {
    const std::string where = concat(kFile, ": added_tokens: element ", i);
    check((*added)[i].is_object(), WI_E_FORMAT, where, " is ", (*added)[i].type_name(),
          ", must be an object");
    const JsonFields fields((*added)[i], where);
    const bool special = fields.find_bool("special").value_or(false);
    place(where, fields.text("content"), fields.integer("id", 0, INT32_MAX),
          special ? TokenKind::control : TokenKind::user_defined);
  }
  for (size_t id = 0; id < tokens.size(); ++id)
    if (vocabulary->kinds[id] == TokenKind::unused) tokens[id] = concat("[PAD", id, "]");
  return ids;
}

// Older files write "left right", newer ones ["left", "right"].
std::vector<Pair> read_merges(const JsonFields& model) {
  const Json* list = model.find_array("merges");
  check(list, WI_E_FORMAT, model.at("merges"), " is missing");
  std::vector<Pair> merges;
  merges.reserve(list->size());
  for (const Json& merge : *list) {
    Pair pair;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      pair = {merge[0].get<std::string>(), merge[1].get<std::string>()};
    } else if (merge.is_string()) {
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ', 1);
      if (space != std::string::npos) pair = {text.substr(0, space), text.substr(space + 1)};
    }
    check(!pair.left.empty() && !pair.right.empty(), WI_E_FORMAT, model.at("merges"), ": element ",
          merges.size(), " must be two tokens");
    merges.push_back(std::move(pair));
  }
  return merges;
}

// A normalizer, pre-tokenizer or the like as the list of its steps: a Sequence's members, or itself, or none.
std::vector<const Json*> steps(const Json& root, const char* key, const char* members) {
  std::vector<const Json*> list;
  const Json* step = JsonFields(root, kFile).find_object(key);
  if (!step) return list;
  const JsonFields fields(*step, kFile + ": " + key);
  if (fields.text("type") != "Sequence") return {step};
  const Json* inner = fields.find_array(members);
  check(inner, WI_E_FORMAT, fields.at(members), " is missing");
  for (const Json& member : *inner) {
    check(member.is_object(), WI_E_FORMAT, fields.at(members), " must hold objects");
    list.push_back(&member);
  }
  return list;
}

std::string split_pattern(const JsonFields& split) {
  const std::string behaviour = split.text("behavior");
  check(behaviour == "Isolated" && !split.find_bool("invert").value_or(false), WI_E_UNSUPPORTED,
        split.at("behavior"), " is '", behaviour, "' (or inverted), supported is Isolated");
  const Json* pattern = split.find_object("pattern");
  check(pattern, WI_E_FORMAT, split.at("pattern"), " is missing");
  const JsonFields kinds(*pattern, split.at("pattern"));
  if (auto regex = kinds.find_text("Regex")) return *regex;
  return "\\Q" + kinds.text("String") + "\\E";
}

// GPT-2's family: text is split by patterns, then mapped to the byte alphabet. NFC is left to the caller:
// text is nearly always in that form already, and the tokens of other text still decode to the very same
// bytes.
void read_byte_level(const Json& root, const std::vector<Pair>& merges, Vocabulary* vocabulary) {
  vocabulary->model = Vocabulary::Model::byte_bpe;
  vocabulary->add_space_prefix = false;
  for (const Json* step : steps(root, "normalizer", "normalizers")) {
    const std::string type = JsonFields(*step, kFile + ": normalizer").text("type");
    check(type == "NFC", WI_E_UNSUPPORTED, kFile, ": normalizer: type is '", type, "', supported is NFC");
  }
  std::vector<std::string> patterns;
  bool byte_level = false;
  for (const Json* step : steps(root, "pre_tokenizer", "pretokenizers")) {
    const JsonFields fields(*step, kFile + ": pre_tokenizer");
    const std::string type = fields.text("type");
    if (type == "Split") {
      patterns.push_back(split_pattern(fields));
    } else if (type == "Digits") {
      patterns.push_back(fields.find_bool("individual_digits").value_or(false) ? "\\p{N}" : "\\p{N}+");
    } else if (type == "ByteLevel") {
      check(!fields.find_bool("add_prefix_space").value_or(true), WI_E_UNSUPPORTED,
            fields.at("add_prefix_space"), " is true, supported is false");
      if (fields.find_bool("use_regex").value_or(true)) patterns.emplace_back(kGpt2Pattern);
      byte_level = true;
    } else {
      fail(WI_E_UNSUPPORTED, fields.at("type"), " is '", type,
           "', supported are Split, Digits and ByteLevel");
    }
  }
  check(byte_level, WI_E_UNSUPPORTED, kFile,
        ": pre_tokenizer has no ByteLevel step, and model.byte_fallback is not true");
  check(!patterns.empty(), WI_E_UNSUPPORTED, kFile, ": pre_tokenizer has no pattern to split by");
  for (const std::string& pattern : patterns) {  // applied in turn, NUL between them
    check(pattern.find('\0') == std::string::npos, WI_E_FORMAT, kFile,
          ": pre_tokenizer: a pattern holds a NUL");
    vocabulary->pattern += (vocabulary->pattern.empty() ? std::string() : std::string(1, '\0')) + pattern;
  }
  for (const Pair& pair : merges) {
    check(pair.left.find(' ') == std::string::npos && pair.right.find(' ') == std::string::npos, WI_E_FORMAT,
          kFile, ": model: merges: element ", vocabulary->merges.size(),
          " holds a space, which is not in the byte alphabet");
    vocabulary->merges.push_back(pair.left + ' ' + pair.right);
  }
}

// Llama-2's family: SentencePiece's BPE, whose scores transformers turned into an order of merges; the best
// merge that makes a token gives the score back. Whoever is made by no merge comes last.
void read_sentencepiece(const Json& root, const std::vector<Pair>& merges, const Ids& ids,
                        Vocabulary* vocabulary) {
  vocabulary->model = Vocabulary::Model::sentencepiece;
  vocabulary->add_space_prefix = false;
  bool spaces_marked = false;
  auto check_mark = [](const std::string& where, const std::string& mark) {
    check(mark == "\u2581", WI_E_UNSUPPORTED, where, " is '", mark, "', supported is \u2581");
  };
  for (const Json* step : steps(root, "normalizer", "normalizers")) {
    const JsonFields fields(*step, kFile + ": normalizer");
    const std::string type = fields.text("type");
    if (type == "Prepend") {
      check_mark(fields.at("prepend"), fields.text("prepend"));
      vocabulary->add_space_prefix = true;
    } else if (type == "Replace") {
      check_mark(fields.at("content"), fields.text("content"));
      const Json* pattern = fields.find_object("pattern");
      check(pattern && pattern->value("String", Json()) == " ", WI_E_UNSUPPORTED, fields.at("pattern"),
            " is no single space");
      spaces_marked = true;
    } else {
      fail(WI_E_UNSUPPORTED, fields.at("type"), " is '", type, "', supported are Prepend and Replace");
    }
  }
  for (const Json* step : steps(root, "pre_tokenizer", "pretokenizers")) {
    const JsonFields fields(*step, kFile + ": pre_tokenizer");
    const std::string type = fields.text("type");
    check(type == "Metaspace", WI_E_UNSUPPORTED, fields.at("type"), " is '", type,
          "', supported beside byte_fallback is Metaspace");
    check(!fields.find_bool("split").value_or(true), WI_E_UNSUPPORTED, fields.at("split"),
          " is true, supported is false");
    check_mark(fields.at("replacement"), fields.text("replacement"));
    vocabulary->add_space_prefix = fields.find_text("prepend_scheme").value_or("always") != "never" &&
                                   fields.find_bool("add_prefix_space").value_or(true);
    spaces_marked = true;
  }
  check(spaces_marked, WI_E_UNSUPPORTED, kFile,
        ": neither a Replace normalizer nor a Metaspace pre_tokenizer marks the spaces");

  vocabulary->scores.assign(vocabulary->tokens.size(), -static_cast<float>(merges.size()) - 1);
  for (size_t rank = merges.size(); rank-- > 0;) {
    auto made = ids.find(merges[rank].left + merges[rank].right);
    check(made != ids.end() && ids.count(merges[rank].left) && ids.count(merges[rank].right), WI_E_FORMAT,
          kFile, ": model: merges: element ", rank, " ('", merges[rank].left, "', '", merges[rank].right,
          "') names or makes no token");
    vocabulary->scores[static_cast<size_t>(made->second)] = -static_cast<float>(rank);
  }
}

// A token's text, or an object with the text as its content; -1 for none.
int32_t special_id(const JsonFields& fields, const char* key, const Ids& ids) {
  const Json* value = fields.find(key);
  if (!value) return -1;
  const std::string text =
      value->is_object() ? JsonFields(*value, fields.at(key)).text("content") : fields.text(key);
  auto found = ids.find(text);
  check(found != ids.end(), WI_E_FORMAT, fields.at(key), " is '", text, "', which is no token");
  return found->second;
}

// Whether the post-processor puts this token before the first sequence.
bool post_processor_starts_with(const Json& root, const std::string& token) {
  for (const Json* step : steps(root, "post_processor", "processors")) {
    const JsonFields fields(*step, kFile + ": post_processor");
    if (fields.text("type") != "TemplateProcessing") continue;
    const Json* single = fields.find_array("single");
    if (!single || single->empty() || !(*single)[0].is_object()) continue;
    const Json* special = JsonFields((*single)[0], fields.at("single")).find_object("SpecialToken");
    if (special && special->value("id", Json()) == token) return true;
  }
  return false;
}

void read_special_tokens(const TokenizerTexts& texts, const Json& root, const Ids& ids,
                         Vocabulary* vocabulary) {
  const int64_t last = static_cast<int64_t>(vocabulary->tokens.size()) - 1;
  const Json tokenizer_config = parse_or_empty(texts.tokenizer_config, "tokenizer_config.json");
  const Json config = parse_or_empty(texts.config, "config.json");
  const Json generation = parse_or_empty(texts.generation_config, "generation_config.json");
  const JsonFields words(tokenizer_config, "tokenizer_config.json");
  const std::vector<int64_t> config_ends =
      JsonFields(config, "config.json").integers("eos_token_id", 0, last);
  const std::vector<int64_t> generation_ends =
      JsonFields(generation, "generation_config.json").integers("eos_token_id", 0, last);

  vocabulary->bos = special_id(words, "bos_token", ids);
  vocabulary->eos = special_id(words, "eos_token", ids);
  if (texts.tokenizer_config.empty())
    vocabulary->bos = static_cast<int32_t>(
        JsonFields(config, "config.json").find_integer("bos_token_id", 0, last).value_or(-1));
  for (const auto* ends : {&generation_ends, &config_ends}) {
    if (vocabulary->eos < 0 && !ends->empty()) vocabulary->eos = static_cast<int32_t>(ends->front());
    vocabulary->end_of_generation.insert(vocabulary->end_of_generation.end(), ends->begin(), ends->end());
  }
  if (vocabulary->bos >= 0) {
    const std::string& text = vocabulary->tokens[static_cast<size_t>(vocabulary->bos)];
    vocabulary->add_bos = words.find_bool("add_bos_token").value_or(post_processor_starts_with(root, text));
  }
  add_known_ends(vocabulary);
}

// The file chat_template.jinja, or tokenizer_config.json's chat_template: a text, or a list of named ones.
std::string read_chat_template(const TokenizerTexts& texts) {
  if (!texts.chat_template.empty()) return std::string(texts.chat_template);
  const Json json = parse_or_empty(texts.tokenizer_config, "tokenizer_config.json");
  const JsonFields config(json, "tokenizer_config.json");
  const Json* value = config.find("chat_template");
  if (!value || !value->is_array()) return config.find_text("chat_template").value_or("");
  std::string chosen;
  for (const Json& entry : *value) {
    check(entry.is_object(), WI_E_FORMAT, config.at("chat_template"), " must hold objects");
    const JsonFields fields(entry, config.at("chat_template"));
    const std::string text = fields.text("template");
    if (chosen.empty() || fields.text("name") == "default") chosen = text;
  }
  return chosen;
}

Json parse_or_empty(std::string_view text, const std::string& file) {
  return text.empty() ? Json::object() : parse_json(text, file);
}

}  // namespace
}  // namespace wi
