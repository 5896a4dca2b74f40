package waveinfer;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.ref.Reference;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.ReadOnlyBufferException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.spi.AbstractSelectableChannel;
import java.nio.channels.spi.AbstractSelector;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystems;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.function.LongSupplier;

/**
 * One call into the library, from its arguments to its result: the error and the cancel token that
 * it is given, the memory of its arguments, the handles that it holds open, and what a callback of
 * it threw. Calls are kept for the next one and belong to one thread at a time; a callback may make
 * a call inside of a call.
 */
final class Call implements AutoCloseable {
  private static final ArrayBlockingQueue<Call> idle = new ArrayBlockingQueue<>(64);
  private static final ThreadLocal<Call> current = new ThreadLocal<>();

  final wi_event event = new wi_event();
  private final wi_error error = new wi_error();
  private final long cell = Native.allocate(16);
  private final ByteBuffer cells = Native.buffer(cell, 16).order(ByteOrder.nativeOrder());
  private final long cancel;
  private final InterruptHook hook = new InterruptHook();

  private final List<Handle> used = new ArrayList<>();
  private final List<Handle> held = new ArrayList<>();
  private final List<AutoCloseable> owned = new ArrayList<>();
  private final List<Runnable> copiesBack = new ArrayList<>();
  private Call outer;
  private CancelToken token;
  private boolean armed;
  private Throwable thrown;

  /** Of the sampling parameters that were written for this call; null: none. */
  LogitsHook logitsHook;

  // Guarded by this: a token or an interrupt may come late.
  private Thread owner;
  private boolean fired;

  private Call() {
    int status = Native.wi_cancel_create(cell, error.address());
    if (status != wi_status_code.WI_OK) throw failure(status);
    cancel = cells.getLong(0);
  }

  /** One that takes no time worth cancelling. */
  static Call enter() {
    Call call = idle.poll();
    if (call == null) call = new Call();
    call.outer = current.get();
    current.set(call);
    return call;
  }

  /** One that an interrupt ends, and the token, if it is not null. */
  static Call cancellable(CancelToken token) {
    Call call = enter();
    synchronized (call) {
      call.owner = Thread.currentThread();
    }
    call.armed = true;
    call.token = token;
    if (token != null) token.add(call);
    call.hook.arm();
    return call;
  }

  /**
   * Makes an interrupt end this thread's call again, after something that may have taken the hook
   * away: another call, or what reads or writes an interruptible channel. One that came meanwhile
   * ends it now.
   */
  static void rearm() {
    Call call = current();
    if (call != null && call.armed) call.hook.arm();
  }

  /** The innermost one of this thread; null: none. */
  static Call current() {
    return current.get();
  }

  @Override
  public void close() {
    if (armed) disarm();
    for (int i = owned.size(); i-- > 0; ) closeQuietly(owned.get(i));
    for (int i = held.size(); i-- > 0; ) held.get(i).leaveAlone();
    for (int i = used.size(); i-- > 0; ) used.get(i).leave();
    owned.clear();
    held.clear();
    used.clear();
    copiesBack.clear();
    thrown = null;
    logitsHook = null;
    current.set(outer);
    rearm();
    outer = null;
    if (!idle.offer(this)) end();
  }

  private void end() {
    event.close();
    error.close();
    Native.release(cell);
    Native.wi_cancel_release(cancel);
  }

  private void disarm() {
    hook.disarm();
    if (token != null) token.remove(this);
    boolean reset;
    synchronized (this) {
      owner = null;
      reset = fired;
      fired = false;
    }
    if (reset) Native.wi_cancel_reset(cancel);
    token = null;
    armed = false;
  }

  private static void closeQuietly(AutoCloseable owned) {
    try {
      owned.close();
    } catch (Exception e) {
      throw new AssertionError(e); // structs and addresses
    }
  }

  // ---------------------------------------- What C is given
  // ----------------------------------------

  long error() {
    return error.address();
  }

  long cancel() {
    return cancel;
  }

  /** Where an output of at most 8 bytes goes. */
  long out() {
    return cell;
  }

  /** A second one. */
  long out2() {
    return cell + 8;
  }

