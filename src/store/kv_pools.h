// Where a KV cache takes its memory from. One budget may stand behind both pools, and they may be one.
#pragma once

#include <memory>
#include <utility>

#include "src/error.h"
#include "src/memory/host_pool.h"

namespace wi {

struct KvPools {
  std::shared_ptr<HostPool> pages;  // keys and values, which only kernels and copies read
  std::shared_ptr<HostPool> host;   // what orders and indexes them, which all code reads

  KvPools(const std::shared_ptr<HostPool>& both) : KvPools(both, both) {}
  KvPools(std::shared_ptr<HostPool> of_pages, std::shared_ptr<HostPool> of_the_rest)
      : pages(std::move(of_pages)), host(std::move(of_the_rest)) {
    check(host->memory().host_loads(), WI_E_INTERNAL, "indexes in memory that the host cannot read");
  }
};

}  // namespace wi
