// A macro as a value: its definition and the scope that it was defined in.
#pragma once

#include <memory>

#include "src/chat/interpreter.h"

namespace wi::chat {

struct Interpreter::MacroObject : Callable {
  MacroObject(const Macro& m, const Block& b, std::shared_ptr<Scope> s)
      : macro(m), body(b), scope(std::move(s)) {}
  Value call(Interpreter& run, Arguments arguments) override;

  const Macro& macro;
  const Block& body;
  std::shared_ptr<Scope> scope;
};

}  // namespace wi::chat
