package waveinfer;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import java.util.List;

/**
 * DecodeOverhead with Session.decode beside itself over another hidden layer: the same handles,
 * locks, interruption and events, but what is called and read in C goes through the foreign
 * function and memory API of Java 22 and later.
 */
public class FfmDecode {
  @SuppressWarnings("restricted")
  private static final MemorySegment memory = MemorySegment.NULL.reinterpret(Long.MAX_VALUE);

  private static final MethodHandle decode =
      bind(
          "wi_session_decode",
          FunctionDescriptor.of(JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG));

  private FfmDecode() {}

  /** Of the library that the binding has loaded. Addresses are longs, as they are there. */
  @SuppressWarnings("restricted")
  static MethodHandle bind(String name, FunctionDescriptor as) {
    Path library = Path.of(System.getProperty("waveinfer.library.path"), "libwaveinfer.so.2");
    MemorySegment symbol =
        SymbolLookup.libraryLookup(library, Arena.global()).find(name).orElseThrow();
    return Linker.nativeLinker().downcallHandle(symbol, as);
  }

  private static Event decode(Session session) {
    try (Call call = Call.cancellable(null)) {
      long event = call.event.address();
      call.check(status(call.alone(session), call.cancel(), event, call.error()));
      if (memory.get(JAVA_LONG, event + 48) != 0) throw new AssertionError("none asked for others");
      return new Event(
          Event.Kind.of(memory.get(JAVA_INT, event + 4)),
          memory.get(JAVA_INT, event + 8),
          text(memory.get(JAVA_LONG, event + 16), memory.get(JAVA_LONG, event + 24)),
          memory.get(JAVA_FLOAT, event + 32),
          List.of());
    }
  }

  private static int status(long session, long cancel, long event, long error) {
    try {
      return (int) decode.invokeExact(session, cancel, event, error);
    } catch (Throwable e) {
      throw new AssertionError(e);
    }
  }

  private static String text(long address, long length) {
    return length == 0 ? "" : Texts.of(memory.asSlice(address, length).toArray(JAVA_BYTE));
  }

  public static void main(String[] args) {
    DecodeOverhead.measure(
        Path.of(args[0]), Integer.parseInt(args[1]), List.of(Session::decode, FfmDecode::decode));
  }
}
