#include "src/chat/operators.h"

#include <algorithm>
#include <cmath>

#include "src/chat/format.h"
#include "src/chat/print.h"
#include "src/chat/text_operations.h"
#include "src/chat/text_search.h"

namespace wi::chat {
namespace {

int64_t whole(std::string_view symbol, bool overflow, int64_t result) {
  check(!overflow, WI_E_UNSUPPORTED, "the result of '", symbol, "' has more than 64 bits");
  return result;
}

// Python's floor division and the remainder that goes with it, which has the divisor's sign.
int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
double floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  const double divided = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
  if (divided == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(divided);
  return divided - floor > 0.5 ? floor + 1 : floor;
}
double remainder_of(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value power(const Value& left, const Value& right) {
  if (left.is_whole() && right.is_whole() && right.integer() >= 0) {
    int64_t base = left.integer(), result = 1;
    bool overflow = false;
    for (int64_t exponent = right.integer(); exponent > 0 && !overflow;) {
      if (exponent & 1) overflow = __builtin_mul_overflow(result, base, &result);
      exponent >>= 1;
      if (exponent > 0 && !overflow) overflow = __builtin_mul_overflow(base, base, &base);
    }
    return Value::of(whole("**", overflow, result));
  }
  check(left.real() != 0 || right.real() >= 0, WI_E_ARGUMENT, "0 has no negative power");
  const double result = std::pow(left.real(), right.real());
  check(!std::isnan(result) || std::isnan(left.real()) || std::isnan(right.real()), WI_E_UNSUPPORTED,
        "a power is a complex number");
  return Value::of(result);
}

Value arithmetic(std::string_view symbol, const Value& left, const Value& right) {
  const bool divides = symbol == "/" || symbol == "//" || symbol == "%";
  check(!divides || right.real() != 0, WI_E_ARGUMENT, "division by zero");
  if (symbol == "**") return power(left, right);
  if (symbol == "/") {
    constexpr int64_t kExact = int64_t{1} << 53;  // to which every whole number is a double
    for (const Value* value : {&left, &right})
      check(!value->is_whole() || (value->integer() >= -kExact && value->integer() <= kExact),
            WI_E_UNSUPPORTED, "the division of a whole number beyond 2 ** 53 is not supported");
    return Value::of(left.real() / right.real());
  }
  if (left.is_whole() && right.is_whole()) {
    const int64_t a = left.integer(), b = right.integer();
    int64_t result = 0;
    if (symbol == "+" || symbol == "-" || symbol == "*") {
      const bool overflow = symbol == "+"   ? __builtin_add_overflow(a, b, &result)
                            : symbol == "-" ? __builtin_sub_overflow(a, b, &result)
                                            : __builtin_mul_overflow(a, b, &result);
      return Value::of(whole(symbol, overflow, result));
    }
    if (b == -1) return symbol == "%" ? Value::of(int64_t{0}) : Value::of(whole(symbol, a == INT64_MIN, -a));
    return Value::of(symbol == "//" ? floor_divide(a, b) : a - floor_divide(a, b) * b);
  }
  const double a = left.real(), b = right.real();
  if (symbol == "+") return Value::of(a + b);
  if (symbol == "-") return Value::of(a - b);
  if (symbol == "*") return Value::of(a * b);
  if (symbol == "%") return Value::of(remainder_of(a, b));
  return Value::of(floor_divide(a, b));
}

Value repeated(Interpreter& run, const Value& value, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(0, times));
  if (value.is(Kind::text)) {
    run.budget().texts(value.text(), count);
    Text text;
    for (uint64_t i = 0; i < count && !value.text().empty(); ++i) text.append(value.text());
    return Value::of(std::move(text));
  }
  const std::vector<Value>& items = value.list().items;
  run.budget().values(items.size(), count);
  std::vector<Value> all;
  for (uint64_t i = 0; i < count && !items.empty(); ++i) all.insert(all.end(), items.begin(), items.end());
  return Value::of(std::move(all), value.kind());
}

bool is_sequence(const Value& value) {
  return value.is(Kind::text) || value.is(Kind::list) || value.is(Kind::tuple);
}

}  // namespace

Value operate(Interpreter& run, std::string_view symbol, const Value& left, const Value& right) {
  if (symbol == "~") {
    Text text = to_text(left, run.budget());
    text.append(to_text(right, run.budget()));
    return run.make(std::move(text));
  }
  require_defined(left);
  if (symbol != "%" || !left.is(Kind::text)) require_defined(right);  // a text's % prints it
  check(!left.is_safe() || (symbol != "%" && symbol != "*"), WI_E_UNSUPPORTED, "'", symbol,
        "' of a text marked safe is not supported");
  if (symbol == "%" && left.is(Kind::text)) return run.make(format_percent(run, left.text(), right));
  if (left.is_number() && right.is_number()) return arithmetic(symbol, left, right);
  if (symbol == "+" && left.kind() == right.kind() && is_sequence(left)) {
    if (left.is(Kind::text)) {
      const bool safe = left.is_safe() || right.is_safe();
      Text text = safe && !left.is_safe() ? escaped(left.text(), run.budget()) : left.text();
      text.append(safe && !right.is_safe() ? escaped(right.text(), run.budget()) : right.text());
      return safe ? run.make_safe(std::move(text)) : run.make(std::move(text));
    }
    std::vector<Value> items = left.list().items;
    items.insert(items.end(), right.list().items.begin(), right.list().items.end());
    return run.make(std::move(items), left.kind());
  }
  if (symbol == "*" && is_sequence(left) && right.is_whole()) return repeated(run, left, right.integer());
  if (symbol == "*" && is_sequence(right) && left.is_whole()) return repeated(run, right, left.integer());
  fail(WI_E_ARGUMENT, "'", symbol, "' is not defined between ", left.type_name(), " and ", right.type_name());
}

Value sign(char symbol, const Value& value) {
  require_defined(value);
  check(value.is_number(), WI_E_ARGUMENT, "'", symbol, "' is not defined for ", value.type_name());
  if (!value.is_whole()) return Value::of(symbol == '-' ? -value.real() : value.real());
  if (symbol == '+') return Value::of(value.integer());
  return Value::of(whole("-", value.integer() == INT64_MIN, -value.integer()));
}

bool holds_between(Interpreter& run, std::string_view symbol, const Value& left, const Value& right) {
  if (symbol == "==") return equal(left, right, run.budget());
  if (symbol == "!=") return !equal(left, right, run.budget());
  const int order = compare(left, right, symbol, run.budget());
  if (order == 2) return false;
  if (symbol == "<") return order < 0;
  if (symbol == "<=") return order <= 0;
  return symbol == ">" ? order > 0 : order >= 0;
}

bool contains(Interpreter& run, const Value& whole, const Value& part) {
  if (whole.is(Kind::text)) {
    require_defined(part);
    check(part.is(Kind::text), WI_E_ARGUMENT, "'in' a str needs a str, not a ", part.type_name());
    run.budget().bytes(whole.text().size());
    return find_bytes(whole.text().bytes(), part.text().bytes(), 0) != std::string_view::npos;
  }
  if (whole.is(Kind::dict)) return whole.dict().find(part, run.budget()) != nullptr;
  if (whole.is(Kind::iterator)) {  // walked as far as is needed
    List& list = run.generator(whole);
    while (list.taken < list.items.size())
      if (equal(list.items[list.taken++], part, run.budget())) return true;
    return false;
  }
  const std::vector<Value> items = run.elements(whole);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& item) { return equal(item, part, run.budget()); });
}

}  // namespace wi::chat
