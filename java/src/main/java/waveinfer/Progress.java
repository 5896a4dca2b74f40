package waveinfer;

/** Hears how far a call is, on the thread that made the call. */
@FunctionalInterface
public interface Progress {
  /**
   * Says how far the call is. What this throws ends the call, and is thrown by it.
   *
   * @param done never falls and ends at {@code total}; in the units of the call
   * @param total all of them
   */
  void report(long done, long total);
}
