package waveinfer;

/**
 * What a session or a KV store has done. Sums are over its life; a fork starts from zero. Of a KV
 * store the fields about prefill, weights and prefixes stay 0.
 *
 * @param segments sealed
 * @param tokens in the session, the pending one included
 * @param kvBytes held in fast memory: keys, values and index, shared segments included
 * @param indexBytes of them
 * @param prefillTokens given to prefill and append
 * @param decodeSteps of a KV store: calls of attend
 * @param prefixTokens of {@code prefillTokens}: taken over from other sessions instead of computed
 * @param kvBytesRead by decode steps: keys, values and index
 * @param indexBytesRead of them
 * @param retrievedTokens read from segments exactly; summed over steps, layers and KV heads
 * @param estimatedClusters likewise
 * @param droppedClusters ranked, but neither read nor estimated; likewise
 * @param bufferHits partitions found in the fast tier; likewise
 * @param bufferMisses partitions that had to be brought there; likewise
 * @param prefillNs of prefill and append
 * @param indexNs of {@code prefillNs} and {@code decodeNs}: sealing segments
 * @param decodeNs of decode, accept and logits; in a batch, of the whole step
 * @param weightsNs of {@code decodeNs}: everything but attention
 * @param selectNs of {@code decodeNs}: looking up repeats, ranking clusters
 * @param retrieveNs of {@code decodeNs}: bringing them to the fast tier
 * @param attendNs of {@code decodeNs}: exact attention
 * @param estimateNs of {@code decodeNs}: the estimation zone
 * @param estimatedCoverage share of the attention mass that was covered exactly, mean over steps,
 *     layers and heads; 1 before the first step
 * @param certifiedCoverage a lower bound of that share
 * @param certifiedCoverageMin its least over steps, layers and heads
 * @param slowBytes keys and values in the slow tier, shared segments included
 * @param bufferAdmissions of {@code bufferMisses}, of a slow tier that is a file: found frames to
 *     stay in
 * @param bufferRefusals found none that was free; likewise
 * @param bufferLate were brought in by another step meanwhile; likewise
 * @param bufferEvictions partitions, of whichever session, that made room for them
 * @param bufferStalls lookups that waited for the slow tier; summed over steps, layers and KV heads
 */
public record SessionStats(
    int segments,
    long tokens,
    long kvBytes,
    long indexBytes,
    long prefillTokens,
    long decodeSteps,
    long prefixTokens,
    long kvBytesRead,
    long indexBytesRead,
    long retrievedTokens,
    long estimatedClusters,
    long droppedClusters,
    long bufferHits,
    long bufferMisses,
    long prefillNs,
    long indexNs,
    long decodeNs,
    long weightsNs,
    long selectNs,
    long retrieveNs,
    long attendNs,
    long estimateNs,
    double estimatedCoverage,
    double certifiedCoverage,
    double certifiedCoverageMin,
    long slowBytes,
    long bufferAdmissions,
    long bufferRefusals,
    long bufferLate,
    long bufferEvictions,
    long bufferStalls) {
  static SessionStats of(wi_session_stats from) {
    return new SessionStats(
        from.getSegments(),
        from.getTokens(),
        from.getKv_bytes(),
        from.getIndex_bytes(),
        from.getPrefill_tokens(),
        from.getDecode_steps(),
        from.getPrefix_tokens(),
        from.getKv_bytes_read(),
        from.getIndex_bytes_read(),
        from.getRetrieved_tokens(),
        from.getEstimated_clusters(),
        from.getDropped_clusters(),
        from.getBuffer_hits(),
        from.getBuffer_misses(),
        from.getPrefill_ns(),
        from.getIndex_ns(),
        from.getDecode_ns(),
        from.getWeights_ns(),
        from.getSelect_ns(),
        from.getRetrieve_ns(),
        from.getAttend_ns(),
        from.getEstimate_ns(),
        from.getEstimated_coverage(),
        from.getCertified_coverage(),
        from.getCertified_coverage_min(),
        from.getSlow_bytes(),
        from.getBuffer_admissions(),
        from.getBuffer_refusals(),
        from.getBuffer_late(),
        from.getBuffer_evictions(),
        from.getBuffer_stalls());
  }
}
