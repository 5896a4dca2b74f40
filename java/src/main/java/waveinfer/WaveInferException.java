package waveinfer;

/**
 * What the library refused, and why. Each {@link Status} has a class of its own, to be caught by
 * name; a status that this binding does not know is a plain WaveInferException. Whatever the call
 * was on is as it was before, and the next call works.
 */
public class WaveInferException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** What went wrong. */
  private final Status status;

  /** What the system said. */
  private final long nativeCode;

  WaveInferException(Status status, long nativeCode, String message) {
    super(message);
    this.status = status;
    this.nativeCode = nativeCode;
  }

  /**
   * What went wrong.
   *
   * @return the status, never {@link Status#OK}
   */
  public Status status() {
    return status;
  }

  /**
   * What the system or a driver said.
   *
   * @return errno or a driver's code; 0: none
   */
  public long nativeCode() {
    return nativeCode;
  }

  static WaveInferException of(int code, long nativeCode, String message) {
    Status status = Status.of(code);
    switch (status) {
      case ARGUMENT:
        return new Argument(nativeCode, message);
      case FORMAT:
        return new Format(nativeCode, message);
      case UNSUPPORTED:
        return new Unsupported(nativeCode, message);
      case IO:
        return new Io(nativeCode, message);
      case MEMORY:
        return new Memory(nativeCode, message);
      case BUDGET:
        return new Budget(nativeCode, message);
      case CANCELLED:
        return new Cancelled(nativeCode, message);
      case BUSY:
        return new Busy(nativeCode, message);
      case STATE:
        return new State(nativeCode, message);
      case MISMATCH:
        return new Mismatch(nativeCode, message);
      case DEVICE:
        return new Device(nativeCode, message);
      case DEVICE_LOST:
        return new DeviceLost(nativeCode, message);
      case INTERNAL:
        return new Internal(nativeCode, message);
      default:
        return new WaveInferException(status, nativeCode, message + " (status " + code + ")");
    }
  }

  /** An argument is wrong; the message names it and its value. */
  public static final class Argument extends WaveInferException {
    private static final long serialVersionUID = 1;

    Argument(long nativeCode, String message) {
      super(Status.ARGUMENT, nativeCode, message);
    }
  }

  /** A file is broken; the message names the field and the byte offset. */
  public static final class Format extends WaveInferException {
    private static final long serialVersionUID = 1;

    Format(long nativeCode, String message) {
      super(Status.FORMAT, nativeCode, message);
    }
  }

  /** Well-formed, but not something this build can do; the message names it. */
  public static final class Unsupported extends WaveInferException {
    private static final long serialVersionUID = 1;

    Unsupported(long nativeCode, String message) {
      super(Status.UNSUPPORTED, nativeCode, message);
    }
  }

  /** The system refused a file operation; {@link #nativeCode} is errno. */
  public static final class Io extends WaveInferException {
    private static final long serialVersionUID = 1;

    Io(long nativeCode, String message) {
      super(Status.IO, nativeCode, message);
    }
  }

  /** The system refused memory. */
  public static final class Memory extends WaveInferException {
    private static final long serialVersionUID = 1;

    Memory(long nativeCode, String message) {
      super(Status.MEMORY, nativeCode, message);
    }
  }

  /**
   * A byte budget of the runtime or the session would be exceeded; where there is a slow tier, by
   * what must be in fast memory, or the slow tier is full too.
   */
  public static final class Budget extends WaveInferException {
    private static final long serialVersionUID = 1;

    Budget(long nativeCode, String message) {
      super(Status.BUDGET, nativeCode, message);
    }
  }

  /** The thread was interrupted, or a cancel token was triggered. */
  public static final class Cancelled extends WaveInferException {
    private static final long serialVersionUID = 1;

    Cancelled(long nativeCode, String message) {
      super(Status.CANCELLED, nativeCode, message);
    }
  }

  /** Another thread, or a task, is inside this session or KV store. */
  public static final class Busy extends WaveInferException {
    private static final long serialVersionUID = 1;

    Busy(long nativeCode, String message) {
      super(Status.BUSY, nativeCode, message);
    }
  }

  /** The call does not fit the object's state, such as decode of an empty session. */
  public static final class State extends WaveInferException {
    private static final long serialVersionUID = 1;

    State(long nativeCode, String message) {
      super(Status.STATE, nativeCode, message);
    }
  }

  /** A saved session of another model or of other parameters. */
  public static final class Mismatch extends WaveInferException {
    private static final long serialVersionUID = 1;

    Mismatch(long nativeCode, String message) {
      super(Status.MISMATCH, nativeCode, message);
    }
  }

  /** A device call failed; {@link #nativeCode} is the driver's. */
  public static final class Device extends WaveInferException {
    private static final long serialVersionUID = 1;

    Device(long nativeCode, String message) {
      super(Status.DEVICE, nativeCode, message);
    }
  }

  /** A sticky device fault: this runtime is unusable, the process is not. */
  public static final class DeviceLost extends WaveInferException {
    private static final long serialVersionUID = 1;

    DeviceLost(long nativeCode, String message) {
      super(Status.DEVICE_LOST, nativeCode, message);
    }
  }

  /** A bug in the library; please report the message. */
  public static final class Internal extends WaveInferException {
    private static final long serialVersionUID = 1;

    Internal(long nativeCode, String message) {
      super(Status.INTERNAL, nativeCode, message);
    }
  }
}
