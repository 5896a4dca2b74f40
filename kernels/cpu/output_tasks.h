// How the outputs of a product's parts (q, k, v; gate, up) are cut into tasks, runs of outputs that all workers share
// with one barrier: of products that read weights as they are stored or panel by panel. Each output is computed by
// itself, so that the cut may depend on the workers and no result does.
#pragma once

#include "kernels/ops.h"

namespace wi::cpu {

constexpr int64_t kDirectRows = 2;  // so few are multiplied by quantised weights as they are stored

class OutputTasks {
 public:
  OutputTasks(const MatmulArgs& args, int workers);

  int64_t count() const { return before_[args_.part_count]; }

  // Outputs [begin, end) of one part.
  struct Task {
    const MatmulPart& part;
    int64_t begin, end;
  };
  Task operator[](int64_t task) const;

 private:
  const MatmulArgs& args_;
  int64_t step_[3] = {};    // outputs of a task of each part; its last one may have fewer
  int64_t before_[4] = {};  // tasks of the parts before each one, and of all
};

}  // namespace wi::cpu
