// The tokens that are cut out of the text, from the files that may name them: tokenizer.json's added_tokens,
// tokenizer_config.json's added_tokens_decoder and its named tokens, and the older added_tokens.json and
// special_tokens_map.json. They are added in the order in which transformers adds them, since the library
// tokenizers gives ids by that order. And which of all tokens begin a text and end an answer.
#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

#include "src/error.h"
#include "src/tokenizer/vocabulary_json.h"

namespace wi {
namespace {

const std::string kConfigFile = "tokenizer_config.json";
constexpr std::array kNamed = {"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};

// The vocabulary of added tokens, as tokenizers keeps it.
class AddedTokens {
 public:
  AddedTokens(TokenIds* ids, Vocabulary* vocabulary, Watch* watch)
      : model_tokens_(static_cast<int64_t>(ids->size())),
        ids_(*ids),
        vocabulary_(*vocabulary),
        watch_(watch) {}

  // declared: the id that the file gives it; -1: none. A token that gets one beyond the model's embedding is left
  // out: a model has no row for it, so that it can't be meant to be read (a <pad> for training, mostly).
  void add(const std::string& where, const std::string& text, AddedToken token, int64_t declared) {
    tick(watch_, ++calls_);
    if (text.empty()) return;
    const auto known = ids_.find(text), beyond = beyond_.find(text);
    const int64_t id = known != ids_.end()       ? known->second
                       : beyond != beyond_.end() ? beyond->second
                                                 : next_id();
    check(declared < 0 || declared == id, WI_E_UNSUPPORTED, where, ": '", text, "' has id ", declared,
          ", but tokenizers, which gives ids in order, would give it ", id);
    if (id >= static_cast<int64_t>(vocabulary_.tokens.size())) {
      if (declared < 0 || id > INT32_MAX) return;
      beyond_.emplace(text, static_cast<int32_t>(id));
      last_ = std::max(last_, id);
      return;
    }
    token.token = static_cast<int32_t>(id);
    if (token.special) specials_.insert(text);
    const auto [held, fresh] = flags_.emplace(token.token, token);
    if (fresh) order_.push_back(token.token);
    if (!fresh && held->second == token) return;
    held->second = token;
    last_ = std::max(last_, id);
    const bool special = specials_.count(text) > 0;
    place_token(where, text, id, special ? TokenKind::control : TokenKind::user_defined, &ids_, &vocabulary_);
  }

  const AddedToken* find(const std::string& text) const {
    const auto known = ids_.find(text);
    if (known == ids_.end()) return nullptr;
    const auto held = flags_.find(known->second);
    return held == flags_.end() ? nullptr : &held->second;
  }
  bool holds(const std::string& text) const { return find(text) != nullptr; }

  // The last flags hold, but what was special once stays so. Of two that are one text the first special one counts.
  void finish() {
    vocabulary_.added.emplace();
    for (const bool special : {true, false}) {
      for (const int32_t id : order_) {
        tick(watch_, ++calls_);
        AddedToken token = flags_.at(id);
        token.special = specials_.count(vocabulary_.tokens[static_cast<size_t>(id)]) > 0;
        if (token.special == special) vocabulary_.added->push_back(token);
      }
    }
  }

 private:
  int64_t next_id() const { return last_ >= model_tokens_ ? last_ + 1 : model_tokens_; }

  const int64_t model_tokens_;
  TokenIds& ids_;
  Vocabulary& vocabulary_;
  Watch* const watch_;
  size_t calls_ = 0;
  int64_t last_ = -1;                    // highest id of an added token
  std::map<int32_t, AddedToken> flags_;  // by id, the last that were given
  std::vector<int32_t> order_;           // ids, as they were added first
  TokenIds beyond_;                      // of declared tokens that were left out
  std::unordered_set<std::string, TextHash> specials_;
};

AddedToken read_flags(const JsonFields& fields) {
  AddedToken token;
  token.special = fields.find_bool("special").value_or(false);
  token.normalized = fields.find_bool("normalized").value_or(!token.special);
  token.lstrip = fields.find_bool("lstrip").value_or(false);
  token.rstrip = fields.find_bool("rstrip").value_or(false);
  token.single_word = fields.find_bool("single_word").value_or(false);
  return token;
}

// A token's text, or an object with the text as its content; empty for none.
std::string token_text(const JsonFields& fields, const char* key) {
  const Json* value = fields.find(key);
  if (!value) return {};
  return value->is_object() ? JsonFields(*value, fields.at(key)).text("content") : fields.text(key);
}

struct NamedToken {
  std::string where, text;
  AddedToken flags;
  bool has_name = false;  // bos_token and the like; else one of a list, which is added where it is missing
};

NamedToken read_named(const Json& value, const std::string& where, bool has_name) {
  NamedToken named{where, {}, {}, has_name};
  if (value.is_object()) {
    const JsonFields fields(value, where);
    named.text = fields.text("content");
    named.flags = read_flags(fields);
  } else {
    check(value.is_string(), WI_E_FORMAT, where, " must be a token");
    named.text = value.get<std::string>();
  }
  named.flags.special = true;
  return named;
}

// The named tokens, also those under names of a model's own, then those without a name.
std::vector<NamedToken> read_named_tokens(const Json& config, Watch* watch) {
  std::vector<NamedToken> list;
  const auto read = [&](const std::string& key, const Json& value, bool has_name) {
    tick(watch, list.size());
    list.push_back(read_named(value, kConfigFile + ": " + key, has_name));
  };
  for (const char* key : kNamed)
    if (config.contains(key) && !config[key].is_null()) read(key, config[key], true);
  for (const auto& [key, value] : config.items())
    if (key.ends_with("_token") && value.is_string() &&
        std::find(kNamed.begin(), kNamed.end(), key) == kNamed.end())
      read(key, value, true);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
    if (config.contains(key) && (config[key].is_array() || config[key].is_object()))
      for (const Json& value : config[key]) read(key, value, config[key].is_object());
  return list;
}

void add_tokenizer_tokens(const Json& root, AddedTokens* added) {
  const Json* list = JsonFields(root, kTokenizerFile).find_array("added_tokens");
  for (size_t i = 0; list && i < list->size(); ++i) {
    const std::string where = concat(kTokenizerFile, ": added_tokens: element ", i);
    check((*list)[i].is_object(), WI_E_FORMAT, where, " is ", (*list)[i].type_name(), ", must be an object");
    const JsonFields fields((*list)[i], where);
    added->add(where, fields.text("content"), read_flags(fields), fields.integer("id", 0, INT32_MAX));
  }
}

struct DeclaredToken {
  std::string where, text;
  AddedToken flags;
};

// By id: what stands in tokenizer_config.json, or else in added_tokens.json and not in tokenizer.json.
std::map<int64_t, DeclaredToken> read_declared(const Json& config, const TokenizerTexts& texts,
                                               const std::vector<NamedToken>& named,
                                               const AddedTokens& added) {
  std::map<int64_t, DeclaredToken> list;
  if (config.contains("added_tokens_decoder")) {
    const std::string where = kConfigFile + ": added_tokens_decoder";
    const Json& decoder = config["added_tokens_decoder"];
    check(decoder.is_object(), WI_E_FORMAT, where, " must be an object");
    for (const auto& [key, value] : decoder.items()) {
      tick(texts.watch, list.size());
      check(!key.empty() && key.size() < 10 &&
                std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
                value.is_object(),
            WI_E_FORMAT, where, ": '", key, "' must be an id with an object");
      const JsonFields fields(value, where);
      list.insert_or_assign(std::stoll(key),
                            DeclaredToken{where, fields.text("content"), read_flags(fields)});
    }
    return list;
  }
  const JsonTree json = parse_or_empty(texts.added_tokens, "added_tokens.json", texts.watch);
  std::unordered_set<std::string_view, TextHash> names;
  for (const NamedToken& one : named) names.insert(one.text);
  for (const auto& [text, id] : json->items()) {
    check(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX, WI_E_FORMAT,
          "added_tokens.json: '", text, "' must have an id");
    tick(texts.watch, list.size());
    if (added.holds(text)) continue;
    AddedToken flags;
    flags.special = names.count(text) > 0;
    flags.normalized = !flags.special;
    list.insert_or_assign(id.get<int64_t>(), DeclaredToken{"added_tokens.json", text, flags});
  }
  return list;
}

void read_ends(const TokenizerTexts& texts, Vocabulary* vocabulary) {
  const int64_t last = static_cast<int64_t>(vocabulary->tokens.size()) - 1;
  const JsonTree config = parse_or_empty(texts.config, "config.json", texts.watch);
  const JsonTree generation = parse_or_empty(texts.generation_config, "generation_config.json", texts.watch);
  // config.json's are what was, where generation_config.json says it: transformers goes by that one alone.
  std::vector<int64_t> ends =
      JsonFields(*generation, "generation_config.json").integers("eos_token_id", 0, last);
  if (ends.empty()) ends = JsonFields(*config, "config.json").integers("eos_token_id", 0, last);
  // And by what its class of configurations begins with, where nothing is said at all.
  if (ends.empty() && !config->contains("eos_token_id") && last >= 2) {
    const std::string type = JsonFields(*config, "config.json").find_text("model_type").value_or("");
    if (type == "llama" || type == "mistral") ends = {2};
  }
  if (vocabulary->eos < 0 && !ends.empty()) vocabulary->eos = static_cast<int32_t>(ends.front());
  vocabulary->end_of_generation.insert(vocabulary->end_of_generation.end(), ends.begin(), ends.end());
  add_known_ends(vocabulary, texts.watch);
}

}  // namespace

JsonTree tokenizer_words(const TokenizerTexts& texts, const BuiltByClass& built) {
  JsonTree words(built.names);
  words.merge(parse_or_empty(texts.tokenizer_config, kConfigFile, texts.watch));
  if (!words->contains("added_tokens_decoder") && !texts.special_tokens_map.empty())
    words.merge(parse_or_empty(texts.special_tokens_map, "special_tokens_map.json", texts.watch));
  return words;
}

void read_special_tokens(const TokenizerTexts& texts, const Json& root, int32_t vocab,
                         const BuiltByClass& built, TokenIds* ids, Vocabulary* vocabulary) {
  AddedTokens added(ids, vocabulary, texts.watch);
  const JsonTree tree = tokenizer_words(texts, built);
  const Json& config = *tree;
  // A class that builds all from the tokens takes those that are added from one file.
  if (!built.rebuilt || !config.contains("added_tokens_decoder")) add_tokenizer_tokens(root, &added);
  const std::vector<NamedToken> named = read_named_tokens(config, texts.watch);
  std::unordered_set<std::string_view, TextHash> names;
  for (const NamedToken& one : named)
    if (one.has_name) names.insert(one.text);
  for (auto& [id, token] : read_declared(config, texts, named, added)) {
    const AddedToken* held = added.find(token.text);
    AddedToken flags = token.flags;
    flags.token = static_cast<int32_t>(id);
    if (held && *held == flags) continue;
    flags.special = flags.special || names.count(token.text) > 0;
    added.add(token.where, token.text, flags, id);
  }
  for (const NamedToken& one : named) {
    const AddedToken* held = added.find(one.text);
    if (held && !one.has_name && !built.plain_names) continue;
    AddedToken flags = built.plain_names ? AddedToken{} : held ? *held : one.flags;
    flags.special = true;  // what has a name is, whatever the files say of it
    added.add(one.where, one.text, flags, -1);
  }
  added.finish();

  const auto id_of = [&](const JsonFields& fields, const char* key) {
    const std::string text = token_text(fields, key);
    if (text.empty()) return -1;
    const auto found = ids->find(text);
    if (found == ids->end() && built.names.contains(key) && built.names[key] == text) return -1;
    check(found != ids->end(), WI_E_FORMAT, fields.at(key), " is '", text, "', which is no token");
    return found->second;
  };
  const JsonFields words(config, kConfigFile);
  vocabulary->bos = id_of(words, "bos_token");
  vocabulary->eos = id_of(words, "eos_token");
  if (texts.tokenizer_config.empty() && vocabulary->bos < 0) {
    const JsonTree model = parse_or_empty(texts.config, "config.json", texts.watch);
    vocabulary->bos = static_cast<int32_t>(
        JsonFields(*model, "config.json").find_integer("bos_token_id", 0, vocab - 1).value_or(-1));
  }
  // Not add_bos_token's to say, beside a tokenizer.json: transformers passes over it.
  const int32_t first = built.bos_first ? -1 : post_processor_first(root, *ids);
  if (vocabulary->bos < 0) vocabulary->bos = first;
  check(first < 0 || first == vocabulary->bos, WI_E_UNSUPPORTED, kTokenizerFile, ": post_processor puts '",
        vocabulary->tokens[static_cast<size_t>(std::max(first, 0))],
        "' first, which is not the bos_token of ", kConfigFile);
  vocabulary->add_bos = vocabulary->bos >= 0 && built.bos_first.value_or(first >= 0);
  read_ends(texts, vocabulary);
}

}  // namespace wi
