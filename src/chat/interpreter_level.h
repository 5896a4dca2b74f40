// How deep the interpreter has gone into expressions, blocks and macros: what it takes of the stack is
// bounded.
#pragma once

#include "src/chat/interpreter.h"

namespace wi::chat {

class Interpreter::Level {
 public:
  explicit Level(Interpreter& run) : depth_(run.depth_) {
    check(++depth_ <= limits::kDepth, WI_E_UNSUPPORTED, "blocks, expressions and macros nest deeper than ",
          limits::kDepth);
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

}  // namespace wi::chat
