// A template as a tree: what the parser makes and the interpreter walks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/chat/value.h"

namespace wi::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// f(value, name=value, *value, **value)
struct Argument {
  enum class Kind : uint8_t { positional, named, list, dict } kind = Kind::positional;
  std::string name;
  ExpressionPtr value;
};

struct Expression {
  enum class Kind : uint8_t {
    constant,
    variable,
    list,
    tuple,
    dict,       // parts: key, value, key, value …
    attribute,  // parts[0].name
    item,       // parts[0][parts[1]]
    slice,      // parts[0][parts[1]:parts[2]:parts[3]], those left out are null
    call,
    filter,  // parts[0] may be null: the filter of a block
    test,
    negate,      // not
    unary,       // name is - or +
    binary,      // name is the operator
    comparison,  // parts[0] operators[0] parts[1] operators[1] parts[2] …
    both,        // and
    either,      // or
    choice       // parts[1] if parts[0] else parts[2], which may be null
  };
  Kind kind = Kind::constant;
  int line = 0;
  int depth = 1;  // of the tree below
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> parts;
  std::vector<Argument> arguments;
  std::vector<std::string> operators;
};

// What can be assigned to: a name, a namespace's attribute, or several of these.
struct Target {
  std::string name, attribute;  // attribute is empty for a plain name
  std::vector<Target> several;
  bool is_tuple = false;
};

struct Statement;
using Block = std::vector<Statement>;

struct Macro {
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;  // null: none
  };
  std::string name;  // "caller" for the body of a call block
  std::vector<Parameter> parameters;
  bool takes_more = false, takes_named = false;  // the body says varargs, kwargs
  bool takes_caller = false;
  std::vector<std::string> unset;  // of the body
};

struct Statement {
  enum class Kind : uint8_t {
    data,
    print,
    branch,   // if: condition, body, otherwise
    loop,     // for
    assign,   // set target = value
    capture,  // set target … endset, filtered by value if there is one
    macro,
    call,    // call block: value is the call, macro what caller() runs
    filter,  // filter block: value is the filter
    scope,   // with, generation: the body in a scope of its own
    leave,   // break
    next     // continue
  };
  Kind kind = Kind::data;
  int line = 0;
  int depth = 1;
  Value data;
  ExpressionPtr value, condition;
  Target target;
  std::vector<Target> targets;  // of with
  std::vector<ExpressionPtr> values;
  Block body, otherwise;
  std::vector<std::string> unset, otherwise_unset;  // of a body that has a scope of its own
  std::unique_ptr<Macro> macro;
};

struct Template {
  Block body;
  // Names that a scope sets, and that are undefined in it before, whatever is around it (unset_names.h).
  std::vector<std::string> unset;
  std::string literals;  // what it prints as it is and its string constants, with a NUL around each
};

}  // namespace wi::chat
