// tokenizer_config.json's tokenizer_class. Some classes of transformers take only the tokens and merges of a
// tokenizer.json and build what is done to text themselves, whatever the file says of it. What they build is
// taken on where it differs in what such files are known to differ in; else the folder is refused by name. A
// class that is not known here leaves the file as it is.
#include <algorithm>

#include "src/error.h"
#include "src/tokenizer/pattern_dialect.h"
#include "src/tokenizer/vocabulary_json.h"

namespace wi {
namespace {

using Rewrite = RewriteStep::Kind;
using Behavior = SplitStep::Behavior;

const std::string& kConfigFile = *new std::string("tokenizer_config.json");  // never destroyed, as others
constexpr std::string_view kMark = "\u2581";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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
    refuse_unless(vocabulary_.model == Vocabulary::Model::char_bpe, "pre_tokenizer", "is ByteLevel");
    refuse_unless(all_marks(vocabulary_.normalizer), "normalizer", kNoSpaceMarks);
    refuse_unless(all_marks(vocabulary_.rewrites), "pre_tokenizer", kNoSpaceMarks);
    refuse_unless(std::all_of(vocabulary_.splits->begin(), vocabulary_.splits->end(), is_word_cut),
                  "pre_tokenizer", "cuts words otherwise");
    refuse_unless(!ignores_merges(), "model.ignore_merges", "is set");
    refuse_unless(has_bytes() || (unknown && model_.find_bool("fuse_unk").value_or(false)), "model.vocab",
                  "lacks tokens of bytes, without which characters vanish");
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

  // Of a folder that does not ask for the class only text that is not in NFC is read otherwise: what else its
  // file says the model was trained with.
  void qwen2(bool asked) {
    const std::vector<RewriteStep> nfc = {{Rewrite::nfc, {}, {}}};
    const bool whole = vocabulary_.model == Vocabulary::Model::byte_bpe && !ignores_merges();
    const bool prefix = words_.find_bool("add_prefix_space").value_or(false) || !vocabulary_.rewrites.empty();
    const bool cuts =
        same_splits(*vocabulary_.splits, {{std::string(kQwen2Pattern), Behavior::isolated, false}});
    const bool normal = vocabulary_.normalizer.empty() || vocabulary_.normalizer == nfc;
    if (!asked && (!whole || prefix || !cuts || !normal)) return;
    byte_level();
    refuse_unless(!prefix, "pre_tokenizer", "or add_prefix_space puts a space first");
    refuse_unless(cuts, "pre_tokenizer", "cuts words otherwise");
    refuse_unless(normal, "normalizer", "is not NFC");
    vocabulary_.normalizer = nfc;
  }

  // A file that also cuts digits apart is known: the class does not do that.
  void gpt2() {
    byte_level();
    const bool prefix = words_.find_bool("add_prefix_space").value_or(false);
    refuse_unless(prefix != vocabulary_.rewrites.empty(), "pre_tokenizer",
                  "and the class differ in add_prefix_space");
    refuse_unless(vocabulary_.normalizer.empty(), "normalizer", "is there");
    std::vector<SplitStep>& splits = *vocabulary_.splits;
    if (splits.size() == 2 && (splits[0].pattern == "\\p{N}" || splits[0].pattern == "\\p{N}+"))
      splits.erase(splits.begin());
    refuse_unless(same_splits(splits, {{std::string(kGpt2Pattern), Behavior::isolated, false}}),
                  "pre_tokenizer", "cuts words otherwise");
  }

 private:
  static constexpr const char* kNoSpaceMarks = "does more than mark spaces";

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
          " from the tokens alone, but ", kTokenizerFile, "'s ", what, ' ', how,
          "; with PreTrainedTokenizerFast there the file is taken as it is");
  }

  const std::string name_;
  const JsonFields& words_;
  const JsonFields& model_;
  Vocabulary& vocabulary_;
};

}  // namespace

bool apply_tokenizer_class(const TokenizerTexts& texts, const Json& root, const JsonFields& model,
                           Vocabulary* vocabulary) {
  const JsonTree words = parse_or_empty(texts.tokenizer_config, kConfigFile);
  const JsonTree config = parse_or_empty(texts.config, "config.json");
  const JsonFields fields(*words, kConfigFile);
  const auto [name, asked] = class_of(fields, JsonFields(*config, "config.json"), root);
  Rebuilt rebuilt(name, fields, model, vocabulary);
  const bool code = name == "CodeLlamaTokenizer", llama = code || name == "LlamaTokenizer";
  if (llama) rebuilt.llama(code);
  if (name == "Qwen2Tokenizer") rebuilt.qwen2(asked);
  if (name == "GPT2Tokenizer") rebuilt.gpt2();
  return llama;
}

}  // namespace wi
