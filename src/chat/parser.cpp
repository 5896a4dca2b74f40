#include "src/chat/parser.h"

#include <algorithm>
#include <utility>

#include "src/chat/parse_expression.h"
#include "src/chat/unset_names.h"

namespace wi::chat {
namespace {

class Parser {
 public:
  explicit Parser(TokenStream tokens) : tokens_(std::move(tokens)) {}

  Block whole() {
    Block block = until({});
    if (!tokens_.is(Token::Kind::end)) tokens_.unexpected("a statement");
    return block;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  // Statements up to one of the tags, whose {% is taken and whose name is not.
  Block until(Names ends) {
    const TokenStream::Level level(tokens_);
    Block block;
    while (!tokens_.is(Token::Kind::end)) {
      const int line = tokens_.line();
      if (tokens_.is(Token::Kind::data)) {
        Statement data = make(Statement::Kind::data, line);
        data.data = Value::of(Text(tokens_.take().value));
        block.push_back(std::move(data));
      } else if (tokens_.is(Token::Kind::variable_begin)) {
        tokens_.take();
        Statement print = make(Statement::Kind::print, line);
        print.value = parse_tuple(tokens_);
        tokens_.expect(Token::Kind::variable_end, "}}");
        add(block, std::move(print));
      } else {
        tokens_.expect(Token::Kind::block_begin, "a tag");
        const bool over = std::any_of(ends.begin(), ends.end(),
                                      [&](std::string_view name) { return tokens_.is_name(name); });
        if (over) return block;
        add(block, statement());
      }
    }
    if (ends.size() > 0) tokens_.unexpected(concat("{% ", *(ends.end() - 1), " %}"));
    return block;
  }

  // … and the tag that ends them, which is the only one.
  Block until_end(std::string_view end) {
    Block block = until({end});
    tokens_.take();
    end_tag();
    return block;
  }

  void end_tag() { tokens_.expect(Token::Kind::block_end, "%}"); }

  static Statement make(Statement::Kind kind, int line) {
    Statement made;
    made.kind = kind;
    made.line = line;
    return made;
  }

  static void add(Block& block, Statement statement) { block.push_back(std::move(statement)); }

  Statement statement() {
    const Token tag = tokens_.expect(Token::Kind::name, "the name of a tag");
    const std::string& name = tag.value;
    if (name == "if") return branch(tag.line);
    if (name == "for") return loop(tag.line);
    if (name == "set") return assign(tag.line);
    if (name == "macro") return macro(tag.line);
    if (name == "call") return call(tag.line);
    if (name == "filter") return filter(tag.line);
    if (name == "with") return with(tag.line);
    if (name == "generation") return scope(tag.line);
    if (name == "print") return print(tag.line);
    if (name == "break" || name == "continue") {
      check(loops_ > 0, WI_E_FORMAT, "line ", tag.line, ": {% ", name, " %} outside of a loop");
      end_tag();
      return make(name == "break" ? Statement::Kind::leave : Statement::Kind::next, tag.line);
    }
    static constexpr std::string_view known[] = {"autoescape", "block",   "do",    "extends", "from",
                                                 "import",     "include", "trans", "debug"};
    check(std::find(std::begin(known), std::end(known), name) == std::end(known), WI_E_UNSUPPORTED, "line ",
          tag.line, ": the tag {% ", name, " %} is not supported");
    fail(name.starts_with("end") || name.starts_with("el") ? WI_E_FORMAT : WI_E_UNSUPPORTED, "line ",
         tag.line, ": the tag {% ", name.substr(0, 40), " %} is not known here");
  }

  Statement branch(int line) {
    const TokenStream::Level level(tokens_);
    Statement made = make(Statement::Kind::branch, line);
    made.condition = parse_tuple(tokens_, false);
    end_tag();
    made.body = until({"elif", "else", "endif"});
    const Token next = tokens_.take();
    if (next.value == "elif") {
      made.otherwise.push_back(branch(next.line));
      return made;
    }
    end_tag();
    if (next.value == "else") made.otherwise = until_end("endif");
    return made;
  }

  Statement loop(int line) {
    Statement made = make(Statement::Kind::loop, line);
    made.target = target("in", false);
    tokens_.expect_name("in");
    made.value = parse_tuple(tokens_, false, false, "recursive");
    if (tokens_.skip_name("if")) made.condition = parse_expression(tokens_);
    check(!tokens_.is_name("recursive"), WI_E_UNSUPPORTED, "line ", line,
          ": recursive loops are not supported");
    end_tag();
    ++loops_;
    made.body = until({"else", "endfor"});
    --loops_;
    const Token next = tokens_.take();
    end_tag();
    if (next.value == "else") made.otherwise = until_end("endfor");
    return made;
  }

  Statement assign(int line) {
    Statement made = make(Statement::Kind::assign, line);
    made.target = target({}, true);
    if (tokens_.skip_symbol("=")) {
      made.value = parse_tuple(tokens_);
      end_tag();
      return made;
    }
    made.kind = Statement::Kind::capture;
    made.value = parse_filters(tokens_, false);
    end_tag();
    made.body = outside_loops([&] { return until_end("endset"); });
    return made;
  }

  Statement macro(int line) {
    Statement made = make(Statement::Kind::macro, line);
    made.macro = std::make_unique<Macro>();
    made.macro->name = tokens_.expect(Token::Kind::name, "the macro's name").value;
    signature(*made.macro);
    end_tag();
    define(made, "endmacro");
    return made;
  }

  Statement call(int line) {
    Statement made = make(Statement::Kind::call, line);
    made.macro = std::make_unique<Macro>();
    made.macro->name = "caller";
    if (tokens_.is_symbol("(")) signature(*made.macro);
    made.value = parse_expression(tokens_);
    check(made.value->kind == Expression::Kind::call, WI_E_FORMAT, "line ", line,
          ": {% call %} without a call");
    end_tag();
    define(made, "endcall");
    return made;
  }

  // What a macro's body says decides what it can be called with.
  void define(Statement& made, std::string_view end) {
    const size_t begin = tokens_.position();
    made.body = outside_loops([&] { return until_end(end); });
    made.macro->takes_more = tokens_.mentions(begin, "varargs");
    made.macro->takes_named = tokens_.mentions(begin, "kwargs");
    made.macro->takes_caller = tokens_.mentions(begin, "caller");
  }

  Statement filter(int line) {
    Statement made = make(Statement::Kind::filter, line);
    made.value = parse_filters(tokens_, true);
    end_tag();
    made.body = outside_loops([&] { return until_end("endfilter"); });
    return made;
  }

  Statement with(int line) {
    Statement made = make(Statement::Kind::scope, line);
    while (!tokens_.is(Token::Kind::block_end)) {
      if (!made.targets.empty()) tokens_.expect_symbol(",");
      made.targets.push_back(single_target(false));
      tokens_.expect_symbol("=");
      made.values.push_back(parse_expression(tokens_));
    }
    end_tag();
    made.body = until_end("endwith");
    return made;
  }

  // transformers' own tag around what the assistant said: it prints its body.
  Statement scope(int line) {
    Statement made = make(Statement::Kind::scope, line);
    end_tag();
    made.body = outside_loops([&] { return until_end("endgeneration"); });
    return made;
  }

  Statement print(int line) {
    Statement made = make(Statement::Kind::print, line);
    made.value = parse_expression(tokens_);
    check(!tokens_.is_symbol(","), WI_E_UNSUPPORTED, "line ", line,
          ": {% print %} of several values is not supported");
    end_tag();
    return made;
  }

  // break and continue end a loop in the same body, not one around a macro or a captured block.
  template <class Body>
  Block outside_loops(Body body) {
    const int loops = std::exchange(loops_, 0);
    Block block = body();
    loops_ = loops;
    return block;
  }

  void signature(Macro& macro) {
    tokens_.expect_symbol("(");
    while (!tokens_.is_symbol(")")) {
      if (!macro.parameters.empty()) tokens_.expect_symbol(",");
      Macro::Parameter parameter;
      parameter.name = tokens_.expect(Token::Kind::name, "a parameter").value;
      if (tokens_.skip_symbol("=")) parameter.otherwise = parse_expression(tokens_);
      check(parameter.otherwise || macro.parameters.empty() || !macro.parameters.back().otherwise,
            WI_E_FORMAT, "line ", tokens_.line(),
            ": a parameter without a default follows one with a default");
      macro.parameters.push_back(std::move(parameter));
    }
    tokens_.expect_symbol(")");
  }

  Target single_target(bool with_namespace) {
    const TokenStream::Level level(tokens_);
    if (tokens_.skip_symbol("(")) {
      Target inside = target({}, with_namespace);
      tokens_.expect_symbol(")");
      return inside;
    }
    Target made;
    const Token name = tokens_.expect(Token::Kind::name, "a name to assign to");
    static constexpr std::string_view constants[] = {"true", "false", "none", "True", "False", "None"};
    check(std::find(std::begin(constants), std::end(constants), name.value) == std::end(constants),
          WI_E_FORMAT, "line ", name.line, ": ", name.value, " cannot be assigned to");
    made.name = name.value;
    if (with_namespace && tokens_.skip_symbol("."))
      made.attribute = tokens_.expect(Token::Kind::name, "an attribute").value;
    return made;
  }

  Target target(std::string_view until, bool with_namespace) {
    Target all;
    all.several.push_back(single_target(with_namespace));
    while (tokens_.skip_symbol(",")) {
      all.is_tuple = true;
      const bool ends = tokens_.is_symbol("=") || tokens_.is_symbol(")") ||
                        tokens_.is(Token::Kind::block_end) || (!until.empty() && tokens_.is_name(until));
      if (ends) break;
      all.several.push_back(single_target(with_namespace));
    }
    if (all.is_tuple) return all;
    Target only = std::move(all.several[0]);
    return only;
  }

  TokenStream tokens_;
  int loops_ = 0;
};

// String constants beside each other are one.
std::string literals_of(const std::vector<Token>& tokens) {
  std::string all(1, '\0');
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].kind != Token::Kind::data && tokens[i].kind != Token::Kind::text) continue;
    all += tokens[i].value;
    if (tokens[i].kind == Token::Kind::data || tokens[i + 1].kind != Token::Kind::text) all += '\0';
  }
  return all;
}

}  // namespace

Template parse_template(std::string_view source) {
  check(source.size() <= limits::kTemplateBytes, WI_E_UNSUPPORTED, "the template has ", source.size(),
        " bytes, at most ", limits::kTemplateBytes, " are allowed");
  std::vector<Token> tokens = tokenize_template(source);
  Template made;
  made.literals = literals_of(tokens);
  made.body = Parser(TokenStream(std::move(tokens))).whole();
  find_unset_names(made);
  return made;
}

}  // namespace wi::chat
