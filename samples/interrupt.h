// Ctrl-C fires the token that every long call watches.
#pragma once

#include "sample.h"

namespace sample {

// One at a time.
class Interrupt {
 public:
  // For work that is the whole program: while this lives Ctrl-C fires the token, and a second one ends the program the
  // hard way.
  Interrupt();
  // For a program that waits for its user between works. Where nothing is being done Ctrl-C writes `notice` to the
  // terminal and ends the program only when it comes again before the next line; no work is ended the hard way. An
  // empty notice, for one that has no user: as above, and between works Ctrl-C ends the program at once.
  explicit Interrupt(const char* notice);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  wi_cancel* cancel() const { return cancel_.get(); }

  // From here to its end, work is being done: with a token that has not fired.
  class Work {
   public:
    explicit Work(const Interrupt& interrupt);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    wi_cancel* cancel() const { return cancel_; }

   private:
    wi_cancel* cancel_;
  };
  static void line_was_entered();  // so that the notice is due again

 private:
  Cancel cancel_;
};

// The status to end with. A program whose work Ctrl-C has cut short ends by that signal, as a shell wants it: else
// a loop around the program goes on.
int end_status(int status);

}  // namespace sample
