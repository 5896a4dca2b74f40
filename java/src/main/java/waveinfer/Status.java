package waveinfer;

/** What a call of the library says of itself. */
public enum Status {
  /** It worked. */
  OK(wi_status_code.WI_OK),
  /** An argument is wrong; the message names it and its value. */
  ARGUMENT(wi_status_code.WI_E_ARGUMENT),
  /** A file is broken; the message names the field and the byte offset. */
  FORMAT(wi_status_code.WI_E_FORMAT),
  /** Well-formed, but not something this build can do; the message names it. */
  UNSUPPORTED(wi_status_code.WI_E_UNSUPPORTED),
  /** The system refused a file operation; the native code is errno. */
  IO(wi_status_code.WI_E_IO),
  /** The system refused memory. */
  MEMORY(wi_status_code.WI_E_MEMORY),
  /** A byte budget of the runtime or the session would be exceeded. */
  BUDGET(wi_status_code.WI_E_BUDGET),
  /** The thread was interrupted, or a cancel token was triggered. */
  CANCELLED(wi_status_code.WI_E_CANCELLED),
  /** Another thread, or a task, is inside this session or KV store. */
  BUSY(wi_status_code.WI_E_BUSY),
  /** The call does not fit the object's state, such as decode of an empty session. */
  STATE(wi_status_code.WI_E_STATE),
  /** A saved session of another model or of other parameters. */
  MISMATCH(wi_status_code.WI_E_MISMATCH),
  /** A device call failed; the native code is the driver's. */
  DEVICE(wi_status_code.WI_E_DEVICE),
  /** A sticky device fault: this runtime is unusable, the process is not. */
  DEVICE_LOST(wi_status_code.WI_E_DEVICE_LOST),
  /** A bug in the library; please report the message. */
  INTERNAL(wi_status_code.WI_E_INTERNAL),
  /** One that this version of the binding does not know. */
  UNKNOWN(-1);

  private final int code;

  Status(int code) {
    this.code = code;
  }

  /**
   * The number that C knows it by.
   *
   * @return a {@code WI_E_*}; -1 for {@link #UNKNOWN}
   */
  public int code() {
    return code;
  }

  /**
   * The library's own name of a status, which may be newer than this binding.
   *
   * @param code a {@code WI_E_*}
   * @return its name without the prefix, "UNKNOWN" if it is none
   */
  public static String nameOf(int code) {
    return Texts.of(Native.text(Native.wi_status_name(code)));
  }

  /**
   * The status of a number.
   *
   * @param code a {@code WI_E_*}
   * @return the status, {@link #UNKNOWN} if it is none
   */
  public static Status of(int code) {
    for (Status status : values()) {
      if (status.code == code) return status;
    }
    return UNKNOWN;
  }
}
