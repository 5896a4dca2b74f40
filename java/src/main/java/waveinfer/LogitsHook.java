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
  private volatile Throwable thrown; // the last one, on the engine's thread

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

  void threw(Throwable what) {
    thrown = what;
  }

  Throwable thrown() {
    return thrown;
  }
}
