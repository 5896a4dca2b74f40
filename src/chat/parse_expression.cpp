#include "src/chat/parse_expression.h"

#include <algorithm>
#include <charconv>

namespace wi::chat {
namespace {

using Node = Expression::Kind;

ExpressionPtr parse_or(TokenStream& tokens);
ExpressionPtr parse_and(TokenStream& tokens);
ExpressionPtr parse_not(TokenStream& tokens);
ExpressionPtr parse_comparison(TokenStream& tokens);
ExpressionPtr parse_unary(TokenStream& tokens, bool with_filters);
ExpressionPtr parse_primary(TokenStream& tokens);
ExpressionPtr parse_postfix(TokenStream& tokens, ExpressionPtr value);
ExpressionPtr parse_filters_and_tests(TokenStream& tokens, ExpressionPtr value);
std::vector<Argument> parse_arguments(TokenStream& tokens);

ExpressionPtr make(Node kind, int line, std::string name = {}) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  made->name = std::move(name);
  return made;
}

void deepen(Expression& parent, const ExpressionPtr& part) {
  if (!part) return;
  parent.depth = std::max(parent.depth, part->depth + 1);
  check(parent.depth <= limits::kSyntaxDepth, WI_E_UNSUPPORTED, "line ", parent.line,
        ": an expression nests deeper than ", limits::kSyntaxDepth);
}

void add_part(Expression& parent, ExpressionPtr part) {
  deepen(parent, part);
  parent.parts.push_back(std::move(part));
}

void set_arguments(Expression& parent, std::vector<Argument> arguments) {
  for (const Argument& argument : arguments) deepen(parent, argument.value);
  parent.arguments = std::move(arguments);
}

template <class... Parts>
ExpressionPtr make_with(Node kind, int line, std::string name, Parts... parts) {
  ExpressionPtr made = make(kind, line, std::move(name));
  (add_part(*made, std::move(parts)), ...);
  return made;
}

ExpressionPtr constant(int line, Value value) {
  ExpressionPtr made = make(Node::constant, line);
  made->constant = std::move(value);
  return made;
}

// left operator right operator right …, grouped from the left.
template <class Next>
ExpressionPtr parse_chain(TokenStream& tokens, std::initializer_list<std::string_view> operators, Next next) {
  ExpressionPtr left = next();
  for (;;) {
    const bool more = std::any_of(operators.begin(), operators.end(),
                                  [&](std::string_view symbol) { return tokens.is_symbol(symbol); });
    if (!more) return left;
    const Token symbol = tokens.take();
    ExpressionPtr right = next();
    left = make_with(Node::binary, symbol.line, symbol.value, std::move(left), std::move(right));
  }
}

ExpressionPtr parse_power(TokenStream& tokens) {
  return parse_chain(tokens, {"**"}, [&] { return parse_unary(tokens, true); });
}
ExpressionPtr parse_product(TokenStream& tokens) {
  return parse_chain(tokens, {"*", "/", "//", "%"}, [&] { return parse_power(tokens); });
}
ExpressionPtr parse_joined(TokenStream& tokens) {
  return parse_chain(tokens, {"~"}, [&] { return parse_product(tokens); });
}
ExpressionPtr parse_sum(TokenStream& tokens) {
  return parse_chain(tokens, {"+", "-"}, [&] { return parse_joined(tokens); });
}

}  // namespace

ExpressionPtr parse_expression(TokenStream& tokens, bool with_choice) {
  const TokenStream::Level level(tokens);
  if (!with_choice) return parse_or(tokens);
  ExpressionPtr value = parse_or(tokens);
  while (tokens.is_name("if")) {
    const int line = tokens.take().line;
    ExpressionPtr condition = parse_or(tokens), otherwise;
    if (tokens.skip_name("else")) otherwise = parse_expression(tokens);
    value = make_with(Node::choice, line, "", std::move(condition), std::move(value), std::move(otherwise));
  }
  return value;
}

