package waveinfer;

/**
 * What a session of so many tokens would take.
 *
 * @param fits kv, index and sealing fit the budgets, and everything the memory this process may use
 * @param weightBytes if mapped, shared with other processes and taken back under pressure
 * @param kvBytes keys and values of all tokens
 * @param indexBytes at most
 * @param sealingBytes most that is needed besides while a segment is being built
 * @param scratchBytes activations, estimated; shared by the runtime's sessions that take turns
 * @param totalBytes sum of these
 * @param maxTokens most tokens that fit the budgets if the session has the runtime's to itself
 * @param fastBytes of kv, index and sealing, what must be in fast memory where the runtime has a
 *     slow tier
 */
public record MemoryPlan(
    boolean fits,
    long weightBytes,
    long kvBytes,
    long indexBytes,
    long sealingBytes,
    long scratchBytes,
    long totalBytes,
    long maxTokens,
    long fastBytes) {
  static MemoryPlan of(wi_memory_plan from) {
    return new MemoryPlan(
        (from.getFits() != 0),
        from.getWeight_bytes(),
        from.getKv_bytes(),
        from.getIndex_bytes(),
        from.getSealing_bytes(),
        from.getScratch_bytes(),
        from.getTotal_bytes(),
        from.getMax_tokens(),
        from.getFast_bytes());
  }
}
