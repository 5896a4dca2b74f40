#include "src/chat/unset_names.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "src/text_hash.h"

namespace wi::chat {
namespace {

using Names = std::unordered_set<std::string_view, TextHash>;

class Finder {
 public:
  // One scope: the names that it has from the start, what is evaluated inside before its body, and the body.
  // Then the scopes inside, which see all of its names, also those that come later in the text.
  std::vector<std::string> scope(const std::vector<std::string_view>& own,
                                 const std::vector<const Expression*>& first, Block& body) {
    Names outer_names = std::exchange(names_, {}), outer_unset = std::exchange(unset_, {});
    for (std::string_view name : own) names_.insert(name);
    for (const Expression* expression : first) load(*expression);
    mentions(body, false);
    std::vector<std::string> unset(unset_.begin(), unset_.end());
    const Names names = std::move(names_);
    for (std::string_view name : names) ++around_[name];
    scopes_inside(body);
    for (std::string_view name : names) --around_[name];
    names_ = std::move(outer_names);
    unset_ = std::move(outer_unset);
    return unset;
  }

 private:
  bool is_around(std::string_view name) const {
    const auto found = around_.find(name);
    return found != around_.end() && found->second > 0;
  }

  void load(std::string_view name) {
    if (!is_around(name)) names_.insert(name);
  }

  // In a branch that may not be taken the name keeps what is around.
  void store(std::string_view name, bool in_branch) {
    if (names_.insert(name).second && !in_branch && !is_around(name) && name != "self") unset_.insert(name);
  }

  void store(const Target& target, bool in_branch) {
    for (const Target& each : target.several) store(each, in_branch);
    if (target.is_tuple) return;
    if (target.attribute.empty())
      store(target.name, in_branch);
    else
      load(target.name);
  }

  void load(const Expression& expression) {
    if (expression.kind == Expression::Kind::variable) load(expression.name);
    for (const ExpressionPtr& part : expression.parts)
      if (part) load(*part);
    for (const Argument& argument : expression.arguments) load(*argument.value);
  }

  // What a scope's own statements say, not those of the scopes inside.
  void mentions(const Block& block, bool in_branch) {
    using Type = Statement::Kind;
    for (const Statement& statement : block) {
      if (statement.kind == Type::branch) {
        load(*statement.condition);
        mentions(statement.body, true);
        mentions(statement.otherwise, true);
        continue;
      }
      if (statement.value && statement.kind != Type::capture) load(*statement.value);
      for (const ExpressionPtr& value : statement.values) load(*value);
      if (statement.kind == Type::assign || statement.kind == Type::capture)
        store(statement.target, in_branch);
      if (statement.kind == Type::macro) store(statement.macro->name, in_branch);
    }
  }

  static void add_names(const Target& target, std::vector<std::string_view>& names) {
    for (const Target& each : target.several) add_names(each, names);
    if (!target.is_tuple) names.push_back(target.name);
  }

  void scopes_inside(Block& block) {
    using Type = Statement::Kind;
    for (Statement& statement : block) {
      std::vector<std::string_view> own;
      switch (statement.kind) {
        case Type::branch:
          scopes_inside(statement.body);
          scopes_inside(statement.otherwise);
          break;
        case Type::loop:
          own.push_back("loop");
          add_names(statement.target, own);
          statement.unset = scope(own, {}, statement.body);
          statement.otherwise_unset = scope({}, {}, statement.otherwise);
          break;
        case Type::macro:
        case Type::call: {
          Macro& macro = *statement.macro;
          std::vector<const Expression*> defaults;
          for (const Macro::Parameter& parameter : macro.parameters) {
            own.push_back(parameter.name);
            if (parameter.otherwise) defaults.push_back(parameter.otherwise.get());
          }
          macro.unset = scope(own, defaults, statement.body);
          break;
        }
        case Type::capture:
        case Type::filter:
          statement.unset = scope({}, {}, statement.body);
          break;
        case Type::scope:
          for (const Target& target : statement.targets) add_names(target, own);
          statement.unset = scope(own, {}, statement.body);
          break;
        default:
          break;
      }
    }
  }

  std::unordered_map<std::string_view, int, TextHash> around_;  // how many of the scopes around have the name
  Names names_, unset_;                                         // of the scope at hand
};

}  // namespace

void find_unset_names(Template& whole) { whole.unset = Finder().scope({}, {}, whole.body); }

}  // namespace wi::chat