ExpressionPtr parse_tuple(TokenStream& tokens, bool with_choice, bool may_be_empty, std::string_view until) {
  ExpressionPtr tuple = make(Node::tuple, tokens.line());
  const auto ends = [&] {
    return tokens.is(Token::Kind::block_end) || tokens.is(Token::Kind::variable_end) ||
           tokens.is_symbol(")") || (!until.empty() && tokens.is_name(until));
  };
  bool several = false;
  while (!ends()) {
    add_part(*tuple, parse_expression(tokens, with_choice));
    if (!tokens.skip_symbol(",")) break;
    several = true;
  }
  if (several) return tuple;
  if (!tuple->parts.empty()) return std::move(tuple->parts[0]);
  if (!may_be_empty) tokens.unexpected("an expression");
  return tuple;
}

ExpressionPtr parse_filters(TokenStream& tokens, bool starts_with_name) {
  ExpressionPtr value;
  while (starts_with_name || tokens.skip_symbol("|")) {
    const Token name = tokens.expect(Token::Kind::name, "a filter");
    value = make_with(Node::filter, name.line, name.value, std::move(value));
    if (tokens.is_symbol("(")) set_arguments(*value, parse_arguments(tokens));
    starts_with_name = false;
  }
  return value;
}

namespace {

ExpressionPtr parse_or(TokenStream& tokens) {
  ExpressionPtr left = parse_and(tokens);
  while (tokens.is_name("or")) {
    const int line = tokens.take().line;
    ExpressionPtr right = parse_and(tokens);
    left = make_with(Node::either, line, "", std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr parse_and(TokenStream& tokens) {
  ExpressionPtr left = parse_not(tokens);
  while (tokens.is_name("and")) {
    const int line = tokens.take().line;
    ExpressionPtr right = parse_not(tokens);
    left = make_with(Node::both, line, "", std::move(left), std::move(right));
  }
  return left;
}

ExpressionPtr parse_not(TokenStream& tokens) {
  if (!tokens.is_name("not")) return parse_comparison(tokens);
  const TokenStream::Level level(tokens);
  const int line = tokens.take().line;
  return make_with(Node::negate, line, "", parse_not(tokens));
}

ExpressionPtr parse_comparison(TokenStream& tokens) {
  static constexpr std::string_view symbols[] = {"==", "!=", "<", "<=", ">", ">="};
  ExpressionPtr first = parse_sum(tokens), all;
  for (;;) {
    std::string name;
    const bool not_in = tokens.is_name("not") && tokens.following().kind == Token::Kind::name &&
                        tokens.following().value == "in";
    if (not_in)
      name = "not in";
    else if (tokens.is_name("in") ||
             (tokens.is(Token::Kind::symbol) &&
              std::find(std::begin(symbols), std::end(symbols), tokens.current().value) != std::end(symbols)))
      name = tokens.current().value;
    if (name.empty()) return all ? std::move(all) : std::move(first);
    const int line = tokens.take().line;
    if (not_in) tokens.take();
    if (!all) all = make_with(Node::comparison, line, "", std::move(first));
    all->operators.push_back(std::move(name));
    add_part(*all, parse_sum(tokens));
  }
}

ExpressionPtr parse_unary(TokenStream& tokens, bool with_filters) {
  ExpressionPtr value;
  if (tokens.is_symbol("-") || tokens.is_symbol("+")) {
    const TokenStream::Level level(tokens);
    const Token sign = tokens.take();
    value = make_with(Node::unary, sign.line, sign.value, parse_unary(tokens, false));
  } else {
    value = parse_primary(tokens);
  }
  value = parse_postfix(tokens, std::move(value));
  return with_filters ? parse_filters_and_tests(tokens, std::move(value)) : std::move(value);
}

Value integer_of(const Token& token) {
  const std::string& digits = token.value;
  const char mark = digits.size() > 1 ? static_cast<char>(digits[1] | 32) : '\0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  const char *begin = digits.data() + (base == 10 ? 0 : 2), *end = digits.data() + digits.size();
  int64_t value = 0;
  const auto read = std::from_chars(begin, end, value, base);
  check(read.ec != std::errc::result_out_of_range, WI_E_UNSUPPORTED, "line ", token.line, ": the number ",
        digits.substr(0, 40), " has more than 64 bits");
  check(read.ec == std::errc() && read.ptr == end, WI_E_FORMAT, "line ", token.line, ": '",
        digits.substr(0, 40), "' is no number");
  return Value::of(value);
}

ExpressionPtr parse_list(TokenStream& tokens) {
  ExpressionPtr list = make(Node::list, tokens.take().line);
  while (!tokens.is_symbol("]")) {
    add_part(*list, parse_expression(tokens));
    if (!tokens.skip_symbol(",")) break;
  }
  tokens.expect_symbol("]");
  return list;
}

ExpressionPtr parse_dict(TokenStream& tokens) {
  ExpressionPtr dict = make(Node::dict, tokens.take().line);
  while (!tokens.is_symbol("}")) {
    add_part(*dict, parse_expression(tokens));
    tokens.expect_symbol(":");
    add_part(*dict, parse_expression(tokens));
    if (!tokens.skip_symbol(",")) break;
  }
  tokens.expect_symbol("}");
  return dict;
}

ExpressionPtr parse_primary(TokenStream& tokens) {
  const int line = tokens.line();
  switch (tokens.current().kind) {
    case Token::Kind::name: {
      const std::string name = tokens.take().value;
      if (name == "true" || name == "True") return constant(line, Value::of(true));
      if (name == "false" || name == "False") return constant(line, Value::of(false));
      if (name == "none" || name == "None") return constant(line, Value::none());
      return make(Node::variable, line, name);
    }
    case Token::Kind::text: {
      std::string text = tokens.take().value;
      while (tokens.is(Token::Kind::text)) text += tokens.take().value;
      return constant(line, Value::of(Text(std::move(text))));
    }
    case Token::Kind::integer:
      return constant(line, integer_of(tokens.take()));
    case Token::Kind::real: {
      const std::string digits = tokens.take().value;
      double value = 0;
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      check(read.ec == std::errc(), WI_E_UNSUPPORTED, "line ", line, ": the number ", digits.substr(0, 40),
            " is out of range");
      return constant(line, Value::of(value));
    }
    default:
      break;
  }
  if (tokens.is_symbol("(")) {
    tokens.take();
    ExpressionPtr inside = parse_tuple(tokens, true, true);
    tokens.expect_symbol(")");
    return inside;
  }
  if (tokens.is_symbol("[")) return parse_list(tokens);
  if (tokens.is_symbol("{")) return parse_dict(tokens);
  tokens.unexpected("an expression");
}

ExpressionPtr parse_subscript(TokenStream& tokens, ExpressionPtr value) {
  const int line = tokens.take().line;
  ExpressionPtr bounds[3];
  bool slice = false;
  if (!tokens.is_symbol(":")) bounds[0] = parse_expression(tokens);
  for (int i = 1; i < 3 && tokens.skip_symbol(":"); ++i) {
    slice = true;
    if (!tokens.is_symbol(":") && !tokens.is_symbol("]")) bounds[i] = parse_expression(tokens);
  }
  check(!tokens.is_symbol(","), WI_E_UNSUPPORTED, "line ", line,
        ": several subscripts in one [] are not supported");
  tokens.expect_symbol("]");
  if (!slice) return make_with(Node::item, line, "", std::move(value), std::move(bounds[0]));
  return make_with(Node::slice, line, "", std::move(value), std::move(bounds[0]), std::move(bounds[1]),
                   std::move(bounds[2]));
}

ExpressionPtr parse_postfix(TokenStream& tokens, ExpressionPtr value) {
  for (;;) {
    const int line = tokens.line();
    if (tokens.skip_symbol(".")) {
      if (tokens.is(Token::Kind::integer)) {
        ExpressionPtr number = constant(line, integer_of(tokens.take()));
        value = make_with(Node::item, line, "", std::move(value), std::move(number));
      } else {
        std::string name = tokens.expect(Token::Kind::name, "a name").value;
        value = make_with(Node::attribute, line, std::move(name), std::move(value));
      }
    } else if (tokens.is_symbol("[")) {
      value = parse_subscript(tokens, std::move(value));
    } else if (tokens.is_symbol("(")) {
      value = make_with(Node::call, line, "", std::move(value));
      set_arguments(*value, parse_arguments(tokens));
    } else {
      return value;
    }
  }
}

// value is [not] name, with arguments in brackets or one without.
ExpressionPtr parse_test(TokenStream& tokens, ExpressionPtr value) {
  const int line = tokens.line();
  const bool negated = tokens.skip_name("not");
  std::string name = tokens.expect(Token::Kind::name, "a test").value;
  ExpressionPtr test = make_with(Node::test, line, std::move(name), std::move(value));
  const Token& next = tokens.current();
  const bool ends = tokens.is_name("else") || tokens.is_name("or") || tokens.is_name("and");
  if (tokens.is_symbol("(")) {
    set_arguments(*test, parse_arguments(tokens));
  } else if (!ends && (next.kind == Token::Kind::name || next.kind == Token::Kind::text ||
                       next.kind == Token::Kind::integer || next.kind == Token::Kind::real ||
                       tokens.is_symbol("[") || tokens.is_symbol("{"))) {
    check(!tokens.is_name("is"), WI_E_FORMAT, "line ", line, ": tests cannot be chained");
    std::vector<Argument> arguments(1);
    arguments[0].value = parse_postfix(tokens, parse_primary(tokens));
    set_arguments(*test, std::move(arguments));
  }
  return negated ? make_with(Node::negate, line, "", std::move(test)) : std::move(test);
}

ExpressionPtr parse_filters_and_tests(TokenStream& tokens, ExpressionPtr value) {
  for (;;) {
    const int line = tokens.line();
    if (tokens.skip_symbol("|")) {
      const Token name = tokens.expect(Token::Kind::name, "a filter");
      value = make_with(Node::filter, name.line, name.value, std::move(value));
      if (tokens.is_symbol("(")) set_arguments(*value, parse_arguments(tokens));
    } else if (tokens.skip_name("is")) {
      value = parse_test(tokens, std::move(value));
    } else if (tokens.is_symbol("(")) {
      value = make_with(Node::call, line, "", std::move(value));
      set_arguments(*value, parse_arguments(tokens));
    } else {
      return value;
    }
  }
}

std::vector<Argument> parse_arguments(TokenStream& tokens) {
  using Type = Argument::Kind;
  const TokenStream::Level level(tokens);
  tokens.expect_symbol("(");
  std::vector<Argument> arguments;
  Type last = Type::positional;
  while (!tokens.is_symbol(")")) {
    Argument argument;
    const int line = tokens.line();
    if (tokens.skip_symbol("*")) {
      argument.kind = Type::list;
    } else if (tokens.skip_symbol("**")) {
      argument.kind = Type::dict;
    } else if (tokens.is(Token::Kind::name) && tokens.following().kind == Token::Kind::symbol &&
               tokens.following().value == "=") {
      argument.kind = Type::named;
      argument.name = tokens.take().value;
      tokens.take();
    }
    check(argument.kind >= last && (last != Type::dict), WI_E_FORMAT, "line ", line,
          ": arguments of a call are out of order");
    // *more may follow named ones, as in Python.
    if (argument.kind != Type::list) last = argument.kind;
    argument.value = parse_expression(tokens);
    arguments.push_back(std::move(argument));
    if (!tokens.skip_symbol(",")) break;
  }
  tokens.expect_symbol(")");
  return arguments;
}

}  // namespace
}  // namespace wi::chat
