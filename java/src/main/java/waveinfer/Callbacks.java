package waveinfer;

import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;

/**
 * Where callbacks come in from C. The library has a number for each; the object of it is looked up
 * here, so that one that comes after its object is gone finds nothing and ends its call. Whatever
 * is thrown stops here and is noted in the call that it ends.
 */
final class Callbacks {
  // What a trampoline is, by its number in callbacks.c.
  static final int LOG = 0;
  static final int LOG_RELEASED = 1;
  static final int PROGRESS = 2;
  static final int LOGITS = 3;
  static final int READ = 4;
  static final int WRITE = 5;
  static final int NOTIFIED = 6;

  private static final int GO_ON = 0;
  private static final int END = 1;

  /** Of the engine's thread, within a callback: it must not wait for the engine. */
  private static final ThreadLocal<Boolean> engine = new ThreadLocal<>();

  private static final AtomicLong last = new AtomicLong();
  private static final ConcurrentHashMap<Long, Object> objects = new ConcurrentHashMap<>();

  private Callbacks() {}

  /** Keeps an object until it is removed; a WeakReference stands for what it refers to. */
  static long add(Object object) {
    long id = last.incrementAndGet();
    objects.put(id, object);
    return id;
  }

  static void remove(long id) {
    objects.remove(id);
  }

  static boolean onEngine() {
    return engine.get() != null;
  }

  /** How many objects are kept. */
  static int count() {
    return objects.size();
  }

  private static <T> T find(long id, Class<T> type) {
    Object object = objects.get(id);
    if (object instanceof WeakReference<?> weak) object = weak.get();
    return type.cast(object);
  }

  /** Throws anything as it is, for callers that declare what it may be. */
  @SuppressWarnings("unchecked")
  static <T extends Throwable> RuntimeException sneaky(Throwable what) throws T {
    throw (T) what;
  }

  private static int ended(Throwable what) {
    Call call = Call.current();
    if (call != null) call.threw(what);
    return END;
  }

  /** Outside of any call there is nobody to throw at. */
  static void report(Throwable what) {
    Thread thread = Thread.currentThread();
    thread.getUncaughtExceptionHandler().uncaughtException(thread, what);
  }

  // ---------------------------------------- Called from C ----------------------------------------

  private static void log(long id, int level, byte[] message) {
    try {
      Log log = find(id, Log.class);
      if (log != null) log.line(level, message);
    } catch (Throwable what) {
      Call call = Call.current();
      if (call == null) {
        report(what);
      } else {
        call.threw(what);
        call.fire();
      }
    } finally {
      Call.rearm();
    }
  }

  private static void logReleased(long id) {
    remove(id);
  }

  private static int progress(long id, long done, long total) {
    try {
      Progress progress = find(id, Progress.class);
      if (progress == null) return END;
      progress.report(done, total);
      return GO_ON;
    } catch (Throwable what) {
      return ended(what);
    } finally {
      Call.rearm();
    }
  }

  private static int logits(long id, ByteBuffer values) {
    LogitsHook hook = null;
    boolean onEngine = Call.current() == null;
    try {
      if (onEngine) engine.set(true);
      hook = find(id, LogitsHook.class);
      if (hook == null) return END;
      hook.process(values.order(ByteOrder.nativeOrder()).asFloatBuffer());
      return GO_ON;
    } catch (Throwable what) {
      if (onEngine && hook != null) hook.threw(what);
      return ended(what);
    } finally {
      if (onEngine) engine.remove();
      Call.rearm();
    }
  }

  private static int read(long id, long offset, ByteBuffer to) {
    try {
      Source source = find(id, Source.class);
      if (source == null) return END;
      source.read(offset, to);
      return GO_ON;
    } catch (Throwable what) {
      return ended(what);
    } finally {
      Call.rearm();
    }
  }

  private static int write(long id, ByteBuffer from) {
    try {
      Sink sink = find(id, Sink.class);
      if (sink == null) return END;
      sink.write(from);
      return GO_ON;
    } catch (Throwable what) {
      return ended(what);
    } finally {
      Call.rearm();
    }
  }

  private static void notified(long id) {
    Task.Bell bell = null;
    try {
      engine.set(true);
      bell = find(id, Task.Bell.class);
      if (bell != null) bell.ring();
    } catch (Throwable what) {
      if (bell != null) bell.threw(what);
    } finally {
      engine.remove();
    }
  }

  /** The log of a runtime. */
  record Log(BiConsumer<LogLevel, String> to) {
    void line(int level, byte[] message) {
      to.accept(LogLevel.of(level), Texts.of(message));
    }
  }
}
