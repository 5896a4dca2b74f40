package waveinfer;

import java.lang.ref.Reference;
import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.LongConsumer;
import java.util.stream.Stream;

/**
 * A prompt and its answer, worked on by the runtime beside the host's threads, together with all
 * other tasks. {@link Session#submit} makes one; the host fetches events when it likes. It gets
 * exactly the tokens that the same calls would have given its session alone. Closing it cancels it.
 * All threads; events are fetched by one at a time.
 */
public final class Task extends Handle implements Iterable<Event> {
  private static final int PIECE = 16; // events of a poll
  private static final long SLICE_NS =
      20_000_000; // of a wait, between looks at the interrupt status

  private static final Duration LONGEST = Duration.ofNanos(Long.MAX_VALUE);

  private final Hooks hooks;
  private final Hooks.Setting setting; // of the sampling by this task; null: none
  private final LogitsHook ownHook;
  private final Bell bell;
  private final AtomicInteger handles; // of the task
  private final AtomicBoolean told; // the last event, to one of them
  private volatile Throwable pending; // thrown by the next poll

  Task(
      long address,
      Object keep,
      Hooks hooks,
      Hooks.Setting setting,
      LogitsHook ownHook,
      Bell bell) {
    this(
        address,
        keep,
        hooks,
        setting,
        ownHook,
        bell,
        new AtomicBoolean(),
        new AtomicInteger(),
        new AtomicBoolean());
  }

  private Task(
      long address,
      Object keep,
      Hooks hooks,
      Hooks.Setting setting,
      LogitsHook ownHook,
      Bell bell,
      AtomicBoolean taken,
      AtomicInteger handles,
      AtomicBoolean told) {
    super(address, release(keep, bell == null ? 0 : bell.id, handles), keep, taken);
    handles.incrementAndGet();
    this.hooks = hooks;
    this.setting = setting;
    this.ownHook = ownHook;
    this.bell = bell;
    this.handles = handles;
    this.told = told;
  }

  /** Where weights lie in memory of this VM, it must stay until the engine has left them. */
  private static LongConsumer release(Object memory, long bell, AtomicInteger handles) {
    return task -> {
      boolean last = handles.decrementAndGet() == 0;
      Runnable release =
          () -> {
            if (last && memory != null) settle(task);
            Native.wi_task_release(task);
            if (last) Callbacks.remove(bell);
            Reference.reachabilityFence(memory);
          };
      if (last && memory != null && Callbacks.onEngine()) { // which cannot wait for itself
        Thread waiting = new Thread(release, "waveinfer-task");
        waiting.setDaemon(true);
        waiting.start();
      } else {
        release.run();
      }
    };
  }

  private static void settle(long task) {
    Native.wi_task_cancel(task);
    try (Call call = Call.enter()) {
      wi_task_info info = call.own(new wi_task_info());
      while (true) {
        call.check(Native.wi_task_get_info(task, info.address(), call.error()));
        if (TaskInfo.State.of(info.getState()).isEnd()) return;
        LockSupport.parkNanos(200_000);
      }
    }
  }

  /**
   * Another handle of this task, which is closed on its own: the task is cancelled when the last
   * one is. Polls of the two share the task's events.
   *
   * @return a new one
   */
  public Task share() {
    try (Call call = Call.enter()) {
      long address = Native.wi_task_retain(call.use(this));
      return new Task(address, kept(), hooks, setting, ownHook, bell, taken(), handles, told);
    }
  }

  /**
   * Takes the events that have come since the last poll, oldest first; never waits. The last event
   * of a task is the one that is not a {@link Event.Kind#TOKEN}. If it ends because a callback
   * threw, that is thrown here when all events before are taken.
   *
   * @return none if there are none now
   */
  public List<Event> poll() {
    return poll(PIECE);
  }

  /** Takes so many at once, and goes on while it gets as many, or takes one. */
  private List<Event> poll(int piece) {
    List<Event> events = new ArrayList<>();
    try (Call call = Call.enter()) {
      long task = call.alone(this);
      rethrowOfBell(task);
      long size = wi_event.struct_bytes();
      long array = call.allocate(piece * size);
      for (int i = 0; i < piece; i++) {
        new wi_event(array + i * size, false).setStruct_size((int) size);
      }
      take(call, task, array, piece, events);
      if (events.isEmpty() && !told.get()) {
        TaskInfo.State state = info().state();
        if (state.isEnd()) { // and where nothing came between, it had no memory for its last event
          take(call, task, array, piece, events);
          if (events.isEmpty()) events.add(Event.last(state));
        }
      }
      if (!events.isEmpty()) ended(events);
      return events;
    }
  }

  private static void take(Call call, long task, long array, int piece, List<Event> events) {
    long size = wi_event.struct_bytes();
    long count;
    do {
      call.check(Native.wi_task_poll(task, array, piece, call.out(), call.error()));
      count = call.outLong();
      for (long i = 0; i < count; i++) {
        events.add(Event.of(new wi_event(array + i * size, false)));
      }
    } while (count == piece && piece > 1);
  }

