// The time of every frame as a picture: when each was done, and how much of that were the library's calls.
#pragma once

#include <cstdio>
#include <vector>

namespace game {

// What the character did beside a frame.
enum class Doing { kNothing, kReading, kAnswering };

// Milliseconds from when the frame was due.
struct Frame {
  double done_ms = 0;          // everything was done
  double calls_ms = 0;         // that the library's calls took of that
  double calls_passed_ms = 0;  // the same with what the system gave other programs meanwhile
  bool waited = false;         // a call gave the core away to wait
  Doing doing = Doing::kNothing;
};

void write_picture(const std::vector<Frame>& frames, std::FILE* file);  // SVG

}  // namespace game
