#include "world.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace game {

World::World(double step_ms) {
  constexpr size_t kTried = 256;
  fill(kTried);
  double quickest_ms = 1e9;
  for (int i = 0; i < 10; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    quickest_ms = std::min(quickest_ms, took.count());
  }
  fill(static_cast<size_t>(kTried * std::sqrt(step_ms / std::max(quickest_ms, 1e-3))));
}

void World::fill(size_t count) {
  bodies_.clear();
  for (size_t i = 0; i < count; ++i) {
    const auto angle = static_cast<float>(i) * 2.39996F, radius = std::sqrt(static_cast<float>(i));
    bodies_.push_back({radius * std::cos(angle), radius * std::sin(angle), 0, 0});
  }
}

void World::step() {
  constexpr float kSeconds = 1.0F / 60, kSoft = 1;
  for (Body& body : bodies_) {
    float force_x = 0, force_y = 0;
    for (const Body& other : bodies_) {
      const float x = other.x - body.x, y = other.y - body.y;
      const float distance = x * x + y * y + kSoft;
      const float pull = 1 / (distance * std::sqrt(distance));
      force_x += x * pull;
      force_y += y * pull;
    }
    body.speed_x += force_x * kSeconds;
    body.speed_y += force_y * kSeconds;
  }
  for (Body& body : bodies_) {
    body.x += body.speed_x * kSeconds;
    body.y += body.speed_y * kSeconds;
  }
}

}  // namespace game