  long outLong() {
    return cells.getLong(0);
  }

  int outInt() {
    return cells.getInt(0);
  }

  /** The address of an open object, which stays open until this call ends. */
  long use(Handle handle) {
    long address = handle.enter();
    used.add(handle);
    return address;
  }

  /** As {@link #use}, of an object that is used by one call at a time. */
  long alone(Handle handle) {
    long address = handle.enterAlone();
    held.add(handle);
    return address;
  }

  <T extends AutoCloseable> T own(T struct) {
    owned.add(struct);
    return struct;
  }

  long allocate(long bytes) {
    long address = Native.allocate(bytes);
    owned.add(() -> Native.release(address));
    return address;
  }

  long copy(byte[] bytes) {
    long address = Native.copy(bytes);
    owned.add(() -> Native.release(address));
    return address;
  }

  /** With a NUL behind it; 0 for null. One with a NUL inside is none for C. */
  long name(String text) {
    if (text == null) return 0;
    if (text.indexOf('\0') >= 0) {
      throw new WaveInferException.Argument(0, "a NUL character in \"" + text + "\"");
    }
    return copy(text.getBytes(StandardCharsets.UTF_8));
  }

  /** The bytes of a path, which is a file's of the system that C knows. */
  long path(Path path) {
    if (path.getFileSystem() != FileSystems.getDefault()) {
      throw new WaveInferException.Argument(
          0, "no path of the default file system: " + path.toUri());
    }
    String text = path.toString();
    boolean ascii = text.chars().allMatch(c -> c < 0x80);
    return ascii ? name(text) : copy(raw(path)); // else by an encoding that need not say all of it
  }

  /** Only a URI tells them. It makes the path an absolute one. */
  private static byte[] raw(Path path) {
    String uri = path.toUri().getRawPath();
    int end = uri.endsWith("/") ? uri.length() - 1 : uri.length(); // which it has behind a folder
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(end);
    for (int i = 0; i < end; i++) {
      if (uri.charAt(i) == '%') {
        bytes.write(Integer.parseInt(uri, i + 1, i + 3, 16));
        i += 2;
      } else {
        bytes.write(uri.charAt(i));
      }
    }
    return bytes.toByteArray();
  }

  ByteBuffer buffer(long address, long bytes) {
    return Native.buffer(address, bytes).order(ByteOrder.nativeOrder());
  }

  long ints(IntBuffer from) {
    if (from.isDirect() && from.order() == ByteOrder.nativeOrder()) return address(from, 4);
    long bytes = 4L * from.remaining();
    long copy = allocate(bytes);
    if (bytes > 0) buffer(copy, bytes).asIntBuffer().put(from.duplicate());
    return copy;
  }

  long floats(FloatBuffer from) {
    if (from.isDirect() && from.order() == ByteOrder.nativeOrder()) return address(from, 4);
    long bytes = 4L * from.remaining();
    if (bytes > Integer.MAX_VALUE)
      throw new WaveInferException.Argument(0, "more than 2 GB that are not direct");
    long copy = allocate(bytes);
    if (bytes > 0) buffer(copy, bytes).asFloatBuffer().put(from.duplicate());
    return copy;
  }

  /**
   * Where the floats of an output go; if it is not direct, they are copied when the call worked: as
   * many as it has written, which is asked for then. What is behind them in the buffer is not ours.
   */
  long floatsOut(FloatBuffer to, LongSupplier written) {
    if (to.isReadOnly()) throw new ReadOnlyBufferException();
    if (to.isDirect() && to.order() == ByteOrder.nativeOrder()) return address(to, 4);
    long bytes = 4L * to.remaining();
    if (bytes > Integer.MAX_VALUE)
      throw new WaveInferException.Argument(0, "more than 2 GB that are not direct");
    long copy = allocate(bytes);
    FloatBuffer target = to.duplicate();
    copiesBack.add(
        () -> {
          long count = written.getAsLong();
          if (count > 0) target.put(buffer(copy, 4 * count).asFloatBuffer());
        });
    return copy;
  }

