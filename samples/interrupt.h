// Ctrl-C fires the token that every long call watches; a second Ctrl-C ends the program the hard way.
#pragma once

#include "sample.h"

namespace sample {

// While it lives. One at a time.
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

}  // namespace sample
