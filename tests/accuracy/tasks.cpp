// The task generator: invents facts, plants them at even but jittered depths, and writes the questions.
#include "tasks.h"

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>

namespace accuracy {
namespace {

constexpr int64_t kPromptTokens = 96;  // of a document's length, for template and question

// Words that are one token for the sample model, which miscopies others.
const std::vector<std::string> kAttributes = {"password",        "watchword",   "code name",  "pass phrase",
                                              "hidden treasure", "nickname",    "magic word", "secret phrase",
                                              "symbol",          "secret word", "token",      "special word"};
const std::vector<std::string> kNames = {
    "Boaz",   "Conrad", "Titus",  "Ruth",   "Emma",   "Hugo",  "Felix",   "Diana",  "Simeon", "Alice",
    "Joshua", "Gideon", "Andrew", "Philip", "Rachel", "Ivan",  "Timothy", "Zara",   "Martha", "Silas",
    "Oscar",  "Clara",  "Victor", "Nora",   "Walter", "Henry", "Robert",  "Nathan", "Hannah", "Judith"};
const std::vector<std::string> kTrades = {"potter", "ferryman", "painter", "baker", "hunter", "teacher",
                                          "singer", "fisher",   "brewer",  "smith", "tailor", "weaver",
                                          "miller", "mason",    "farmer",  "sailor"};
const std::vector<std::string> kAdjectives = {"river", "mountain", "gray",  "winter", "ivory", "eagle",
                                              "upper", "golden",   "north", "summer", "old",   "silver",
                                              "great", "stone",    "green", "hidden"};
const std::vector<std::string> kPlaces = {"harbor",  "temple", "market", "garden",  "barn",   "cellar",
                                          "library", "tower",  "bridge", "orchard", "chapel", "pond",
                                          "ranch",   "mill",   "inn",    "forge"};
const std::vector<std::string> kWords = {
    "amber",  "lantern", "copper",  "meadow", "silver",  "thistle", "walnut", "feather", "poppy",  "saddle",
    "cedar",  "maple",   "anchor",  "velvet", "sparrow", "candle",  "basket", "cherry",  "jacket", "forest",
    "bridle", "parsley", "spoon",   "parrot", "pencil",  "ribbon",  "window", "cotton",  "engine", "melon",
    "pebble", "clover",  "emerald", "barrel", "butter",  "carpet",  "falcon", "hammer",  "island", "kettle",
    "lemon",  "marble",  "needle",  "pepper", "rabbit",  "saffron", "turtle", "wagon",   "acorn",  "cactus",
    "drum",   "ginger",  "hazel",   "indigo", "ladder",  "magnet",  "olive",  "raven",   "tiger",  "valley",
    "willow", "honey",   "salt",    "iron",   "brass",   "wheat",   "barley", "lily",    "plum",   "peach",
    "almond", "pearl",   "ruby",    "coral",  "button",  "mirror",  "bucket", "pillow",  "rocket", "ticket",
    "helmet", "trumpet", "violin",  "guitar", "harp",    "bell",    "horn",   "beetle",  "otter",  "badger",
    "camel",  "goat",    "eagle",   "dove",   "cloud",   "thunder", "harvest"};

// The standard's distributions differ between libraries; this does not.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  size_t below(size_t count) { return static_cast<size_t>(engine_() % count); }
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  const std::string& of(const std::vector<std::string>& list) { return list[below(list.size())]; }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; i--) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

struct Fact {
  std::string attribute, entity, value;
  double depth = 0;
  std::string key() const { return attribute + " of " + entity; }
  std::string statement() const { return "The " + key() + " is " + value + "."; }
  std::string question() const { return "What is the " + key() + "?"; }
};

// Keys and values that are each there once.
class Inventor {
 public:
  explicit Inventor(Dice& dice) : dice_(dice) {}
  Fact fact() {
    Fact made;
    do {
      made.attribute = dice_.of(kAttributes);
      made.entity = dice_.below(3) ? dice_.of(kNames) + " the " + dice_.of(kTrades)
                                   : "the " + dice_.of(kAdjectives) + " " + dice_.of(kPlaces);
    } while (!used_.insert(made.key()).second);
    made.value = value();
    return made;
  }
  std::vector<Fact> facts(int count) {
    std::vector<Fact> made;
    for (int i = 0; i < count; i++) made.push_back(fact());
    return made;
  }
  std::string value() {
    std::string made;
    do made = dice_.of(kWords) + " " + dice_.of(kWords);
    while (!used_.insert(made).second);
    return made;
  }

