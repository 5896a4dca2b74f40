// Dense products in bf16 on AMX, which are oneDNN's (gemm_onednn.cpp); a library without it has none
// (bundled/gemm_tiles.cpp).
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/gemm.h"

namespace wi::cpu {

// A product of one shape, ready to run, as Gemm. It belongs to the thread that asked for it.
class GemmTiles {
 public:
  static bool supported();  // by this processor and this library
  static void prepare();    // Gemm::prepare()
  static std::shared_ptr<const GemmTiles> get(const GemmShape& shape);

  const Packing& packing() const;
  size_t scratch_bytes() const;
  void run(const void* a, const void* b, float* c, std::byte* scratch) const;

  struct Primitive;
  explicit GemmTiles(std::unique_ptr<Primitive> primitive);
  ~GemmTiles();

 private:
  const std::unique_ptr<Primitive> primitive_;
};

}  // namespace wi::cpu
