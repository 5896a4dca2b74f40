// Retrieve: the partitions that were selected, as runs of keys and values in the fast tier. What lies there is
// a hit and is read where it lies; the rest is the wave buffer's (src/buffer/retrieval.h).
#include "src/pipeline/pipeline.h"

namespace wi {

void retrieve(const Backend& backend, const Stream& stream, const Pass& pass) {
  StageTimer timer(pass.times.retrieve_ns);
  const LookupArgs& args = pass.args;
  if (backend.retrieve) return backend.retrieve(stream, args);
  if (pass.slow) return pass.slow->run(stream, args);
  const size_t bytes = row_bytes(args.kv, args.head_dim);
  stream.each(args.count, [&](int64_t i, int) {
    Lookup& lookup = args.lookups[i];
    for (int32_t r = 0; r < lookup.retrieved_count; ++r)
      lookup.runs[r] = lookup.segments[lookup.retrieved[r].segment].run(lookup.retrieved[r].partition, bytes);
    lookup.run_count = lookup.retrieved_count;
  });
}

}  // namespace wi
