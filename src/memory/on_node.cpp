#include "src/memory/on_node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace wi {

// Where a container forbids these calls, or the node is none of the process's, memory is where it would be anyway.
OnNode::OnNode(int node) {
  if (node < 0 || static_cast<unsigned long>(node) >= kMostNodes) return;
  if (syscall(SYS_get_mempolicy, &before_, nodes_before_, kMostNodes, nullptr, 0) != 0) return;
  unsigned long wanted[kMostNodes / kBits] = {};
  wanted[static_cast<unsigned long>(node) / kBits] = 1ul << (static_cast<unsigned long>(node) % kBits);
  changed_ = syscall(SYS_set_mempolicy, MPOL_PREFERRED, wanted, kMostNodes) == 0;
}

OnNode::~OnNode() {
  if (changed_)
    syscall(SYS_set_mempolicy, before_, before_ == MPOL_DEFAULT ? nullptr : nodes_before_, kMostNodes);
}

}  // namespace wi