 private:
  Dice& dice_;
  std::set<std::string> used_;
};

// A line to plant. Lines of one document are spread evenly in their order.
struct Planted {
  std::string line;
  double* depth = nullptr;  // out, may be null
};

void plant(const TaskOptions& options, const Counting& counting, std::vector<Planted> lines, Dice& dice,
           Document* document);

std::vector<Question> ask_each(const std::string& task, const std::vector<Fact>& facts, size_t most) {
  std::vector<Question> questions;
  for (size_t i = 0; i < std::min(most, facts.size()); i++)
    questions.push_back({task, facts[i].question(), {facts[i].value}, false, facts[i].depth});
  return questions;
}

// One question for all of them.
Question ask_all(const std::string& task, const std::vector<Fact>& facts) {
  Question question{task, "Tell me each of these, one per line: ", {}, false, facts.front().depth};
  for (size_t i = 0; i < facts.size(); i++) {
    question.text += (i ? "; the " : "the ") + facts[i].key();
    question.expected.push_back(facts[i].value);
  }
  question.text += ".";
  return question;
}

void each_alone(const std::vector<Question>& questions, Document* document) {
  for (const Question& question : questions) document->conversations.push_back({question});
}

// Shuffles the order in which lines stand in the document; facts keep theirs, so that asking for the first
// few asks at random depths.
void plant_shuffled(const TaskOptions& options, const Counting& counting, std::vector<Planted> lines,
                    Dice& dice, Document* document) {
  dice.shuffle(lines);
  plant(options, counting, std::move(lines), dice, document);
}

std::vector<Planted> lines_of(std::vector<Fact>& facts) {
  std::vector<Planted> lines;
  for (Fact& fact : facts) lines.push_back({fact.statement(), &fact.depth});
  return lines;
}

// One fact; a chain of variables; lists of words, one of them far more frequent.
void make_single(const TaskOptions& options, const Counting& counting, Dice& dice, Document* document) {
  Inventor inventor(dice);
  std::vector<Fact> facts = inventor.facts(1);
  std::vector<Planted> lines = lines_of(facts);
  dice.shuffle(lines);

  const std::string number = std::to_string(10000 + dice.below(90000));
  std::vector<std::string> variables;
  for (char letter : {'A', 'B', 'C', 'D', 'E'})
    variables.push_back(std::string("X") + letter + std::to_string(100 + dice.below(900)));
  double chain_depth = 0;
  for (size_t i = 0; i < variables.size(); i++)
    lines.push_back({"VAR " + variables[i] + " = " + (i ? "VAR " + variables[i - 1] : number) + ".",
                     i ? nullptr : &chain_depth});

  std::vector<std::string> words(kWords.begin(), kWords.begin() + 24);
  dice.shuffle(words);
  std::vector<std::string> drawn(20, words[0]);
  for (size_t i = 1; i < words.size(); i++) drawn.insert(drawn.end(), 2, words[i]);
  dice.shuffle(drawn);
  double words_depth = 0;
  for (size_t i = 0; i + 6 <= drawn.size(); i += 6) {
    std::string line = "Listed words:";
    for (size_t j = i; j < i + 6; j++) line += " " + drawn[j];
    lines.push_back({line + ".", i ? nullptr : &words_depth});
  }
  std::rotate(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(dice.below(lines.size())),
              lines.end());
  plant(options, counting, lines, dice, document);
  each_alone(ask_each("single", facts, 1), document);
  document->conversations.push_back(
      {{"tracking", "Which variables have the value " + number + "?", variables, false, chain_depth}});
  document->conversations.push_back(
      {{"counting", "What is the most common of the listed words?", {words[0]}, false, words_depth}});
}

// A fact among 8 others; four of them in one conversation; a key that has four values.
void make_few(const TaskOptions& options, const Counting& counting, Dice& dice, Document* document) {
  Inventor inventor(dice);
  std::vector<Fact> facts = inventor.facts(9);
  const Fact several = inventor.fact();
  std::vector<Fact> values(4, several);
  for (Fact& fact : values) fact.value = inventor.value();
  std::vector<Planted> lines = lines_of(facts);
  for (Fact& fact : values) lines.push_back({fact.statement(), &fact.depth});
  plant_shuffled(options, counting, std::move(lines), dice, document);

  each_alone(ask_each("multikey-8", facts, static_cast<size_t>(options.questions)), document);
  const std::vector<Fact> four(facts.begin(), facts.begin() + 4);
  if (options.single_answers) {
    document->conversations.push_back(ask_each("multiquery", four, 4));
  } else {
    document->conversations.push_back({ask_all("multiquery", four)});
  }
  Question question{"multivalue", several.question(), {}, options.single_answers, values.front().depth};
  for (const Fact& fact : values) question.expected.push_back(fact.value);
  if (!options.single_answers) question.text = "What are all the values of the " + several.key() + "?";
  document->conversations.push_back({question});
}

void make_many(int facts_count, const TaskOptions& options, const Counting& counting, Dice& dice,
               Document* document) {
  Inventor inventor(dice);
  std::vector<Fact> facts = inventor.facts(facts_count + 1);
  plant_shuffled(options, counting, lines_of(facts), dice, document);
  each_alone(
      ask_each("multikey-" + std::to_string(facts_count), facts, static_cast<size_t>(options.questions)),
      document);
}

// The context-intensive one: everything that was planted is asked for.
void make_list(int facts_count, const TaskOptions& options, const Counting& counting, Dice& dice,
               Document* document) {
  Inventor inventor(dice);
  std::vector<Fact> facts = inventor.facts(facts_count);
  plant_shuffled(options, counting, lines_of(facts), dice, document);
  const std::string task = "list-" + std::to_string(facts_count);
  if (options.single_answers) {
    each_alone(ask_each(task, facts, facts.size()), document);
  } else {
    document->conversations.push_back({ask_all(task, facts)});
  }
}

using Maker = void (*)(const TaskOptions&, const Counting&, Dice&, Document*);
struct Kind {
  const char* name;
  Maker make;
};
constexpr Kind kKinds[] = {
    {"single", make_single},
    {"few", make_few},
    {"multikey-64", [](auto& o, auto& c, auto& d, auto* to) { make_many(64, o, c, d, to); }},
    {"multikey-512", [](auto& o, auto& c, auto& d, auto* to) { make_many(512, o, c, d, to); }},
    {"list-5", [](auto& o, auto& c, auto& d, auto* to) { make_list(5, o, c, d, to); }},
    {"list-20", [](auto& o, auto& c, auto& d, auto* to) { make_list(20, o, c, d, to); }},
    {"list-50", [](auto& o, auto& c, auto& d, auto* to) { make_list(50, o, c, d, to); }},
};

}  // namespace

