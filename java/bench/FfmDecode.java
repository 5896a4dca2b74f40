import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/**
 * As decode_overhead.c, through the foreign function and memory API of Java 22 and later, with
 * nothing around the calls: what another hidden layer could gain at most.
 */
public class FfmDecode {
  private static final int ROUNDS = 2000; // the first ones compile
  private static final int STEPS = 20;
  private static final int FORKS = 20;

  private static SymbolLookup library;
  private static MethodHandle decode;

  private static MethodHandle bind(String name, FunctionDescriptor as) {
    return Linker.nativeLinker().downcallHandle(library.find(name).orElseThrow(), as);
  }

  private static void check(int status) {
    if (status != 0) throw new IllegalStateException("status " + status);
  }

  private static String decode(MemorySegment session, MemorySegment cancel, MemorySegment event)
      throws Throwable {
    check((int) decode.invokeExact(session, cancel, event, MemorySegment.NULL));
    long length = event.get(JAVA_LONG, 24);
    byte[] text = event.get(ADDRESS, 16).reinterpret(length).toArray(ValueLayout.JAVA_BYTE);
    return new String(text, StandardCharsets.UTF_8);
  }

  public static void main(String[] args) throws Throwable {
    try (Arena arena = Arena.ofConfined()) {
      library = SymbolLookup.libraryLookup(Path.of(args[1]), arena);
      FunctionDescriptor four = FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS);
      FunctionDescriptor three = FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
      decode = bind("wi_session_decode", four);
      MethodHandle fork = bind("wi_session_fork", three);
      MethodHandle release = bind("wi_session_release", FunctionDescriptor.ofVoid(ADDRESS));

      MemorySegment none = MemorySegment.NULL;
      MemorySegment params = arena.allocate(96, 8);
      params.set(JAVA_INT, 0, 96);
      params.set(JAVA_INT, 4, 1);
      MemorySegment out = arena.allocate(8, 8);
      check((int) bind("wi_runtime_create", three).invokeExact(params, out, none));
      MemorySegment runtime = out.get(ADDRESS, 0);
      check(
          (int)
              bind(
                      "wi_model_open",
                      FunctionDescriptor.of(
                          JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS))
                  .invokeExact(runtime, arena.allocateFrom(args[0]), none, none, out, none));
      MemorySegment model = out.get(ADDRESS, 0);
      check((int) bind("wi_session_create", four).invokeExact(model, none, out, none));
      MemorySegment session = out.get(ADDRESS, 0);
      check(
          (int)
              bind("wi_cancel_create", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS))
                  .invokeExact(out, none));
      MemorySegment cancel = out.get(ADDRESS, 0);
      check(
          (int)
              bind(
                      "wi_session_append_text",
                      FunctionDescriptor.of(
                          JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS,
                          ADDRESS))
                  .invokeExact(
                      session, arena.allocateFrom("In the beginning"), 16L, 1, none, none, none));

      MemorySegment event = arena.allocate(56, 8);
      event.set(JAVA_INT, 0, 56);
      MemorySegment[] forks = new MemorySegment[FORKS];
      double step = Double.MAX_VALUE;
      double call = Double.MAX_VALUE;
      for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < FORKS; i++) {
          check((int) fork.invokeExact(session, out, none));
          forks[i] = out.get(ADDRESS, 0);
        }
        StringBuilder text = new StringBuilder();
        long begun = System.nanoTime();
        for (int i = 0; i < FORKS; i++) text.append(decode(forks[i], cancel, event));
        call = Math.min(call, (System.nanoTime() - begun) / (double) FORKS);

        begun = System.nanoTime();
        for (int i = 0; i < STEPS; i++) text.append(decode(forks[0], cancel, event));
        step = Math.min(step, (System.nanoTime() - begun) / (double) STEPS);
        for (int i = 0; i < FORKS; i++) release.invokeExact(forks[i]);
      }
      System.out.printf("%.0f %.0f%n", step, call);
    }
  }
}
