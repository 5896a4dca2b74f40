#include "src/chat/tests.h"

#include <algorithm>

#include "src/chat/operators.h"
#include "src/chat/print.h"
#include "src/chat/text_operations.h"

namespace wi::chat {
namespace {

// Tests of a value alone.
struct Plain {
  std::string_view name;
  bool (*holds)(const Value& value);
};

constexpr Plain kPlain[] = {
    {"defined", [](const Value& v) { return !v.is(Kind::undefined); }},
    {"undefined", [](const Value& v) { return v.is(Kind::undefined); }},
    {"none", [](const Value& v) { return v.is(Kind::none); }},
    {"boolean", [](const Value& v) { return v.is(Kind::boolean); }},
    {"true", [](const Value& v) { return v.is(Kind::boolean) && v.boolean(); }},
    {"false", [](const Value& v) { return v.is(Kind::boolean) && !v.boolean(); }},
    {"integer", [](const Value& v) { return v.is(Kind::integer); }},
    {"float", [](const Value& v) { return v.is(Kind::real); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"string", [](const Value& v) { return v.is(Kind::text); }},
    {"mapping", [](const Value& v) { return v.is(Kind::dict); }},
    {"callable",
     [](const Value& v) { return v.is(Kind::callable) || v.is(Kind::loop) || v.is(Kind::undefined); }},
    {"escaped", [](const Value& v) { return v.is_safe(); }},
    // Jinja's undefined can be walked and has a length, but no element can be looked up without an error.
    {"iterable",
     [](const Value& v) {
       return v.is(Kind::undefined) || v.is(Kind::text) || v.is(Kind::dict) || v.is(Kind::loop) ||
              v.is_elements();
     }},
    {"sequence",
     [](const Value& v) {
       return v.is(Kind::undefined) || v.is(Kind::text) || v.is(Kind::dict) || v.is(Kind::list) ||
              v.is(Kind::tuple) || v.is(Kind::range);
     }},
};

// Tests against another value: an operator under one or more names.
struct Compared {
  std::string_view name, symbol;
};
constexpr Compared kCompared[] = {{"==", "=="},      {"eq", "=="}, {"equalto", "=="}, {"!=", "!="},
                                  {"ne", "!="},      {">", ">"},   {"gt", ">"},       {"greaterthan", ">"},
                                  {">=", ">="},      {"ge", ">="}, {"<", "<"},        {"lt", "<"},
                                  {"lessthan", "<"}, {"<=", "<="}, {"le", "<="}};

}  // namespace

bool apply_test(Interpreter& run, std::string_view name, const Value& value, const Arguments& arguments) {
  for (const Plain& plain : kPlain)
    if (plain.name == name) {
      const Parameters none(arguments, name, {});
      return plain.holds(value);
    }
  for (const Compared& compared : kCompared)
    if (compared.name == name) {
      const Parameters given(arguments, name, {"other"}, 1);
      return holds_between(run, compared.symbol, value, given[0]);
    }
  if (name == "in") return contains(run, Parameters(arguments, name, {"seq"}, 1)[0], value);
  if (name == "sameas") return value.same_as(Parameters(arguments, name, {"other"}, 1)[0]);
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const Parameters given(arguments, name, {"num"}, name == "divisibleby");
    const Value rest = operate(run, "%", value, name == "divisibleby" ? given[0] : Value::of(int64_t{2}));
    return equal(rest, Value::of(int64_t{name == "odd"}), run.budget());
  }
  if (name == "upper" || name == "lower") {
    const Parameters none(arguments, name, {});
    const Text text = run.print(value);
    run.budget().bytes(2 * text.size());
    return is_all_in_case(text, name == "upper" ? Case::upper : Case::lower);
  }
  fail(WI_E_UNSUPPORTED, "the test '", name, "' is not known here");
}

}  // namespace wi::chat
