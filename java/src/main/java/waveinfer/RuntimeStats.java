package waveinfer;

/**
 * What a runtime holds at a moment; the numbers are each right, but not taken at one instant. From
 * {@code slowBytes} on they are of the slow tier, 0 without one.
 *
 * @param sessions alive now
 * @param kvBudgetBytes in force
 * @param kvBytes KV, index and tail bytes now; what sessions share counts once
 * @param kvBytesPeak most since creation
 * @param scratchBytes workspaces of prefill and decode, kept for the next step
 * @param prefixHits segments taken over from another session instead of being computed
 * @param copiedWeightBytes of models that were opened with copied weights and live
 * @param slowBytes in the spill folder's file, or pinned, now
 * @param frameBytes of {@code kvBytes}: frames for what queries want of the slow tier
 * @param bufferAdmissions partitions that came into frames to stay, since creation, as all below
 * @param bufferEvictions partitions that made room
 * @param bufferRefusals partitions that were read and found no free frame
 * @param bufferLate partitions that two steps brought in at once
 * @param slowReadBytes that the disk was asked for
 * @param slowReads reads that the disk was asked for
 * @param slowReadNs that calls waited for them
 * @param slowWrittenBytes written to the file
 * @param pinningRefused of a device: how often the system refused to pin host memory
 * @param slowStalls times that a call waited for the disk
 */
public record RuntimeStats(
    int sessions,
    long kvBudgetBytes,
    long kvBytes,
    long kvBytesPeak,
    long scratchBytes,
    long prefixHits,
    long copiedWeightBytes,
    long slowBytes,
    long frameBytes,
    long bufferAdmissions,
    long bufferEvictions,
    long bufferRefusals,
    long bufferLate,
    long slowReadBytes,
    long slowReads,
    long slowReadNs,
    long slowWrittenBytes,
    long pinningRefused,
    long slowStalls) {
  static RuntimeStats of(wi_runtime_stats from) {
    return new RuntimeStats(
        from.getSessions(),
        from.getKv_budget_bytes(),
        from.getKv_bytes(),
        from.getKv_bytes_peak(),
        from.getScratch_bytes(),
        from.getPrefix_hits(),
        from.getCopied_weight_bytes(),
        from.getSlow_bytes(),
        from.getFrame_bytes(),
        from.getBuffer_admissions(),
        from.getBuffer_evictions(),
        from.getBuffer_refusals(),
        from.getBuffer_late(),
        from.getSlow_read_bytes(),
        from.getSlow_reads(),
        from.getSlow_read_ns(),
        from.getSlow_written_bytes(),
        from.getPinning_refused(),
        from.getSlow_stalls());
  }
}
