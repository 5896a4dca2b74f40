// Ctrl-C fires the token that every long call watches.
#pragma once

#include "sample.h"

namespace sample {

// While it lives; a second Ctrl-C ends the program the hard way. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  wi_cancel* cancel() const { return cancel_.get(); }

 private:
  Cancel cancel_;
};

// The status to end with. A program whose work Ctrl-C has cut short ends by that signal, as a shell wants it: else
// a loop around the program goes on.
int end_status(int status);

}  // namespace sample
