// The C library's own words are those of the host's locale, and messages are not to be: while this lives, the calling
// thread's locale is "C", which the host's other threads do not see.
#pragma once

#include <locale.h>

namespace wi {

class CLocale {
 public:
  CLocale() : c_(newlocale(LC_ALL_MASK, "C", nullptr)), before_(c_ ? uselocale(c_) : nullptr) {}
  ~CLocale() {
    if (!c_) return;
    uselocale(before_);
    freelocale(c_);
  }
  CLocale(const CLocale&) = delete;
  CLocale& operator=(const CLocale&) = delete;

 private:
  const locale_t c_;  // null: there was no memory for it, which the C library of GNU takes none for
  const locale_t before_;
};

}  // namespace wi
