// The statements. Scopes are Jinja's: a for block's rounds, macros, captured and filtered blocks have one
// each and see what is around them; if has none.
#include "src/chat/interpreter.h"

#include <array>

#include "src/chat/filters.h"
#include "src/chat/globals.h"
#include "src/chat/interpreter_level.h"
#include "src/chat/macro_object.h"
#include "src/chat/print.h"

namespace wi::chat {
namespace {

// Puts a scope in place while it lives.
class InScope {
 public:
  InScope(std::shared_ptr<Scope>& place, std::shared_ptr<Scope> scope)
      : place_(place), outer_(std::exchange(place, std::move(scope))) {}
  ~InScope() { place_ = std::move(outer_); }
  InScope(const InScope&) = delete;
  InScope& operator=(const InScope&) = delete;

 private:
  std::shared_ptr<Scope>& place_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace

Text Interpreter::render(const Template& program,
                         const std::vector<std::pair<std::string, Value>>& variables) {
  try {
    scope_ = std::make_shared<Scope>(nullptr);
    for (const auto& [name, value] : global_functions()) scope_->set(name, value, budget_);
    scope_ = std::make_shared<Scope>(scope_);
    for (const auto& [name, value] : variables) scope_->set(name, value, budget_);
    scope_ = scope_with(program.unset);
    Text out;
    execute(program.body, out);
    return out;
  } catch (const Error& error) {
    fail(error.code(), "line ", line_, ": ", error.what());
  }
}

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->clear();
  for (const auto& macro : macros_) macro->scope.reset();
}

const Value* Scope::find(std::string_view name, Budget& budget) const {
  for (const Scope* scope = this; scope; scope = scope->parent_.get()) {
    budget.step(1 + (scope->values_.size() + name.size()) / 16);
    for (const auto& [known, value] : scope->values_)
      if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value, Budget& budget) {
  budget.step(1 + (values_.size() + name.size()) / 16);
  for (auto& [known, held] : values_)
    if (known == name) {
      held = std::move(value);
      return;
    }
  budget.bytes(name.size() + sizeof(Value));
  values_.emplace_back(name, std::move(value));
}

Value Interpreter::make(Text text) {
  budget_.texts(text);
  budget_.bytes(sizeof(TextObject));
  return Value::of(std::move(text));
}

Value Interpreter::make_safe(Text text) {
  budget_.texts(text);
  budget_.bytes(sizeof(TextObject));
  auto made = std::make_shared<TextObject>(std::move(text));
  made->is_safe = true;
  return Value(Kind::text, std::move(made));
}

Value Interpreter::make(std::vector<Value> items, Kind kind) {
  budget_.values(items.size() + 2);
  return Value::of(std::move(items), kind);
}

Value Interpreter::make_namespace() {
  namespaces_.push_back(std::make_shared<Dict>());
  return Value(Kind::space, namespaces_.back());
}

Interpreter::Flow Interpreter::execute(const Block& block, Text& out) {
  const Level level(*this);
  for (const Statement& statement : block)
    if (const Flow flow = execute(statement, out); flow != Flow::normal) return flow;
  return Flow::normal;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Text& out) {
  using Type = Statement::Kind;
  budget_.step();
  line_ = statement.line;
  const auto put = [&](const Text& text) {
    budget_.texts(text);
    out.append(text);
  };
  switch (statement.kind) {
    case Type::data:
      put(statement.data.text());
      break;
    case Type::print:
      put(print(evaluate(*statement.value)));
      break;
    case Type::branch:
      return execute(evaluate(*statement.condition).truth() ? statement.body : statement.otherwise, out);
    case Type::loop:
      return loop(statement, out);
    case Type::assign:
      assign(statement.target, evaluate(*statement.value));
      break;
    case Type::capture:
      assign(statement.target, captured(statement));
      break;
    case Type::macro:
      scope_->set(statement.macro->name, make_macro(statement), budget_);
      break;
    case Type::call: {
      Arguments with = arguments(*statement.value);
      with.named.emplace_back(Text("caller"), make_macro(statement));
      put(print(call(evaluate(*statement.value->parts[0]), std::move(with))));
      break;
    }
    case Type::filter:
      put(print(captured(statement)));
      break;
    case Type::scope: {
      std::vector<Value> values;
      values.reserve(statement.values.size());
      for (const ExpressionPtr& value : statement.values) values.push_back(evaluate(*value));
      const InScope inside(scope_, scope_with(statement.unset));
      for (size_t i = 0; i < values.size(); ++i) assign(statement.targets[i], values[i]);
      return execute(statement.body, out);
    }
    case Type::leave:
      return Flow::leave;
    case Type::next:
      return Flow::next;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::loop(const Statement& statement, Text& out) {
  const Value of = evaluate(*statement.value);
  const auto state = std::make_shared<Loop>();
  state->depth = loop_depth_;
  state->statement = &statement;
  state->around = scope_;
  if (of.is(Kind::iterator)) {
    generator(of);
    state->source = std::static_pointer_cast<List>(of.shared());
  } else {
    std::vector<Value> items = elements(of);
    for (const Value& item : items) nest(*state, item);
    if (statement.condition) {
      state->source = std::make_shared<List>();
      state->source->items = std::move(items);
    } else {
      state->items = std::move(items);
    }
  }
  const Value variable(Kind::loop, state);
  bool ended = false;  // a round reached its end: what {% else %} asks
  for (; state->index < state->items.size() || advance(*state); ++state->index) {
    budget_.step();
    const InScope inside(scope_, scope_with(statement.unset));
    scope_->set("loop", variable, budget_);
    assign(statement.target, state->items[state->index]);
    const Flow flow = execute(statement.body, out);
    ended = ended || flow == Flow::normal;
    if (flow == Flow::leave) break;
  }
  if (ended) return Flow::normal;
  const InScope inside(scope_, scope_with(statement.otherwise_unset));
  return execute(statement.otherwise, out);
}

// One more element, if there is one. As in Jinja a generator is walked, and a loop's condition evaluated, no
// sooner than a round, loop.last or the like asks.
bool Interpreter::advance(Loop& loop) {
  while (loop.source && loop.source->taken < loop.source->items.size()) {
    budget_.step();
    budget_.values(1);
    Value item = loop.source->items[loop.source->taken++];
    if (loop.statement->condition) {
      const InScope inside(scope_, std::make_shared<Scope>(loop.around));
      assign(loop.statement->target, item);
      if (!evaluate(*loop.statement->condition).truth()) continue;
    }
    nest(loop, item);
    loop.items.push_back(std::move(item));
    return true;
  }
  return false;
}

size_t Interpreter::length(Loop& loop) {
  while (advance(loop)) continue;
  return loop.items.size();
}

std::shared_ptr<Scope> Interpreter::scope_with(const std::vector<std::string>& unset) const {
  auto scope = std::make_shared<Scope>(scope_);
  for (const std::string& name : unset) scope->set(name, undefined_name(name), budget_);
  return scope;
}

// What a block prints, through its filters.
Value Interpreter::captured(const Statement& statement) {
  const InScope inside(scope_, scope_with(statement.unset));
  Text text;
  execute(statement.body, text);
  Value made = make(std::move(text));
  return statement.value ? filtered(*statement.value, std::move(made)) : made;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.is_tuple) {
    if (target.attribute.empty()) return scope_->set(target.name, value, budget_);
    const Value* space = scope_->find(target.name, budget_);
    check(space, WI_E_ARGUMENT, "'", target.name, "' is undefined");
    check(space->is(Kind::space), WI_E_ARGUMENT, "cannot assign to ", target.name, ".", target.attribute,
          ": it is a ", space->type_name(), ", not a namespace");
    check(!target.attribute.starts_with('_'), WI_E_ARGUMENT, "a namespace cannot hold '", target.attribute,
          "': it begins with an underscore");
    budget_.bytes(2 * sizeof(Value));
    return space->dict().set(Value::of(target.attribute), value, budget_);
  }
  const std::vector<Value> items = elements(value);
  check(items.size() == target.several.size(), WI_E_ARGUMENT, "a value of ", items.size(),
        " elements is assigned to ", target.several.size(), " names");
  for (size_t i = 0; i < items.size(); ++i) assign(target.several[i], items[i]);
}

Value Interpreter::make_macro(const Statement& statement) {
  budget_.bytes(sizeof(MacroObject));
  macros_.push_back(std::make_shared<MacroObject>(*statement.macro, statement.body, scope_));
  return Value(Kind::callable, macros_.back());
}

Value Interpreter::MacroObject::call(Interpreter& run, Arguments arguments) {
  return run.run_macro(*this, std::move(arguments));
}

Value Interpreter::run_macro(const MacroObject& object, Arguments arguments) {
  const Macro& macro = object.macro;
  const Level level(*this);
  const InScope outer(scope_, object.scope);
  const InScope inside(scope_, scope_with(macro.unset));
  const auto& inner = scope_;
  const auto take = [&](std::string_view name) {
    budget_.step(1 + arguments.named.size() / 16);
    for (auto given = arguments.named.begin(); given != arguments.named.end(); ++given)
      if (given->first.bytes() == name) {
        Value value = std::move(given->second);
        arguments.named.erase(given);
        return std::make_pair(true, value);
      }
    return std::make_pair(false, Value());
  };
  // All are there before the first default, which may name any of them and none of the same name around.
  bool has_caller = false;
  std::vector<const Macro::Parameter*> left_out;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Macro::Parameter& parameter = macro.parameters[i];
    has_caller = has_caller || parameter.name == "caller";
    Value value = Value::undefined(concat("parameter '", parameter.name, "' was not provided"));
    if (i < arguments.positional.size())
      value = arguments.positional[i];
    else if (auto [given, named] = take(parameter.name); given)
      value = std::move(named);
    else if (parameter.otherwise)
      left_out.push_back(&parameter);
    inner->set(parameter.name, std::move(value), budget_);
  }
  if (macro.takes_caller && !has_caller) {
    auto [given, caller] = take("caller");
    inner->set("caller", given ? caller : Value::undefined("No caller defined"), budget_);
  }
  if (macro.takes_named) {
    auto more = std::make_shared<Dict>();
    for (auto& [name, value] : arguments.named) more->set(Value::of(name), value, budget_);
    inner->set("kwargs", Value::of(std::move(more)), budget_);
  } else {
    check(arguments.named.empty(), WI_E_ARGUMENT, "macro '", macro.name, "' takes no argument '",
          arguments.named.empty() ? "" : arguments.named[0].first.bytes(), "'");
  }
  const size_t count = macro.parameters.size(), given = arguments.positional.size();
  check(macro.takes_more || given <= count, WI_E_ARGUMENT, "macro '", macro.name, "' takes at most ", count,
        " arguments, ", given, " are given");
  if (macro.takes_more) {
    std::vector<Value> more;
    for (size_t i = count; i < given; ++i) more.push_back(arguments.positional[i]);
    inner->set("varargs", make(std::move(more), Kind::tuple), budget_);
  }
  for (const Macro::Parameter* parameter : left_out)
    inner->set(parameter->name, evaluate(*parameter->otherwise), budget_);
  Text out;
  execute(object.body, out);
  return make(std::move(out));
}

Text Interpreter::print(const Value& value) { return to_text(value, budget_); }

Value Interpreter::call(const Value& callee, Arguments arguments) {
  require_defined(callee);
  check(!callee.is(Kind::loop), WI_E_UNSUPPORTED, "recursive loops are not supported");
  check(callee.is(Kind::callable), WI_E_ARGUMENT, "a ", callee.type_name(), " cannot be called");
  const Level level(*this);
  budget_.step();
  const std::array<Value, 1> held{callee};  // the call may let go of what it was reached through
  return held[0].callable().call(*this, std::move(arguments));
}

}  // namespace wi::chat