  /** What C calls an object of the host's by, until this call ends. */
  long callback(Object object) {
    long id = Callbacks.add(object);
    owned.add(() -> Callbacks.remove(id));
    return id;
  }

  private long address(Buffer buffer, int size) {
    owned.add(() -> Reference.reachabilityFence(buffer));
    return Native.address(buffer) + (long) size * buffer.position();
  }

  // ---------------------------------------- What comes back
  // ----------------------------------------

  void check(int status) {
    Throwable own = thrown;
    thrown = null;
    if (status == wi_status_code.WI_OK) {
      for (Runnable copy : copiesBack) copy.run();
      if (own != null) Callbacks.report(own); // a log's; the call did not notice
      return;
    }
    if (own != null) throw Callbacks.<RuntimeException>sneaky(own);
    throw failure(status);
  }

  /** As check, of a call that cannot be cancelled: one in which a callback threw is undone. */
  void check(int status, Runnable undo) {
    Throwable own = thrown;
    if (status == wi_status_code.WI_OK && own != null) {
      undo.run();
      throw Callbacks.<RuntimeException>sneaky(own);
    }
    check(status);
  }

  /** As check, of a call that takes a channel of the host's. */
  void checkIo(int status) throws IOException {
    check(status);
  }

  WaveInferException failure(int status) {
    return WaveInferException.of(status, error.getNative_code(), error.getMessage());
  }

  /** Notes what a callback of this call threw, the first time. */
  void threw(Throwable what) {
    if (thrown == null) thrown = what;
  }

  /** A call that fills an array: of bytes or of ids. */
  interface Fill {
    int call(long address, long capacity, long countOut);
  }

  /** The bytes that a call gives, asked for with a guess of how many there are. */
  byte[] bytes(long guess, Fill fill) {
    Filled filled = fill(guess, 1, fill);
    try {
      return Native.bytes(filled.address, filled.count);
    } finally {
      Native.release(filled.address);
    }
  }

  /** The same of ids. */
  int[] ids(long guess, Fill fill) {
    Filled filled = fill(guess, 4, fill);
    try {
      int[] ids = new int[Math.toIntExact(filled.count)];
      if (ids.length > 0) buffer(filled.address, 4L * ids.length).asIntBuffer().get(ids);
      return ids;
    } finally {
      Native.release(filled.address);
    }
  }

  private record Filled(long address, long count) {}

  private Filled fill(long guess, int size, Fill fill) {
    for (long capacity = guess; ; ) {
      long address = Native.allocate(capacity * size);
      cells.putLong(0, 0);
      int status = fill.call(capacity == 0 ? 0 : address, capacity, cell);
      long count = cells.getLong(0);
      if (status == wi_status_code.WI_OK && count <= capacity) return new Filled(address, count);
      Native.release(address);
      if (count <= capacity) throw failure(status);
      capacity = count;
    }
  }

  // ---------------------------------------- How it is cancelled
  // ----------------------------------------

  synchronized void fire() {
    if (owner == null) return;
    fired = true;
    Native.wi_cancel_trigger(cancel);
  }

  private synchronized void interrupted() {
    if (owner != null && owner.isInterrupted()) fire();
  }

  /**
   * Hears of an interrupt as a selector does: between begin and end, Thread.interrupt calls wakeup.
   * No more of a selector is there.
   */
  private final class InterruptHook extends AbstractSelector {
    InterruptHook() {
      super(null);
    }

    void arm() {
      begin();
    }

    void disarm() {
      end();
    }

    @Override
    public Selector wakeup() {
      interrupted();
      return this;
    }

    @Override
    protected void implCloseSelector() {}

    @Override
    protected SelectionKey register(AbstractSelectableChannel channel, int operations, Object of) {
      throw new UnsupportedOperationException();
    }

    @Override
    public Set<SelectionKey> keys() {
      return Set.of();
    }

    @Override
    public Set<SelectionKey> selectedKeys() {
      return Set.of();
    }

    @Override
    public int selectNow() {
      return 0;
    }

    @Override
    public int select(long timeout) {
      return 0;
    }

    @Override
    public int select() {
      return 0;
    }
  }
}
