// tokenizer_config.json's tokenizer_class. Some classes of transformers take only the tokens and merges of a
// tokenizer.json and build what is done to text themselves, whatever the file says of it. What they build is
// taken on where it differs in what such files are known to differ in; else the folder is refused by name, as it is
// for one of those classes that is not known here. All other classes leave the file as it is. Whether BOS comes first
// is the file's post-processor's to say, but for classes that have their own. And fix_mistral_regex, which is no class's.
#include <algorithm>
#include <array>
#include <cstdlib>

#include "src/error.h"
#include "src/tokenizer/pattern_dialect.h"
#include "src/tokenizer/pre_tokenizer.h"
#include "src/tokenizer/vocabulary_json.h"

namespace wi {
namespace {

using Rewrite = RewriteStep::Kind;
using Behavior = SplitStep::Behavior;

const std::string& kConfigFile = *new std::string("tokenizer_config.json");  // never destroyed, as others
constexpr std::string_view kMark = "\u2581";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kKept = "with PreTrainedTokenizerFast there the file is taken as it is";

// The other classes of transformers (5.23) that build a BPE from the tokens alone.
constexpr std::array<std::string_view, 17> kOtherRebuilt = {
    "BlenderbotTokenizer", "CLIPTokenizer",        "DebertaTokenizer", "EsmcTokenizer",
    "HerbertTokenizer",    "LayoutLMv3Tokenizer",  "LukeTokenizer",    "NllbTokenizer",
    "NougatTokenizer",     "OpenAIGPTTokenizer",   "Qwen3_5Tokenizer", "ReformerTokenizer",
    "RobertaTokenizer",    "SeamlessM4TTokenizer", "Siglip2Tokenizer", "Tipsv2Tokenizer",
    "WhisperTokenizer"};

std::string without_fast(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

bool names_byte_level(const Json& root) {
  for (const auto& [key, members] :
       {std::pair("pre_tokenizer", "pretokenizers"), std::pair("decoder", "decoders")})
    for (const Json* step : tokenizer_steps(root, key, members))
      if (JsonFields(*step, kTokenizerFile).find_text("type") == "ByteLevel") return true;
  return false;
}

struct Chosen {
  std::string name;    // without Fast; empty: one that leaves the file as it is
  bool asked = false;  // the folder names it
};

// The class that transformers' AutoTokenizer takes.
Chosen class_of(const JsonFields& words, const JsonFields& model, const Json& root) {
  const std::string named = without_fast(words.find_text("tokenizer_class").value_or(""));
  const std::string asked =
      named.empty() ? without_fast(model.find_text("tokenizer_class").value_or("")) : named;
  const std::string type = model.find_text("model_type").value_or("");
  const bool qwen2 = type == "qwen2", qwen = qwen2 || type == "qwen3";
  const std::string own = "Qwen2Tokenizer";
  if (asked.empty()) return {qwen ? own : "", false};
  const Json* code = words.find("auto_map");  // of the folder's own, which is not run, but looked for
  if (code && (code->is_array() || (code->is_object() && code->contains("AutoTokenizer"))))
    return {asked, true};
  if (type == "mistral") return {};
  if (asked == "LlamaTokenizer" && !qwen2 && names_byte_level(root)) return {};
  return {qwen2 ? own : asked, !qwen2 || asked == own};
}

// Where a pattern takes every character it is the same whether its matches are kept or what is not removed.
bool same_splits(std::vector<SplitStep> file, const std::vector<SplitStep>& wanted) {
  for (SplitStep& step : file) {
    if (step.behavior == Behavior::removed && step.invert) step = {step.pattern, Behavior::isolated, false};
    if (step.behavior == Behavior::isolated) step.invert = false;
  }
  return file == wanted;
}

// The names that a class gives where the folder does not.
Json own_names(const std::string& name) {
  if (name == "LlamaTokenizer" || name == "CodeLlamaTokenizer")
    return {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
  if (name == "GemmaTokenizer")
    return {{"unk_token", "<unk>"},
            {"bos_token", "<bos>"},
            {"eos_token", "<eos>"},
            {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}};
  if (name == "CohereTokenizer")
    return {
        {"unk_token", "<UNK>"},        {"bos_token", "<BOS_TOKEN>"}, {"eos_token", "<|END_OF_TURN_TOKEN|>"},
        {"pad_token", "<PAD>"},        {"cls_token", "<CLS>"},       {"sep_token", "<SEP>"},
        {"mask_token", "<MASK_TOKEN>"}};
  if (name == "GPTNeoXTokenizer")
    return {{"unk_token", "<|endoftext|>"},
            {"bos_token", "<|endoftext|>"},
            {"eos_token", "<|endoftext|>"},
            {"pad_token", "<|padding|>"}};
  if (name == "GPT2Tokenizer" || name == "CodeGenTokenizer")
    return {{"unk_token", "<|endoftext|>"}, {"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}};
  if (name == "Qwen2Tokenizer")
    return {{"unk_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}};
  return Json::object();
}

// Before 5.0.0, of which there were also "5.0.0.dev0" and "5.0.0rc1".
bool is_before_5(const std::string& version) {
  if (version.starts_with("5.0.0")) return version.size() > 5 && !version.starts_with("5.0.0.post");
  return std::atoi(version.c_str()) < 5;
}

class Rebuilt {
 public:
  Rebuilt(std::string name, const JsonFields& words, const JsonFields& model, Vocabulary* vocabulary)
      : name_(std::move(name)), words_(words), model_(model), vocabulary_(*vocabulary) {}

  void llama(bool unknown) {
    const auto is_mark = [&](const RewriteStep& step) {
      return (step.kind == Rewrite::replace && step.from == " " && step.to == kMark) ||
             (step.kind != Rewrite::replace && step.to == kMark);
    };
    const auto all_marks = [&](const std::vector<RewriteStep>& steps) {
      return std::all_of(steps.begin(), steps.end(), is_mark);
    };
    const bool spaces_gone =
        std::any_of(vocabulary_.normalizer.begin(), vocabulary_.normalizer.end(),
                    [](const RewriteStep& step) { return step.kind == Rewrite::replace; });
    const auto is_word_cut = [&](const SplitStep& step) {
      return step == SplitStep{quoted_pattern(kMark), Behavior::merged_next, false} ||
             (spaces_gone && step.pattern == quoted_pattern(" ") && !step.invert);
    };
    characters(unknown);
    refuse_unless(all_marks(vocabulary_.normalizer), "normalizer", kNoSpaceMarks);
    refuse_unless(all_marks(vocabulary_.rewrites), "pre_tokenizer", kNoSpaceMarks);
    refuse_unless(std::all_of(vocabulary_.splits->begin(), vocabulary_.splits->end(), is_word_cut),
                  "pre_tokenizer", "cuts words otherwise");
    vocabulary_.normalizer.clear();
    vocabulary_.rewrites.clear();
    vocabulary_.splits->clear();
    vocabulary_.add_space_prefix = vocabulary_.space_after_special = false;
    vocabulary_.space_mark = kMark;
    vocabulary_.rewrites.push_back({Rewrite::replace, " ", std::string(kMark)});
    if (!words_.find_bool("add_prefix_space").value_or(true)) return;
    const bool legacy = name_ == "LlamaTokenizer" && words_.find_bool("legacy").value_or(false);
    vocabulary_.rewrites.push_back(
        {legacy ? Rewrite::prepend_missing : Rewrite::prepend_first, {}, std::string(kMark)});
    vocabulary_.add_space_prefix = true;
    vocabulary_.space_after_special = legacy;
  }

  // Marks spaces and puts none first; then there is nothing to cut at.
  void gemma() {
    characters(true);
    const std::vector<RewriteStep> marks = {{Rewrite::replace, " ", std::string(kMark)}};
    const auto is_of_spaces = [](const SplitStep& step) {
      return step.pattern == quoted_pattern(" ") && !step.invert;
    };
    refuse_unless(vocabulary_.normalizer == marks, "normalizer", "does not just mark spaces");
    refuse_unless(vocabulary_.rewrites.empty(), "pre_tokenizer", "marks spaces");
    refuse_unless(std::all_of(vocabulary_.splits->begin(), vocabulary_.splits->end(), is_of_spaces),
                  "pre_tokenizer", "cuts words otherwise");
    vocabulary_.splits->clear();
  }

  // Of a folder that does not ask for the class only text that is not in NFC is read otherwise: what else its
  // file says the model was trained with.
  bool qwen2(bool asked) {
    const std::vector<RewriteStep> nfc = {{Rewrite::nfc, {}, {}}};
    const bool whole = vocabulary_.model == Vocabulary::Model::byte_bpe && !ignores_merges();
    const bool prefix = words_.find_bool("add_prefix_space").value_or(false) || !vocabulary_.rewrites.empty();
    const bool cuts =
        same_splits(*vocabulary_.splits, {{std::string(kQwen2Pattern), Behavior::isolated, false}});
    const bool normal = vocabulary_.normalizer.empty() || vocabulary_.normalizer == nfc;
    if (!asked && (!whole || prefix || !cuts || !normal)) return false;
    byte_level();
    refuse_unless(!prefix, "pre_tokenizer", "or add_prefix_space puts a space first");
    refuse_unless(cuts, "pre_tokenizer", "cuts words otherwise");
    take_nfc();
    return true;
  }

  // A file that also cuts digits apart is known: the class does not do that.
  void gpt2() {
    byte_level();
    refuse_other_prefix();
    refuse_unless(vocabulary_.normalizer.empty(), "normalizer", "is there");
    std::vector<SplitStep>& splits = *vocabulary_.splits;
    if (splits.size() == 2 && (splits[0].pattern == "\\p{N}" || splits[0].pattern == "\\p{N}+"))
      splits.erase(splits.begin());
    refuse_other_splits({{std::string(kGpt2Pattern), Behavior::isolated, false}});
  }

  void gpt_neox() { nfc_of_gpt2({{std::string(kGpt2Pattern), Behavior::isolated, false}}); }

  void cohere() {
    nfc_of_gpt2(
        {{"\\p{N}", Behavior::isolated, false}, {std::string(kGpt2Pattern), Behavior::isolated, false}});
  }

 private:
  static constexpr const char* kNoSpaceMarks = "does more than mark spaces";

  // Behind NFC, which a file may leave out.
  void nfc_of_gpt2(const std::vector<SplitStep>& splits) {
    byte_level();
    refuse_other_prefix();
    refuse_other_splits(splits);
    take_nfc();
  }

  void take_nfc() {
    const std::vector<RewriteStep> nfc = {{Rewrite::nfc, {}, {}}};
    refuse_unless(vocabulary_.normalizer.empty() || vocabulary_.normalizer == nfc, "normalizer",
                  "is not NFC");
    vocabulary_.normalizer = nfc;
  }

  void refuse_other_prefix() const {
    refuse_unless(words_.find_bool("add_prefix_space").value_or(false) != vocabulary_.rewrites.empty(),
                  "pre_tokenizer", "and the class differ in add_prefix_space");
  }

  void refuse_other_splits(const std::vector<SplitStep>& wanted) const {
    refuse_unless(same_splits(*vocabulary_.splits, wanted), "pre_tokenizer", "cuts words otherwise");
  }

  // unknown: characters that have no bytes become unknown tokens, of which transformers fuses those beside each other.
  void characters(bool unknown) const {
    refuse_unless(vocabulary_.model == Vocabulary::Model::char_bpe, "pre_tokenizer", "is ByteLevel");
    refuse_unless(!ignores_merges(), "model.ignore_merges", "is set");
    refuse_unless(has_bytes() || (unknown && model_.find_bool("fuse_unk").value_or(false)), "model.vocab",
                  "lacks tokens of bytes, without which characters vanish");
  }

  void byte_level() const {
    refuse_unless(vocabulary_.model == Vocabulary::Model::byte_bpe, "pre_tokenizer", "is no ByteLevel");
    refuse_unless(!ignores_merges(), "model.ignore_merges", "is set");
  }

  bool ignores_merges() const { return model_.find_bool("ignore_merges").value_or(false); }

  bool has_bytes() const {
    const Json* words = model_.find_object("vocab");
    constexpr std::string_view digits = "0123456789ABCDEF";
    for (size_t byte = 0; words && byte < 256; ++byte)
      if (occurs_in_utf8(byte) &&
          !words->contains(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">"))
        return false;
    return true;
  }
  static bool occurs_in_utf8(size_t byte) { return byte != 0xC0 && byte != 0xC1 && byte < 0xF5; }

  void refuse_unless(bool holds, const char* what, const char* how) const {
    check(holds, WI_E_UNSUPPORTED, kConfigFile, ": tokenizer_class: transformers would build ", name_,
          " from the tokens alone, but ", kTokenizerFile, "'s ", what, ' ', how, "; ", kKept);
  }

  const std::string name_;
  const JsonFields& words_;
  const JsonFields& model_;
  Vocabulary& vocabulary_;
};

}  // namespace

BuiltByClass apply_tokenizer_class(const TokenizerTexts& texts, const Json& root, const JsonFields& model,
                                   Vocabulary* vocabulary) {
  const JsonTree words = parse_or_empty(texts.tokenizer_config, kConfigFile, texts.watch);
  const JsonTree config = parse_or_empty(texts.config, "config.json", texts.watch);
  const JsonFields fields(*words, kConfigFile);
  const auto [name, asked] = class_of(fields, JsonFields(*config, "config.json"), root);
  if (std::find(kOtherRebuilt.begin(), kOtherRebuilt.end(), name) != kOtherRebuilt.end())
    fail(WI_E_UNSUPPORTED, kConfigFile, ": tokenizer_class: transformers would build ", name,
         " from the tokens alone, which is not implemented; ", kKept);
  Rebuilt rebuilt(name, fields, model, vocabulary);
  BuiltByClass built;
  built.rebuilt = true;
  if (name == "LlamaTokenizer" || name == "CodeLlamaTokenizer") {
    rebuilt.llama(name == "CodeLlamaTokenizer");
    built.byte_fallback = true;
    if (name == "CodeLlamaTokenizer") built.bos_first = true;
  } else if (name == "GemmaTokenizer") {
    rebuilt.gemma();
    built.byte_fallback = true;
  } else if (name == "Qwen2Tokenizer") {
    if (!rebuilt.qwen2(asked)) return {};
    built.plain_names = true;
  } else if (name == "GPT2Tokenizer" || name == "CodeGenTokenizer") {
    rebuilt.gpt2();
  } else if (name == "GPTNeoXTokenizer") {
    rebuilt.gpt_neox();
    built.bos_first = false;
  } else if (name == "CohereTokenizer") {
    rebuilt.cohere();
  } else {
    return {};
  }
  built.names = own_names(name);
  return built;
}

void mend_mistral_words(const TokenizerTexts& texts, const Json& words, const Json& root, size_t tokens,
                        Vocabulary* vocabulary) {
  constexpr size_t kMostOfOthers =
      100'000;  // as transformers tells these tokenizers from Mistral's older ones
  const JsonFields asked(words, kConfigFile);
  if (!asked.find_bool("fix_mistral_regex").value_or(false) || tokens <= kMostOfOthers) return;
  const JsonTree config = parse_or_empty(texts.config, "config.json", texts.watch);
  const JsonFields model(*config, "config.json");
  if (model.find_text("model_type") != "mistral" ||
      !is_before_5(model.find_text("transformers_version").value_or("")))
    return;
  const std::vector<const Json*> steps = tokenizer_steps(root, "pre_tokenizer", "pretokenizers");
  check(steps.size() > 1 && JsonFields(*steps[0], kTokenizerFile).find_text("type") == "Split",
        WI_E_UNSUPPORTED, asked.at("fix_mistral_regex"), " is true, supported where ", kTokenizerFile,
        "'s pre_tokenizer is a sequence that begins with a Split");
  vocabulary->splits->front() = {kTekkenPattern, Behavior::isolated, false};
}

}  // namespace wi
