package waveinfer;

import java.nio.file.Path;
import java.util.Objects;
import java.util.function.BiConsumer;

/** What a {@link WaveRuntime} is made with. What is not set is the default. Copied by the call. */
public final class RuntimeParams {
  private int threads;
  private String device;
  private long kvBudgetBytes;
  private HugePages hugePages = HugePages.AUTO;
  private BindThreads bindThreads = BindThreads.AUTO;
  private int nice;
  private int taskWaitMs;
  private Path spillFolder;
  private long spillBytes;
  private BufferManager bufferManager = BufferManager.AUTO;
  private LogLevel logLevel = LogLevel.NONE;
  private BiConsumer<LogLevel, String> log;

  /** All defaults. */
  public RuntimeParams() {}

  /**
   * Threads that work.
   *
   * @param threads 0 to 1024; 0: the physical cores this process may use, by its CPU set and the
   *     quota of its control groups
   * @return this
   */
  public RuntimeParams threads(int threads) {
    this.threads = threads;
    return this;
  }

  /**
   * The device to compute on.
   *
   * @param device null or "cpu": the host's own processor; "cuda:N", or "cuda" for the first: a
   *     device, see {@link WaveRuntime#devices}
   * @return this
   */
  public RuntimeParams device(String device) {
    this.device = device;
    return this;
  }

  /**
   * Most bytes that KV, indexes and tails of all sessions and KV stores together may take; weights
   * and scratch do not count.
   *
   * @param kvBudgetBytes 0: 80 % of the memory this process may use; on a device, of its memory
   *     what is free, but for a fifth or, where that is less, 4 GiB, and for what weights and
   *     scratch take then
   * @return this
   */
  public RuntimeParams kvBudgetBytes(long kvBudgetBytes) {
    this.kvBudgetBytes = kvBudgetBytes;
    return this;
  }

  /**
   * Whether to ask the system for huge pages.
   *
   * @param hugePages for large pieces of KV and copied weights
   * @return this
   */
  public RuntimeParams hugePages(HugePages hugePages) {
    this.hugePages = hugePages;
    return this;
  }

  /**
   * Whether to pin the runtime's threads to cores.
   *
   * @param bindThreads on machines of several NUMA nodes
   * @return this
   */
  public RuntimeParams bindThreads(BindThreads bindThreads) {
    this.bindThreads = bindThreads;
    return this;
  }

  /**
   * Linux: added to the nice value that the runtime's own threads inherit from the one that makes
   * it, so that they stand back; a thread inside a call works too, at its own priority.
   *
   * @param nice 0 to 19
   * @return this
   */
  public RuntimeParams nice(int nice) {
    this.nice = nice;
    return this;
  }

  /**
   * Most milliseconds that tasks that write wait for prompts that other tasks read, as nearly as
   * one piece of an operation allows.
   *
   * @param taskWaitMs 1 to 60000; 0: 50
   * @return this
   */
  public RuntimeParams taskWaitMs(int taskWaitMs) {
    this.taskWaitMs = taskWaitMs;
    return this;
  }

  /**
   * A folder on a local disk (not in memory, as /tmp is on many systems) for keys and values that
   * fast memory has no room for: a session that outgrows its budget, the runtime's or its share
   * goes on, with the same tokens, and reads from there what its queries want. The file has no name
   * and is gone with the runtime. Not on a device, whose slow tier is pinned memory of the host's.
   *
   * @param spillFolder null: there is no slow tier
   * @return this
   */
  public RuntimeParams spillFolder(Path spillFolder) {
    this.spillFolder = spillFolder;
    return this;
  }

  /**
   * Most bytes in that file; on a device, in that pinned memory.
   *
   * @param spillBytes 0: as the disk has room; on a device, 80 % of the memory this process may use
   * @return this
   */
  public RuntimeParams spillBytes(long spillBytes) {
    this.spillBytes = spillBytes;
    return this;
  }

