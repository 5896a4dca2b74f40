// While it lives, memory that the system finds for the calling thread is of one NUMA node, as long as that has any:
// pages that the thread is the first to touch, and those that a driver pins for it.
#pragma once

namespace wi {

class OnNode {
 public:
  explicit OnNode(int node);  // negative: whatever was so before
  OnNode(const OnNode&) = delete;
  OnNode& operator=(const OnNode&) = delete;
  ~OnNode();

 private:
  static constexpr unsigned long kMostNodes = 1024;
  static constexpr unsigned long kBits = 8 * sizeof(unsigned long);
  bool changed_ = false;
  int before_ = 0;                                       // the thread's policy
  unsigned long nodes_before_[kMostNodes / kBits] = {};  // and its nodes
};

}  // namespace wi
