// What a library has that is without oneDNN: no products on AMX.
#include "kernels/cpu/gemm_tiles.h"

#include <cassert>

namespace wi::cpu {

struct GemmTiles::Primitive {
  Packing packing;
};

bool GemmTiles::supported() { return false; }
void GemmTiles::prepare() {}

std::shared_ptr<const GemmTiles> GemmTiles::get(const GemmShape&) {
  assert(!"supported()");
  return nullptr;
}

GemmTiles::GemmTiles(std::unique_ptr<Primitive> primitive) : primitive_(std::move(primitive)) {}
GemmTiles::~GemmTiles() = default;
const Packing& GemmTiles::packing() const { return primitive_->packing; }
size_t GemmTiles::scratch_bytes() const { return 0; }
void GemmTiles::run(const void*, const void*, float*, std::byte*) const {}

}  // namespace wi::cpu
