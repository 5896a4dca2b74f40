// Which names are undefined where a scope begins, though something around the template has them: Jinja decides
// by a scope's text whether a name is the scope's own, so that {{ … }} of a block before a {% set %} already means
// the name that is set (its idtracking.py).
#pragma once

#include "src/chat/syntax.h"

namespace wi::chat {

// Fills in `unset` throughout.
void find_unset_names(Template& whole);

}  // namespace wi::chat
