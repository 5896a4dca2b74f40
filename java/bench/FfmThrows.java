package waveinfer;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.IntBuffer;
import java.nio.file.Path;

/** What becomes of a VM whose callback throws: through this binding, then as an upcall of FFM. */
public class FfmThrows {
  private FfmThrows() {}

  private static int progress(long user, long done, long total) {
    throw new IllegalStateException("what a callback threw");
  }

  @SuppressWarnings("restricted")
  private static int prefill(Session session, int[] tokens) throws Throwable {
    MethodHandle prefill =
        FfmDecode.bind(
            "wi_session_prefill",
            FunctionDescriptor.of(
                JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG));
    MethodHandle progress =
        MethodHandles.lookup()
            .findStatic(
                FfmThrows.class,
                "progress",
                MethodType.methodType(int.class, long.class, long.class, long.class));
    FunctionDescriptor as = FunctionDescriptor.of(JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_LONG);
    try (Arena arena = Arena.ofConfined();
        Call call = Call.cancellable(null)) {
      MemorySegment callback = Linker.nativeLinker().upcallStub(progress, as, arena);
      wi_prefill_params how = call.own(new wi_prefill_params());
      how.setProgress(callback.address());
      return (int)
          prefill.invokeExact(
              call.alone(session),
              call.ints(IntBuffer.wrap(tokens)),
              (long) tokens.length,
              how.address(),
              call.cancel(),
              call.error());
    }
  }

  public static void main(String[] args) throws Throwable {
    int[] tokens = new int[300];
    try (WaveRuntime runtime = WaveRuntime.create(new RuntimeParams().threads(1));
        Model model = runtime.open(Path.of(args[0]));
        Session session = model.newSession()) {
      PrefillParams params =
          new PrefillParams().progress((done, total) -> progress(0, done, total));
      try {
        session.prefill(tokens, params, null);
      } catch (IllegalStateException e) {
        System.out.println("JNI: prefill throws " + e.getMessage());
      }
      System.out.println("FFM: prefill returns " + prefill(session, tokens));
    }
  }
}
