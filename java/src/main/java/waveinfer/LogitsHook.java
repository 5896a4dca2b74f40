package waveinfer;

import java.lang.ref.WeakReference;
import java.nio.FloatBuffer;

/**
 * A logits processor as the library knows it: by a number, for as long as a session or a task
 * refers to this object.
 */
final class LogitsHook {
  private final LogitsProcessor processor;
  private final long id;
  private Throwable thrown; // on the engine's thread

  LogitsHook(LogitsProcessor processor) {
    this.processor = processor;
    long added = Callbacks.add(new WeakReference<>(this));
    id = added;
    Handle.cleaner.register(this, () -> Callbacks.remove(added));
  }

  long id() {
    return id;
  }

  void process(FloatBuffer values) {
    Logits logits = new Logits(values);
    try {
      processor.process(logits);
    } finally {
      logits.end();
    }
  }

  /** On the engine's thread, which asks again where a batch failed: it fails again. */
  synchronized boolean failed() {
    return thrown != null;
  }

  synchronized void threw(Throwable what) {
    if (thrown == null) thrown = what;
  }

  synchronized Throwable thrown() {
    return thrown;
  }

  synchronized void forget() {
    thrown = null;
  }
}
