// What every bench does before it starts: -h, --help and --version are answered, and nothing is timed.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "waveinfer.h"

namespace wi {

// usage begins with the program's name and a colon.
inline void answer_help(int count, char** words, const char* usage) {
  for (int i = 1; i < count; ++i) {
    const bool version = std::strcmp(words[i], "--version") == 0;
    if (!version && std::strcmp(words[i], "--help") != 0 && std::strcmp(words[i], "-h") != 0) continue;
    if (version)
      std::printf("%.*s " WI_VERSION "\n", static_cast<int>(std::strcspn(usage, ":")), usage);
    else
      std::fputs(usage, stdout);
    std::exit(0);
  }
}

}  // namespace wi
