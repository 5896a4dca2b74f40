// What a frame of the game computes besides: bodies that attract each other, each step all pairs of them.
#pragma once

#include <cstddef>
#include <vector>

namespace game {

constexpr double kPhysicsMs = 4;  // of a frame's 16.7

class World {
 public:
  explicit World(double step_ms);  // as many bodies as this machine moves in so long
  void step();

 private:
  struct Body {
    float x, y, speed_x, speed_y;
  };
  void fill(size_t count);
  std::vector<Body> bodies_;
};

}  // namespace game
