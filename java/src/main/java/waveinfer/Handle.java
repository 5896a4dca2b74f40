package waveinfer;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.LongConsumer;

/**
 * One reference to an object of the library. It is released by close, or when nothing refers to
 * this any more, and never while a call is inside: then when the last such call ends.
 */
abstract class Handle implements AutoCloseable {
  static final Cleaner cleaner = Cleaner.create();

  private final Life life;
  private final Cleaner.Cleanable net;

  /** Taken by a call that must be the only one on what this refers to, by whatever handle. */
  private final AtomicBoolean taken;

  /** A handle that owns the reference; keep is kept until it is released. */
  Handle(long address, LongConsumer release, Object keep, AtomicBoolean taken) {
    this.taken = taken;
    life = new Life(address, release, keep);
    net = cleaner.register(this, life);
  }

  /**
   * Gives the native object back. Nothing happens the second time; what other objects need of this
   * one stays until they are closed.
   */
  @Override
  public void close() {
    net.clean();
  }

  final long enter() {
    return life.enter(getClass().getSimpleName());
  }

  final long enterAlone() {
    long address = enter();
    if (!taken.compareAndSet(false, true)) {
      life.leave();
      throw new WaveInferException.Busy(
          0, "another call is inside this " + getClass().getSimpleName());
    }
    return address;
  }

  final void leave() {
    life.leave();
  }

  final void leaveAlone() {
    taken.set(false);
    life.leave();
  }

  final AtomicBoolean taken() {
    return taken;
  }

  final Object kept() {
    return life.keep;
  }

  /** What is left when the handle is gone; refers to nothing that refers to the handle. */
  private static final class Life implements Runnable {
    private final long address;
    private final LongConsumer release;
    private volatile Object keep;
    private int inside;
    private boolean closed;

    Life(long address, LongConsumer release, Object keep) {
      this.address = address;
      this.release = release;
      this.keep = keep;
    }

    synchronized long enter(String name) {
      if (closed) throw new IllegalStateException(name + " is closed");
      inside++;
      return address;
    }

    void leave() {
      synchronized (this) {
        if (--inside > 0 || !closed) return;
      }
      release();
    }

    @Override
    public void run() {
      synchronized (this) {
        closed = true;
        if (inside > 0) return;
      }
      release();
    }

    private void release() {
      release.accept(address);
      keep = null;
    }
  }
}