  /**
   * Which clusters of a slow tier make room for others in the fast one.
   *
   * @param bufferManager the manager
   * @return this
   */
  public RuntimeParams bufferManager(BufferManager bufferManager) {
    this.bufferManager = bufferManager;
    return this;
  }

  /**
   * Where the runtime's log goes, and how much of it. The log comes from any thread that is inside
   * a call or from one of the runtime's own, and may come from several at once. What it throws on a
   * thread inside a call ends that call and is thrown by it, if the call can be cancelled or is
   * {@link WaveRuntime#create(RuntimeParams)}; else, and elsewhere, it goes to the thread's
   * uncaught exception handler. It must not use the library.
   *
   * @param level nothing above it is logged
   * @param log gets the level and one line; null: no log
   * @return this
   */
  public RuntimeParams log(LogLevel level, BiConsumer<LogLevel, String> log) {
    this.logLevel = Objects.requireNonNull(level);
    this.log = log;
    return this;
  }

  /**
   * The log goes to a logger of the platform.
   *
   * @param level nothing above it is logged
   * @param logger where to
   * @return this
   */
  public RuntimeParams log(LogLevel level, System.Logger logger) {
    Objects.requireNonNull(logger);
    return log(level, (of, line) -> logger.log(platform(of), line));
  }

  private static System.Logger.Level platform(LogLevel level) {
    return switch (level) {
      case ERROR -> System.Logger.Level.ERROR;
      case WARNING -> System.Logger.Level.WARNING;
      case INFO -> System.Logger.Level.INFO;
      default -> System.Logger.Level.DEBUG;
    };
  }

  BiConsumer<LogLevel, String> log() {
    return log;
  }

  long write(Call call, long log) {
    wi_runtime_params to = call.own(new wi_runtime_params());
    to.setThreads(threads);
    to.setDevice(call.name(device));
    to.setKv_budget_bytes(kvBudgetBytes);
    to.setHuge_pages(hugePages.value);
    to.setBind_threads(bindThreads.value);
    to.setNice(nice);
    to.setTask_wait_ms(taskWaitMs);
    to.setSpill_folder(spillFolder == null ? 0 : call.path(spillFolder));
    to.setSpill_bytes(spillBytes);
    to.setBuffer_manager(bufferManager.value);
    to.setLog_level(logLevel.value());
    if (log != 0) {
      to.setLog(Native.callback(Callbacks.LOG));
      to.setLog_user(log);
      to.setLog_release(Native.callback(Callbacks.LOG_RELEASED));
    }
    return to.address();
  }

  /** Huge pages for large pieces of memory. */
  public enum HugePages {
    /** Ask the system for them. */
    AUTO(wi_huge_pages.WI_HUGE_PAGES_AUTO),
    /** Don't. */
    OFF(wi_huge_pages.WI_HUGE_PAGES_OFF);

    private final int value;

    HugePages(int value) {
      this.value = value;
    }
  }

  /** Where the runtime's threads run. */
  public enum BindThreads {
    /** Pinned to cores on machines of several NUMA nodes. */
    AUTO(wi_bind_threads.WI_BIND_AUTO),
    /** Where the system puts them. */
    OFF(wi_bind_threads.WI_BIND_OFF);

    private final int value;

    BindThreads(int value) {
      this.value = value;
    }
  }

  /** Which clusters of a slow tier make room for others. */
  public enum BufferManager {
    /** The library's choice: {@link #LRU}. */
    AUTO(wi_buffer_manager.WI_BUFFER_AUTO),
    /** The least recently used, exactly. */
    LRU(wi_buffer_manager.WI_BUFFER_LRU),
    /** By age in 64 steps, as a device computes it. */
    BUCKETED(wi_buffer_manager.WI_BUFFER_BUCKETED);

    private final int value;

    BufferManager(int value) {
      this.value = value;
    }
  }
}
