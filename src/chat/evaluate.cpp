// The interpreter's expressions.
#include <algorithm>

#include "src/chat/filters.h"
#include "src/chat/interpreter.h"
#include "src/chat/interpreter_level.h"
#include "src/chat/methods.h"
#include "src/chat/operators.h"
#include "src/chat/tests.h"
#include "src/chat/unicode.h"

namespace wi::chat {
namespace {

int64_t slice_bound(const Value& value, int64_t otherwise) {
  if (value.is(Kind::none)) return otherwise;
  require_defined(value);
  check(value.is_whole(), WI_E_ARGUMENT, "a slice's bound is a ", value.type_name(), ", must be an integer");
  return value.integer();
}

// `count` elements: the first, and every step-th from there.
struct Slice {
  int64_t begin = 0, step = 1;
  size_t count = 0;
  size_t at(size_t i) const { return static_cast<size_t>(begin + step * static_cast<int64_t>(i)); }
};

// Python's slice.indices(): which elements of `size`.
Slice slice_of(size_t size, const Value& from, const Value& to, const Value& by) {
  const int64_t length = static_cast<int64_t>(size), step = slice_bound(by, 1);
  check(step != 0, WI_E_ARGUMENT, "a slice's step is 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto place = [&](const Value& bound, int64_t otherwise) {
    int64_t at = slice_bound(bound, otherwise);
    if (bound.is(Kind::none)) return at;
    if (at < 0) at = at < -length ? low : at + length;
    return std::clamp(at, low, std::max(low, high));
  };
  const int64_t begin = place(from, step > 0 ? low : high), end = place(to, step > 0 ? high : low);
  if (step > 0 ? begin >= end : begin <= end) return {};
  const int64_t last = step > 0 ? (end - 1 - begin) / step : (end + 1 - begin) / step;
  return {begin, last == 0 ? 1 : step, static_cast<size_t>(last) + 1};
}

Text slice_text(const TextObject& object, const Slice& slice, Budget& budget) {
  const Text& text = object.text;
  if (slice.count == 0) return {};
  const size_t first = slice.at(0);
  if (slice.step == 1) {
    budget.bytes(text.size() / 8);
    if (object.characters() == text.size()) return text.slice(first, first + slice.count);
    const size_t begin = character_offset(text.bytes(), 0, first);
    if (first + slice.count == object.characters()) return text.slice(begin, text.size());
    return text.slice(begin, character_offset(text.bytes(), begin, slice.count));
  }
  std::vector<size_t> starts{0};
  budget.bytes(text.size() * sizeof(size_t));
  for (size_t at = 0; at < text.size();) starts.push_back(at += character_length(text.bytes(), at));
  Text out;
  for (size_t i = 0; i < slice.count; ++i) out.append(text, starts[slice.at(i)], starts[slice.at(i) + 1]);
  return out;
}

// Whether there is a self: in Jinja there always is, the template, though it is no variable.
bool is_about_self(const Expression& test) {
  const Expression& tested = *test.parts[0];
  return tested.kind == Expression::Kind::variable && tested.name == "self" &&
         (test.name == "defined" || test.name == "undefined");
}

}  // namespace

Value Interpreter::loop_attribute(const Value& self, std::string_view name) {
  Loop& loop = self.loop();
  const auto index = static_cast<int64_t>(loop.index);
  const auto all = [&] { return static_cast<int64_t>(length(loop)); };
  const auto has_next = [&] { return loop.index + 1 < loop.items.size() || advance(loop); };
  if (name == "index") return Value::of(index + 1);
  if (name == "index0") return Value::of(index);
  if (name == "first") return Value::of(index == 0);
  if (name == "last") return Value::of(!has_next());
  if (name == "length") return Value::of(all());
  if (name == "revindex") return Value::of(all() - index);
  if (name == "revindex0") return Value::of(all() - index - 1);
  if (name == "depth") return Value::of(loop.depth + 1);
  if (name == "depth0") return Value::of(loop.depth);
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem")
    return has_next() ? loop.items[loop.index + 1] : Value::undefined("there is no next item");
  return method_of(self, name);
}

Value Interpreter::evaluate(const Expression& expression) {
  using Node = Expression::Kind;
  const Level level(*this);
  budget_.step();
  line_ = expression.line;
  switch (expression.kind) {
    case Node::constant:
      return expression.constant;
    case Node::variable: {
      const Value* value = scope_->find(expression.name, budget_);
      check(value || expression.name != "self", WI_E_UNSUPPORTED,
            "'self', the template itself, is supported in 'self is defined' only");
      return value ? *value : undefined_name(expression.name);
    }
    case Node::list:
    case Node::tuple: {
      std::vector<Value> items;
      items.reserve(expression.parts.size());
      for (const ExpressionPtr& part : expression.parts) items.push_back(evaluate(*part));
      return make(std::move(items), expression.kind == Node::list ? Kind::list : Kind::tuple);
    }
    case Node::dict:
      return dict(expression);
    case Node::attribute:
      return attribute(evaluate_part(expression, 0), expression.name);
    case Node::item: {
      const Value of = evaluate_part(expression, 0);
      return item(of, evaluate_part(expression, 1));
    }
    case Node::slice:
      return slice(expression);
    case Node::call: {
      const Value callee = evaluate_part(expression, 0);
      return call(callee, arguments(expression));
    }
    case Node::filter:
      return filtered(expression, evaluate_part(expression, 0));
    case Node::test: {
      if (is_about_self(expression) && !scope_->find("self", budget_))
        return Value::of(expression.name == "defined");
      const Value value = evaluate_part(expression, 0);
      return Value::of(apply_test(*this, expression.name, value, arguments(expression)));
    }
    case Node::negate:
      return Value::of(!evaluate_part(expression, 0).truth());
    case Node::unary:
      return sign(expression.name[0], evaluate_part(expression, 0));
    case Node::binary: {
      const Value left = evaluate_part(expression, 0);
      return operate(*this, expression.name, left, evaluate_part(expression, 1));
    }
    case Node::comparison:
      return comparison(expression);
    case Node::both: {
      Value left = evaluate_part(expression, 0);
      return left.truth() ? evaluate_part(expression, 1) : left;
    }
    case Node::either: {
      Value left = evaluate_part(expression, 0);
      return left.truth() ? left : evaluate_part(expression, 1);
    }
    case Node::choice:
      if (evaluate_part(expression, 0).truth()) return evaluate_part(expression, 1);
      if (expression.parts[2]) return evaluate_part(expression, 2);
      return Value::undefined("an inline if without else was false");
  }
  return {};
}

Value Interpreter::evaluate_part(const Expression& expression, size_t i) {
  return expression.parts[i] ? evaluate(*expression.parts[i]) : Value::none();
}

Value Interpreter::filtered(const Expression& filters, Value value) {
  // A block's filters: the innermost has no value of its own.
  if (filters.parts[0])
    value = filters.parts[0]->kind == Expression::Kind::filter ? filtered(*filters.parts[0], std::move(value))
                                                               : evaluate(*filters.parts[0]);
  return apply_filter(*this, filters.name, value, arguments(filters));
}

Value Interpreter::dict(const Expression& expression) {
  auto made = std::make_shared<Dict>();
  for (size_t i = 0; i < expression.parts.size(); i += 2) {
    const Value key = evaluate_part(expression, i);
    made->set(key, evaluate_part(expression, i + 1), budget_);
  }
  budget_.values(2 * expression.parts.size() + 4);
  return Value::of(std::move(made));
}

// a < b < c holds if both do, and b is evaluated once.
Value Interpreter::comparison(const Expression& expression) {
  Value left = evaluate_part(expression, 0);
  bool holds = true;
  for (size_t i = 0; holds && i < expression.operators.size(); ++i) {
    const std::string& name = expression.operators[i];
    Value right = evaluate_part(expression, i + 1);
    if (name == "in" || name == "not in")
      holds = contains(*this, right, left) == (name == "in");
    else
      holds = holds_between(*this, name, left, right);
    left = std::move(right);
  }
  return Value::of(holds);
}

Value Interpreter::slice(const Expression& expression) {
  const Value of = evaluate_part(expression, 0), from = evaluate_part(expression, 1),
              to = evaluate_part(expression, 2), by = evaluate_part(expression, 3);
  require_defined(of);
  if (of.is(Kind::text)) {
    const TextObject& text = of.text_object();
    Text part = slice_text(text, slice_of(text.characters(), from, to, by), budget_);
    return text.is_safe ? make_safe(std::move(part)) : make(std::move(part));
  }
  check(of.is(Kind::list) || of.is(Kind::tuple) || of.is(Kind::range), WI_E_ARGUMENT, "a ", of.type_name(),
        " cannot be sliced");
  const std::vector<Value>& items = of.list().items;
  const Slice slice = slice_of(items.size(), from, to, by);
  budget_.values(slice.count);
  std::vector<Value> part;
  part.reserve(slice.count);
  for (size_t i = 0; i < slice.count; ++i) part.push_back(items[slice.at(i)]);
  return make(std::move(part), of.kind());
}

Arguments Interpreter::arguments(const Expression& expression) {
  Arguments made;
  for (const Argument& argument : expression.arguments) {
    Value value = evaluate(*argument.value);
    switch (argument.kind) {
      case Argument::Kind::positional:
        made.positional.push_back(std::move(value));
        break;
      case Argument::Kind::named:
        made.named.emplace_back(Text(argument.name), std::move(value));
        break;
      case Argument::Kind::list:
        for (Value& each : elements(value)) made.positional.push_back(std::move(each));
        break;
      case Argument::Kind::dict:
        check(value.is(Kind::dict), WI_E_ARGUMENT, "a ", value.type_name(), " stands behind **");
        for (const auto& [key, each] : value.dict().entries()) {
          check(key.is(Kind::text), WI_E_ARGUMENT, "a key behind ** is no text");
          budget_.texts(key.text());
          made.named.emplace_back(key.text(), each);
        }
        break;
    }
  }
  budget_.values(made.positional.size() + made.named.size());
  return made;
}

Value Interpreter::attribute(const Value& of, std::string_view name) {
  require_defined(of);
  budget_.bytes(name.size());
  if (of.is(Kind::loop)) return loop_attribute(of, name);
  if (of.is(Kind::space)) {
    const Value* held = of.dict().find(name, budget_);
    return held ? *held : Value::undefined(concat("the namespace has no '", name, "'"));
  }
  if (of.is(Kind::tuple) && of.list().is_group && (name == "grouper" || name == "list"))
    return of.list().items[name == "list"];
  Value method = method_of(of, name);
  if (!method.is(Kind::undefined) || method.object()) return method;
  if (of.is(Kind::dict))
    if (const Value* held = of.dict().find(name, budget_)) return *held;
  return Value::undefined(concat("a ", of.type_name(), " has no '", name, "'"));
}

Value Interpreter::item(const Value& of, const Value& key) {
  require_defined(of);
  const auto none = [&] { return Value::undefined(concat("a ", of.type_name(), " has no such element")); };
  if (of.is(Kind::dict) && !key.is(Kind::list) && !key.is(Kind::dict) && !key.is(Kind::view))
    if (const Value* held = of.dict().find(key, budget_)) return *held;
  if (key.is(Kind::text)) return attribute(of, key.text().bytes());
  if (!key.is_whole()) return none();
  int64_t index = key.integer();
  if (of.is(Kind::list) || of.is(Kind::tuple) || of.is(Kind::range)) {
    const std::vector<Value>& items = of.list().items;
    if (index < 0) index += static_cast<int64_t>(items.size());
    if (index < 0 || index >= static_cast<int64_t>(items.size())) return none();
    return items[static_cast<size_t>(index)];
  }
  if (of.is(Kind::text)) {
    const auto length = static_cast<int64_t>(of.text_object().characters());
    if (index < 0) index += length;
    if (index < 0 || index >= length) return none();
    return make(slice_text(of.text_object(), {index, 1, 1}, budget_));
  }
  return none();
}

// A filter's result that is walked later reads its generator then; here it has done so already.
List& Interpreter::generator(const Value& iterator) {
  check(!iterator.list().is_read, WI_E_UNSUPPORTED,
        "a generator that is read by a filter and by something else is not supported");
  return iterator.list();
}

std::vector<Value> Interpreter::elements(const Value& of) {
  std::vector<Value> items;
  switch (of.kind()) {
    case Kind::undefined:
      return items;
    case Kind::text: {
      const Text& text = of.text();
      budget_.bytes(text.size() * (sizeof(TextObject) + sizeof(Value)));
      for (size_t at = 0; at < text.size();) {
        const size_t end = at + character_length(text.bytes(), at);
        items.push_back(Value::of(text.slice(at, end)));
        at = end;
      }
      return items;
    }
    case Kind::dict:
      budget_.values(of.dict().entries().size());
      for (const auto& [key, value] : of.dict().entries()) items.push_back(key);
      return items;
    case Kind::iterator: {
      List& list = generator(of);
      const auto begin =
          list.items.begin() + static_cast<ptrdiff_t>(std::exchange(list.taken, list.items.size()));
      budget_.values(list.items.size());
      return {begin, list.items.end()};
    }
    default:
      check(of.is_elements(), WI_E_ARGUMENT, "a ", of.type_name(), " cannot be walked through");
      budget_.values(of.list().items.size());
      return of.list().items;
  }
}

}  // namespace wi::chat