const std::vector<std::string>& document_kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Kind& kind : kKinds) list.push_back(kind.name);
    return list;
  }();
  return names;
}

Document make_document(const TaskOptions& options, const Counting& counting, const std::string& kind,
                       int64_t length, uint64_t seed) {
  const auto found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](auto& k) { return kind == k.name; });
  if (found == std::end(kKinds)) throw std::runtime_error("there is no kind of document \"" + kind + "\"");
  Document document;
  document.kind = kind;
  document.length = length;
  document.seed = seed;
  Dice dice(seed * 1000003 + static_cast<uint64_t>(length) * 31 + static_cast<uint64_t>(found - kKinds));
  found->make(options, counting, dice, &document);
  if (document.text.empty()) document.conversations.clear();
  return document;
}

namespace {

// Line i of n stands at the first start of a line after (i + jitter) / n of the text. Leaves the document
// empty if the lines take more than half of it.
void plant(const TaskOptions& options, const Counting& counting, std::vector<Planted> lines, Dice& dice,
           Document* document) {
  std::string all;
  for (const Planted& planted : lines) all += planted.line + "\n";
  const size_t wanted = static_cast<size_t>(document->length);
  const size_t taken = counting.tokens(all) + kPromptTokens;
  if (2 * taken > wanted) return;

  // No text has more than 6 bytes a token on average over thousands of them.
  const size_t room = 6 * wanted;
  const size_t last = options.text.size() > room ? options.text.size() - room : 0;
  const size_t first = std::min(options.first_byte, last);
  size_t start = first + dice.below(last - first + 1);
  start = start ? options.text.find('\n', start) + 1 : 0;
  std::string text = counting.first(options.text.substr(start, room), wanted - taken);
  text.erase(text.rfind('\n') + 1);
  if (text.empty())
    throw std::runtime_error("the text is too short for " + std::to_string(wanted) + " tokens");

  std::vector<size_t> places;
  for (size_t i = 0; i < lines.size(); i++) {
    const double depth = (static_cast<double>(i) + dice.unit()) / static_cast<double>(lines.size());
    places.push_back(text.find('\n', static_cast<size_t>(depth * static_cast<double>(text.size() - 1))) + 1);
  }
  size_t done = 0;
  std::vector<size_t> starts;
  for (size_t i = 0; i < lines.size(); i++) {
    document->text.append(text, done, places[i] - done);
    done = places[i];
    starts.push_back(document->text.size());
    document->text += lines[i].line + "\n";
  }
  document->text.append(text, done);
  document->text.erase(document->text.find_last_not_of('\n') + 1);
  for (size_t i = 0; i < lines.size(); i++)
    if (lines[i].depth)
      *lines[i].depth = static_cast<double>(starts[i]) / static_cast<double>(document->text.size());
}

}  // namespace
}  // namespace accuracy