  private void ended(List<Event> events) {
    Event last = events.get(events.size() - 1);
    if (last.isEnd()) told.set(true);
    if (last.kind() == Event.Kind.FAILED && info().status() == Status.CANCELLED) {
      // By its processor, as nothing else makes a task fail so.
      Throwable thrown = setting != null && ownHook != null ? ownHook.thrown() : hooks.thrown();
      if (thrown != null) {
        if (events.size() == 1) throw Callbacks.<RuntimeException>sneaky(thrown);
        events.remove(events.size() - 1);
        pending = thrown;
      }
    } else if (last.isEnd() && setting != null && info().queuedNs() > 0) {
      hooks.settle(setting); // admitted
    }
  }

  private void rethrowOfBell(long task) {
    Throwable thrown = pending;
    pending = null;
    if (thrown == null && bell != null) {
      thrown = bell.takeThrown();
      if (thrown != null) Native.wi_task_cancel(task);
    }
    if (thrown != null) throw Callbacks.<RuntimeException>sneaky(thrown);
  }

  /**
   * Waits until there are events to poll, or the task has ended.
   *
   * @param timeout at most so long; null: for ever
   * @return false if the time was over first
   * @throws WaveInferException.Cancelled if the thread is interrupted; its interrupt status stays
   *     set, and the task goes on
   * @throws WaveInferException.State in what the engine calls, a logits processor of a task or
   *     {@link TaskParams#whenReady}, if there are no events: the engine would wait for itself
   */
  public boolean await(Duration timeout) {
    if (Callbacks.onEngine()) {
      if (isReady(0)) return true;
      throw new WaveInferException.State(
          0,
          "the engine waits for this callback, which would wait for the engine; cancel does not");
    }
    long end = timeout == null ? 0 : System.nanoTime() + nanoseconds(timeout);
    while (true) {
      if (Thread.currentThread().isInterrupted()) {
        throw new WaveInferException.Cancelled(0, "the thread was interrupted");
      }
      long left = timeout == null ? SLICE_NS : Math.max(0, end - System.nanoTime());
      if (isReady(Math.min(left, SLICE_NS))) return true;
      if (timeout != null && left == 0) return false;
    }
  }

  /** In a long, in which there are 292 years. */
  private static long nanoseconds(Duration timeout) {
    if (timeout.isNegative()) return 0;
    return timeout.compareTo(LONGEST) < 0 ? timeout.toNanos() : Long.MAX_VALUE;
  }

  private boolean isReady(long timeout) {
    return awaitNs(timeout) || bell != null && bell.rangWrong() || pending != null;
  }

  private boolean awaitNs(long timeout) {
    try (Call call = Call.enter()) {
      call.check(Native.wi_task_wait(call.use(this), timeout, call.out(), call.error()));
      return call.outInt() != 0;
    }
  }

  /**
   * The answer as it comes: waits for each event, and ends with the first that is not a {@link
   * Event.Kind#TOKEN}. A failed task ends it with the exception that its calls would have thrown.
   * What is not consumed is left to the next stream, or to {@link #poll}.
   *
   * @return events, in order
   */
  public Stream<Event> events() {
    return EventIterator.stream(iterator());
  }

  /**
   * The same as an iterator.
   *
   * @return events, in order
   */
  @Override
  public Iterator<Event> iterator() {
    return new EventIterator(this::next);
  }

  /** One is taken at a time: what an iterator has not given can be polled, and is waited for. */
  private Event next() {
    List<Event> events;
    do {
      await(null);
      events = poll(1);
    } while (events.isEmpty() && !told.get());
    // None where the last one was told to another handle.
    Event event = events.isEmpty() ? Event.last(info().state()) : events.get(0);
    if (event.kind() == Event.Kind.FAILED) {
      TaskInfo info = info();
      throw WaveInferException.of(info.status().code(), info.nativeCode(), info.message());
    }
    return event;
  }

  /**
   * A file descriptor that is readable while there are events to poll, for epoll and every event
   * loop. It is the task's and closed with it.
   *
   * @return to be watched, neither read nor closed
   * @throws WaveInferException.Io if the system has none left
   */
  public int descriptor() {
    try (Call call = Call.enter()) {
      call.check(Native.wi_task_get_fd(call.use(this), call.out(), call.error()));
      return call.outInt();
    }
  }

  /**
   * Ends the task within one step of the engine; it has its last event then, and its session is
   * free. A task that has ended is left alone.
   */
  public void cancel() {
    try (Call call = Call.enter()) {
      Native.wi_task_cancel(call.use(this));
    }
  }

  /**
   * How far the task is.
   *
   * @return state and numbers
   */
  public TaskInfo info() {
    try (Call call = Call.enter()) {
      wi_task_info info = call.own(new wi_task_info());
      call.check(Native.wi_task_get_info(call.use(this), info.address(), call.error()));
      return TaskInfo.of(info);
    }
  }

  /** Tells the host of news, on the engine's thread, and keeps what that threw. */
  static final class Bell {
    private final Runnable whenReady;
    private final long id;
    private Throwable thrown;

    /** Null for null. */
    static Bell of(Runnable whenReady) {
      return whenReady == null ? null : new Bell(whenReady);
    }

    private Bell(Runnable whenReady) {
      this.whenReady = whenReady;
      id = Callbacks.add(new WeakReference<>(this));
    }

    long id() {
      return id;
    }

    void ring() {
      whenReady.run();
    }

    synchronized void threw(Throwable what) {
      thrown = what;
    }

    synchronized boolean rangWrong() {
      return thrown != null;
    }

    synchronized Throwable takeThrown() {
      Throwable what = thrown;
      thrown = null;
      return what;
    }
  }
}
