package waveinfer;

import java.util.HashSet;
import java.util.Set;

/**
 * Ends the calls that it is given to, on any number of threads, with {@link
 * WaveInferException.Cancelled}; calls that get it after it was triggered end at once. Holds
 * nothing that needs closing. All threads.
 */
public final class CancelToken {
  private final Set<Call> calls = new HashSet<>();
  private boolean triggered;

  /** Makes a token that has not been triggered. */
  public CancelToken() {}

  /** Ends the calls that have the token, and those that get it from now on. */
  public synchronized void trigger() {
    triggered = true;
    for (Call call : calls) call.fire();
  }

  /** Makes the token usable again; calls that it has ended stay ended. */
  public synchronized void reset() {
    triggered = false;
  }

  /**
   * Whether it was triggered, and not reset.
   *
   * @return true if calls that get it end
   */
  public synchronized boolean isTriggered() {
    return triggered;
  }

  synchronized void add(Call call) {
    calls.add(call);
    if (triggered) call.fire();
  }

  synchronized void remove(Call call) {
    calls.remove(call);
  }
}
